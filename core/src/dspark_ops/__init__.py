"""dspark-ops: a registry of decode operators that picks one kernel per operator, explains the choice and freezes it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dspark_ops import contracts
    from dspark_ops._entry import plan, probe
    from dspark_ops.binding import BoundOps
    from dspark_ops.selection.device import Device
    from dspark_ops.selection.plan import Plan

__version__ = "0.1.0"

__all__ = ["BoundOps", "Device", "Plan", "__version__", "contracts", "plan", "probe"]


def __getattr__(name: str) -> Any:
    # Imported at first use: a program that only asks for the version, or reads a contract, pays for nothing else.
    homes = {
        "BoundOps": "dspark_ops.binding",
        "Device": "dspark_ops.selection.device",
        "Plan": "dspark_ops.selection.plan",
        "plan": "dspark_ops._entry",
        "probe": "dspark_ops._entry",
    }
    from importlib import import_module

    if name == "contracts":
        return import_module("dspark_ops.contracts")
    if name not in homes:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(homes[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
