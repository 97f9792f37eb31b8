"""Configuration: one checked tree from files, environment, command line and arguments, with the origin of every value.

A file holds six tables, all of them optional:

    [policy]
    fallback = "fail"                  # fail, warn or allow: what a weaker class than required means
    require_class = "portable"         # fused, portable, composed or reference
    plugin_error = "warn"              # fail or warn: what a plugin that does not load means
    lock = "require"                   # off, prefer or require: what a lock file means
    evidence = "conformant"            # the weakest recorded evidence on which a plugin's kernel may serve
    smoke = "on"                       # run every chosen kernel once in another process when a plan is bound
    smoke_seconds = 120                # how long one kernel may take there
    graphs = "on"                      # on a GPU, only kernels that may be captured in a graph
    rank_mismatch = "fail"             # fail | leader, when tensor-parallel ranks have made different plans

    [plugins]
    allow = ["triton"]                 # only these may load
    deny = ["nvidia_sm10x"]            # these may not

    [device]
    simulate = "sm_103"                # what is planned for when no device is named

    [files]
    lock = "dspark-ops.lock"           # DSPARK_OPS_LOCK wins over it
    evidence = ["evidence.json"]       # what check --write and tune wrote
    known_bad = ["known_bad.json"]     # faults of kernels beside those that core knows of
    measured = "measured.json"         # what tune wrote; read where a lock is written

    [layouts]
    kv_page = ["kv_v41", "kv_v41_new"] # shared layouts that the caller can make: the plan picks one for all

    [ops.argmax_rows]
    pin = "triton/argmax_rows/one_launch"
    deny = ["nvidia_sm10x/*"]
    order = ["triton/*", "*/reference"]
    require_class = "fused"
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dspark_ops.config.load import Config, Configuration, load_configuration, load_settings

__all__ = ["Config", "Configuration", "load_configuration", "load_settings"]


def __getattr__(name: str) -> Any:
    # pydantic takes 70 ms to import: it is loaded when a configuration is, not when a layer names its types.
    if name in __all__:
        from dspark_ops.config import load

        return getattr(load, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
