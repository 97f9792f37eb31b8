"""The hook that a plugin implements. pluggy checks its name and arguments; nothing here runs once a plan is frozen."""

from __future__ import annotations

from typing import Final

import pluggy

from dspark_ops.api.manifest import Manifest

PROJECT: Final = "dspark_ops"

hookspec: Final = pluggy.HookspecMarker(PROJECT)
hookimpl: Final = pluggy.HookimplMarker(PROJECT)


@hookspec
def dspark_ops_manifest() -> Manifest:  # type: ignore[empty-body]  # pluggy hook specifications have no body
    """Return this plugin's manifest.

    The module that implements this hook is imported at planning, on machines without the plugin's hardware too: it
    imports `dspark_ops.api` and nothing heavier, and it looks at no device.
    """
