"""Writing some of the rows without asking the host which: while a graph is captured, it cannot wait for an answer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dspark_ops._lazy import torch

if TYPE_CHECKING:
    from torch import Tensor


def kept_or_first(kept: Tensor) -> Tensor:
    """Return for each row its own number where `kept` [n] bool is True, else that of the first kept row: [n] int64.

    Rows in this order hold what the kept ones hold, some of it several times. If none is kept, all are row 0.
    """
    number = torch.arange(kept.shape[0], device=kept.device)
    return torch.where(kept, number, kept.to(torch.uint8).argmax()) if kept.shape[0] else number


def write_kept(target: Tensor, places: tuple[Tensor, ...], rows: Tensor, kept: Tensor) -> None:
    """Write rows to ``target[places]``, both in the order of `kept_or_first`; if none is kept, nothing changes.

    Places are in bounds in either case.
    """
    if target.shape[0]:
        target[places] = torch.where(kept.any(), rows, target[places])
