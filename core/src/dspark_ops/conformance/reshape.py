"""Calls made from other calls: fewer or more of one axis, another dtype, other strides, single rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from dspark_ops._lazy import torch
from dspark_ops.binding.facts import axes_of, rows_of_inputs
from dspark_ops.contracts.contract import Contract
from dspark_ops.contracts.values import evaluate, unknown_names

if TYPE_CHECKING:
    from torch import Tensor

Inputs = Mapping[str, Any]

#: A gap or a guard holds these bits: NaN in every float format, -1 in every signed integer.
_GAP = 0xFF


def resized(contract: Contract, inputs: Inputs, axis: str, size: int) -> dict[str, Any] | None:
    """Return inputs with another size of one axis, or None where that cannot be had by cutting or repeating.

    A tensor is cut to its first elements along the axis, or repeated cyclically. Rows are not
    repeated where the operator writes to an argument (two rows must not write one slot), and int32 values only along
    the rows: they are ids that must differ, such as experts.
    """
    axes = axes_of(contract, inputs)
    old = axes.get(axis)
    writes = axis == contract.rows and any(argument.written for argument in contract.arguments)
    if old is None or (size > old and (old == 0 or writes)):
        return None
    wanted = {**axes, axis: size}
    result = dict(inputs)
    for argument in contract.arguments:
        tensor = inputs.get(argument.name)
        if not isinstance(tensor, torch.Tensor):
            continue
        for dimension, entry in enumerate(argument.shape):
            if axis not in _symbols(entry):
                continue
            try:
                size_here = evaluate(entry, wanted)
            except KeyError:
                return None
            target = int(size_here)
            if target != size_here:
                return None
            have = tensor.shape[dimension]
            if target <= have:
                tensor = tensor.narrow(dimension, 0, target)
            elif have == 0 or (tensor.dtype == torch.int32 and axis != contract.rows):
                return None
            else:
                tensor = tensor.index_select(dimension, torch.arange(target) % have)
        # A cut must not change what a region sees of the strides.
        result[argument.name] = tensor.contiguous() if inputs[argument.name].is_contiguous() else tensor
    return result


def row_slice(contract: Contract, inputs: Inputs, start: int, count: int) -> dict[str, Any] | None:
    """Return the inputs of some consecutive rows, or None where a shape does not let rows be cut out.

    They are views, but where the whole is contiguous, its rows are not, and nothing is written there: a region may ask
    for contiguous tensors.
    """
    rows = rows_of_inputs(contract, inputs)
    result = dict(inputs)
    for argument in contract.arguments:
        tensor = inputs.get(argument.name)
        if not isinstance(tensor, torch.Tensor):
            continue
        for dimension, entry in enumerate(argument.shape):
            if contract.rows not in _symbols(entry):
                continue
            if not _rows_lead(entry, contract.rows) or rows == 0:
                return None
            per_row = tensor.shape[dimension] // rows
            whole, tensor = tensor, tensor.narrow(dimension, start * per_row, count * per_row)
            if whole.is_contiguous() and not argument.written:
                tensor = tensor.contiguous()
        result[argument.name] = tensor
    return result


def row_dimension(contract: Contract, shape: Sequence[str | int]) -> int | None:
    """Return the dimension along which a shape holds one row after the other, or None."""
    return next((index for index, entry in enumerate(shape) if _rows_lead(entry, contract.rows)), None)


def _rows_lead(entry: str | int, rows: str) -> bool:
    return isinstance(entry, str) and (entry == rows or entry.startswith(f"{rows}*"))


def converted(inputs: Inputs, argument: str, dtype: str) -> dict[str, Any]:
    """Return inputs of which one tensor has another dtype."""
    return {**inputs, argument: inputs[argument].to(getattr(torch, dtype))}


def restrided(tensor: Tensor, form: str) -> Tensor | None:
    """Return a copy of a tensor in exactly one stride form, or None where its sizes do not allow that form."""
    if form == "contiguous":
        return tensor.contiguous()
    if tensor.dim() < 2 and form == "unit_last":
        return None
    if form == "unit_last":
        if tensor.numel() == 0 or max(tensor.shape[:-1]) < 2:
            return None
        wide = _filled((*tensor.shape[:-1], tensor.shape[-1] + 8), tensor.dtype)
        wide[..., : tensor.shape[-1]] = tensor
        return wide[..., : tensor.shape[-1]]
    if tensor.numel() == 0 or tensor.shape[-1] < 2:
        return None
    spaced = _filled((*tensor.shape, 2), tensor.dtype)
    spaced[..., 0] = tensor
    return spaced[..., 0]


def displaced(tensor: Tensor, elements: int) -> Tensor:
    """Return a contiguous copy of a tensor that begins some elements into its storage."""
    flat = _filled((elements + tensor.numel(),), tensor.dtype)
    view = flat[elements:].view(tensor.shape)
    view.copy_(tensor)
    return view


def _symbols(entry: str | int) -> tuple[str, ...]:
    return unknown_names(entry, {}) if isinstance(entry, str) and entry != "*" else ()


def _filled(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    made = torch.zeros(shape, dtype=dtype)
    if dtype != torch.bool and made.numel():
        made.view(torch.uint8).fill_(_GAP)
    return made


def by_rows(
    contract: Contract, function: Callable[[Inputs], Mapping[str, Any]], inputs: Inputs
) -> dict[str, Any] | None:
    """Return what an operator gives when it is called once per row, or None where its rows cannot be told apart.

    Outputs that hold rows are joined; others are left out. Written arguments are shared by the calls, in their order.

    Args:
        contract: the operator.
        function: gets inputs and returns every output by name.
        inputs: of the whole call; written arguments are modified.
    """
    rows = rows_of_inputs(contract, inputs)
    pieces: list[Mapping[str, Any]] = []
    for row in range(rows):
        part = row_slice(contract, inputs, row, 1)
        if part is None:
            return None
        pieces.append(function(part))
    if not pieces:
        return None
    written = {argument.name for argument in contract.arguments if argument.written}
    joined: dict[str, Any] = {}
    for output in contract.outputs:
        if output.name in written:
            if isinstance(inputs.get(output.name), torch.Tensor):
                joined[output.name] = inputs[output.name]
            continue
        dimension = row_dimension(contract, output.shape)
        values = [piece[output.name] for piece in pieces]
        if dimension is not None and all(isinstance(value, torch.Tensor) for value in values):
            joined[output.name] = torch.cat(values, dimension)
    return joined or None
