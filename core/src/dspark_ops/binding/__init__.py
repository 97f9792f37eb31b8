"""Binding: from a plan to callables. Only what was chosen is imported, and what comes out cannot be changed."""

from __future__ import annotations

from dspark_ops.binding.bind import bind
from dspark_ops.binding.bound import BoundOps, OpsView

__all__ = ["BoundOps", "OpsView", "bind"]
