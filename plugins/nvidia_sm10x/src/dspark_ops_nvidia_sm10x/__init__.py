"""Kernels of dspark-ops for NVIDIA SM100 and SM103."""

from __future__ import annotations

__version__ = "0.1.0"
