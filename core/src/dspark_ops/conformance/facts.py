"""The facts of one call; checked operators ask the same, so this lives in `dspark_ops.binding.facts`."""

from __future__ import annotations

from dspark_ops.binding.facts import (
    SITE,
    STRIDE_FORMS,
    axes_of,
    complete,
    dtype_name,
    facts_of,
    outside,
    rows_of_inputs,
    stride_form,
)

__all__ = [
    "SITE",
    "STRIDE_FORMS",
    "axes_of",
    "complete",
    "dtype_name",
    "facts_of",
    "outside",
    "rows_of_inputs",
    "stride_form",
]
