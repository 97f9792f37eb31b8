"""Tensors between guard elements, so that a store outside an operator's arguments is seen."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from dspark_ops._lazy import torch

if TYPE_CHECKING:
    from torch import Tensor

_GUARD_BYTES = 256


@dataclass(frozen=True, slots=True)
class GuardedTensor:
    """A copy of a tensor, with its strides and the gaps between its rows, inside a larger allocation.

    The guards are bytes of 0xFF: NaN in every float format, -1 in every signed integer.

    Attributes:
        view: the tensor to pass to an operator.
        before: bits of the whole allocation when it was made, on the CPU.
        owned: which elements of the allocation `view` covers.
        allocation: the whole, as integers of the element's width, on the device.
    """

    view: Tensor
    before: Tensor
    owned: Tensor
    allocation: Tensor

    @classmethod
    def copy_of(cls, source: Tensor, device: str) -> GuardedTensor:
        """Return a guarded copy of a CPU tensor on `device`."""
        width = source.element_size()
        integer = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[width]
        guard = _GUARD_BYTES // width
        reach = zip(source.shape, source.stride(), strict=True)
        span = 0 if source.numel() == 0 else 1 + sum((size - 1) * stride for size, stride in reach)
        flat = torch.full((span + 2 * guard,), 255 if width == 1 else -1, dtype=integer)
        if span:
            gaps = torch.as_strided(source, (span,), (1,), source.storage_offset())
            flat[guard : guard + span] = gaps.view(integer)
        owned = torch.zeros(flat.shape, dtype=torch.bool)
        torch.as_strided(owned, source.shape, source.stride(), guard).fill_(True)
        allocation = flat.to(device, copy=True)
        view = torch.as_strided(allocation.view(source.dtype), source.shape, source.stride(), guard)
        return cls(view, flat, owned, allocation)

    def changed(self, everywhere: bool) -> int:
        """Return how many elements changed since the copy: outside `view`, or with `everywhere` inside too."""
        differs = self.allocation.cpu() != self.before
        return int((differs if everywhere else differs & ~self.owned).sum())
