"""dspark-ops: a registry of decode operators that picks one kernel per operator, explains the choice and freezes it."""

from __future__ import annotations

__version__ = "0.1.0"
