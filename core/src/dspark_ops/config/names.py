"""How the names that a configuration may hold are spelled: plugins, kernel ids, and globs over kernel ids."""

from __future__ import annotations

import re
from typing import Final

PLUGIN_NAME: Final = re.compile(r"^[a-z][a-z0-9_]*$")
KERNEL_ID: Final = re.compile(r"^[a-z][a-z0-9_]*/[a-z][a-z0-9_]*/[a-z][a-z0-9_]*$")

# A glob that no kernel id can match is a typing error: it needs the form of an id, or a wildcard that bridges it.
_GLOB: Final = re.compile(r"^[a-z0-9_*?\[\]!/-]+$")


def is_kernel_glob(text: str) -> bool:
    """Whether `text` can match some kernel id ``plugin/operator/variant``."""
    if not _GLOB.match(text) or text.count("/") > 2:
        return False
    return text.count("/") == 2 or "*" in text
