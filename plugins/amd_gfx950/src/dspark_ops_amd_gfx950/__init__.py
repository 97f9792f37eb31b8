"""Kernels of dspark-ops for AMD gfx950 (MI350X, MI355X)."""

from __future__ import annotations

__version__ = "0.1.0"
