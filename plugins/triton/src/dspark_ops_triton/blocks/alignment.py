"""How a launch tells the compiler that rows may be loaded 16 bytes at a time."""

from __future__ import annotations

import torch


def stride_unit(rows: torch.Tensor) -> int:
    """Return the number of elements in 16 bytes if every row of a 2-d tensor begins on a 16-byte boundary, else 1.

    A kernel gets the row stride in this unit, as a number, and the unit as a constant: their product then carries the
    factor that wide loads need, without a build per stride.
    """
    unit = 16 // rows.element_size()
    return 1 if rows.stride(0) % unit or rows.data_ptr() % 16 else unit


def common_stride_unit(*tensors: torch.Tensor) -> int:
    """Return the number of elements in 16 bytes if every run of lanes of all tensors begins on such a boundary, else 1.

    The tensors have one element size and a last stride of 1.
    """
    unit = 16 // tensors[0].element_size()
    aligned = all(
        tensor.data_ptr() % 16 == 0 and all(stride % unit == 0 for stride in tensor.stride()[:-1]) for tensor in tensors
    )
    return unit if aligned else 1
