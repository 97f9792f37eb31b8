"""Outputs without storage: the shapes and dtypes that an operator's call will give, from its contract."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from dspark_ops._lazy import torch
from dspark_ops.contracts.contract import Contract, Output
from dspark_ops.contracts.values import evaluate, unknown_names

__all__ = ["returned_outputs", "shapes_only"]

_PRODUCT: Final = re.compile(r"^\w+(\*\w+)+$")


def returned_outputs(contract: Contract) -> tuple[Output, ...]:
    """Return the outputs that a call returns; the others are what its written arguments hold afterwards."""
    written = {argument.name for argument in contract.arguments if argument.written}
    # An output of a written argument's name comes after all returned ones.
    return tuple(output for output in contract.outputs if output.name not in written)


def shapes_only(contract: Contract, arguments: tuple[Any, ...]) -> Any:
    """Return what a call with these arguments returns, as tensors without content on the arguments' device.

    Sizes may be symbolic. Where the contract states an output's shape by axes, it is computed from them. Where it
    leaves a size to the reference, the reference is called: torch runs it without storage too.

    Args:
        contract: the operator.
        arguments: in the order of the signature; those left out at the end have their defaults.
    """
    outputs = returned_outputs(contract)
    if not outputs:
        return None
    names = [parameter.name for parameter in contract.parameters]
    values = {parameter.name: parameter.default for parameter in contract.parameters}
    values.update(zip(names, arguments, strict=False))
    sizes = _sizes(contract, values)
    like = values[names[contract.rows_from[0]]]
    made: list[Any] = []
    for output in outputs:
        if _is_none(output, values):
            made.append(None)
            continue
        shape = output.shape_of(values) if output.shape_of else _shape(output, sizes)
        if shape is None:
            return contract.reference(**values)
        made.append(torch.empty(shape, dtype=_dtype(output, values), device=like.device))
    return made[0] if len(made) == 1 else tuple(made)


def _is_none(output: Output, values: Mapping[str, Any]) -> bool:
    missing = bool(output.none_without) and values[output.none_without] is None
    return missing or (bool(output.none_with) and values[output.none_with] is not None)


def _sizes(contract: Contract, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the sizes of the axes: those that stand alone in a shape, then those that a product leaves to find."""
    entries = [
        (entry, values[argument.name].shape[dimension])
        for argument in contract.arguments
        if values[argument.name] is not None
        for dimension, entry in enumerate(argument.shape)
        if isinstance(entry, str) and entry != "*"
    ]
    sizes: dict[str, Any] = {}
    for entry, size in entries:
        if entry.isidentifier():
            sizes.setdefault(entry, size)
    for entry, size in entries:
        unknown = unknown_names(entry, sizes)
        if len(unknown) == 1 and _PRODUCT.match(entry):
            sizes[unknown[0]] = size // evaluate(entry, {**sizes, unknown[0]: 1})
    for axis, option in contract.sizes.items():
        sizes.setdefault(axis, values[option])
    return sizes


def _shape(output: Output, sizes: Mapping[str, Any]) -> tuple[Any, ...] | None:
    """Return an output's shape, or None where its entries do not say it."""
    shape = []
    for entry in output.shape:
        if entry == "*":
            return None
        # Sizes divide without a remainder, and symbolic ones have no fractions.
        product, _, divisor = str(entry).partition("/")
        if unknown_names(product, sizes):
            return None
        size = evaluate(product, sizes)
        shape.append(size // int(divisor) if divisor else size)
    return tuple(shape)


def _dtype(output: Output, values: Mapping[str, Any]) -> Any:
    """Return an output's dtype: a name, that of an argument (``like x``), or the one that an option names."""
    if output.dtype.startswith("like "):
        return values[output.dtype.removeprefix("like ")].dtype
    return getattr(torch, values.get(output.dtype, output.dtype))
