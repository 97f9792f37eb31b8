"""An example plugin for dspark-ops."""

from __future__ import annotations
