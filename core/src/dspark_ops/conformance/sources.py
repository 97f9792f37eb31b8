"""Which source files a kernel is made of; planning asks the same, so this lives in `dspark_ops.selection.sources`."""

from __future__ import annotations

from dspark_ops.selection.sources import kernel_sources, source_digest

__all__ = ["kernel_sources", "source_digest"]
