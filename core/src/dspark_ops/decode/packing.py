"""Between the strided form of a verify step, W rows per request, and the packed form that the target runs (C2.1.7)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from dspark_ops._lazy import torch
from dspark_ops.decode.v41.rows import Rows

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["VerifyRows"]


@dataclass(frozen=True, slots=True)
class VerifyRows:
    """The rows of one verify step.

    Attributes:
        rows: packed: request by request, ``lens[r]`` rows each.
        mask: [R, W] bool, which strided places have a row.
    """

    rows: Rows
    mask: Tensor

    @classmethod
    def pack(cls, candidates: Tensor, slot: Tensor, start: Tensor, lens: Tensor) -> VerifyRows:
        """Return the packed rows of candidates [R, W] int64 at positions start + 0, 1, ..., of which `lens` are run."""
        columns = torch.arange(candidates.shape[1], device=candidates.device)
        mask = columns < lens.unsqueeze(1)
        positions = start.unsqueeze(1) + columns
        owners = slot.unsqueeze(1).expand_as(candidates)
        return cls(Rows(owners[mask], positions[mask], candidates[mask]), mask)

    def strided(self, packed: Tensor) -> Tensor:
        """Return packed [T, D] values at their strided places, zeros elsewhere: [R * W, D]."""
        flat = self.mask.flatten()
        if bool(flat.all()):
            return packed
        spread = packed.new_zeros(flat.shape[0], packed.shape[1])
        spread[flat] = packed
        return spread

    def committed(self, commit_lens: Tensor) -> Tensor:
        """Return [T] bool: which packed rows become valid, the first ``commit_lens[r]`` of each request."""
        columns = torch.arange(self.mask.shape[1], device=self.mask.device)
        return (columns < commit_lens.unsqueeze(1))[self.mask]
