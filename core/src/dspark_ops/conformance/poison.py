"""Memory that holds a known pattern before an operator writes it, so that what it never writes is seen.

A kernel allocates its outputs itself, so they are poisoned where they are made: while a `Poison` is active, every
allocation through torch that promises no contents (``empty``, ``empty_like``, ``new_empty``, ...) is filled with one
byte. That sees what Python code and torch extensions allocate through torch's dispatcher; it does not see memory that
a library gets from the driver itself, nor a buffer that a kernel keeps between calls.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

__all__ = ["PATTERNS", "Poison", "holding", "unwritten"]

#: Two bytes that no correct output repeats throughout an element by chance in both runs.
PATTERNS = (0x5C, 0xA3)

_EMPTY = frozenset(
    {"aten::empty", "aten::empty_strided", "aten::empty_like", "aten::new_empty", "aten::new_empty_strided"}
)


class Poison(TorchDispatchMode):
    """While active, fills every uninitialised allocation with one byte."""

    def __init__(self, byte: int) -> None:
        super().__init__()
        self._byte = byte
        self.storages: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func._schema.name in _EMPTY and isinstance(result, torch.Tensor) and result.numel():
            storage = result.untyped_storage()
            if result.device.type != "meta" and storage.nbytes():
                torch.empty(0, dtype=torch.uint8, device=result.device).set_(storage).fill_(self._byte)
        return result


def holding(value: torch.Tensor, byte: int) -> torch.Tensor:
    """Return where every byte of a tensor's elements is `byte`."""
    if value.numel() == 0:
        return torch.zeros(value.shape, dtype=torch.bool)
    data = value.detach().cpu().contiguous()
    width = data.element_size()
    return (data.reshape(-1).view(torch.uint8).view(-1, width) == byte).all(-1).view(data.shape)


def unwritten(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """Return, by output, the elements that held the pattern of the run in both of two runs with different patterns."""
    found = {}
    for name, value in first.items():
        other = second.get(name)
        if isinstance(value, torch.Tensor) and isinstance(other, torch.Tensor) and value.shape == other.shape:
            left = holding(value, PATTERNS[0]) & holding(other, PATTERNS[1])
            if left.any():
                found[name] = left
    return found
