"""One order of scores for every operator that selects by score: NaN, ties and both zeros are decided here."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dspark_ops._lazy import torch
from dspark_ops.errors import ContractError

if TYPE_CHECKING:
    from torch import Tensor

_TOP, _HIDDEN = 2**31 - 1, -(2**31)


def order_by_score(scores: Tensor, visible: Tensor | None = None, nan: str = "first") -> Tensor:
    """Return the columns of each row from the largest score to the smallest, the lowest of equal ones first.

    Sorted are integers that are ordered as the floats are, and stably: a library's own rule for NaN and ties, which
    differs between devices, has no say. Both zeros are equal, and so are all NaNs.

    Args:
        scores: [R, W] float32.
        visible: [R, W] bool; the others come last, behind an infinity below zero. None: all.
        nan: ``first`` puts a NaN before +inf, ``last`` behind -inf, but before what is not visible.

    Returns:
        [R, W] int64.

    Source: choices 1 and 2 of the index.
    """
    if nan not in ("first", "last"):
        raise ContractError(f"order_by_score: nan is {nan!r}: wanted 'first' or 'last'")
    bits = (scores + 0.0).view(torch.int32)  # -0.0 + 0.0 is +0.0
    key = torch.where(bits < 0, bits ^ _TOP, bits)
    key = torch.where(scores.isnan(), _TOP if nan == "first" else _HIDDEN + 1, key)
    if visible is not None:
        key = torch.where(visible, key, _HIDDEN)
    return key.argsort(dim=-1, descending=True, stable=True)
