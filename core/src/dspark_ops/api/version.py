"""The version of the plugin interface, and the rule by which a plugin states which versions it was written for."""

from __future__ import annotations

from typing import Final

#: The interface that this core offers to plugins, ``major.minor``. A minor only adds optional fields.
API_VERSION: Final = "1.0"

#: The entry-point group in which a plugin distribution names its plugin module.
ENTRY_POINT_GROUP: Final = "dspark_ops.plugins"
