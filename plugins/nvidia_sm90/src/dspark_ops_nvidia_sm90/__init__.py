"""Kernels of dspark-ops for NVIDIA SM90 (Hopper)."""

from __future__ import annotations

__version__ = "0.1.0"
