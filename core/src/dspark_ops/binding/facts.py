"""The facts of one call: axes, dtypes, stride forms, layouts and options, read from its tensors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from dspark_ops._lazy import torch
from dspark_ops.binding.arguments import Refused, check_kinds, check_sizes, check_values
from dspark_ops.contracts.contract import REQUIRED, Argument, Contract
from dspark_ops.selection.problem import Problem

if TYPE_CHECKING:
    from torch import Tensor

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

#: Name of the place that a case stands for.
SITE = "conformance"
#: From the strictest to the loosest; a tensor of one form is of every later form too.
STRIDE_FORMS = ("contiguous", "unit_last", "any")


def facts_of(contract: Contract, inputs: Mapping[str, Any], rules: Mapping[str, str] | None = None) -> Problem:
    """Return the problem that a call poses, with its row count among the axes.

    What a planner reads from a model's site is read here from the tensors themselves: an absent tensor counts with the
    contract's first dtype, and a rule such as ``nan`` has the contract's own choice unless `rules` names another.

    Args:
        contract: the operator.
        inputs: parameters by name; those that are left out have their defaults.
        rules: semantic rules that the caller asks for.
    """
    given = complete(contract, inputs)
    options = {option.name: given[option.name] for option in contract.options if given[option.name] is not REQUIRED}
    semantics = {semantic.name: semantic.default for semantic in contract.semantics}
    tensors = {name: value for name, value in given.items() if isinstance(value, torch.Tensor)}
    return Problem(
        operator=contract.name,
        site=SITE,
        axes=axes_of(contract, inputs),
        dtypes={
            argument.name: dtype_name(tensors[argument.name]) if argument.name in tensors else argument.dtypes[0]
            for argument in contract.arguments
        },
        strides={
            argument.name: stride_form(tensors[argument.name]) if argument.name in tensors else "contiguous"
            for argument in contract.arguments
        },
        layouts={argument.name: _layout(argument, options) for argument in contract.arguments if argument.layouts},
        options=options | semantics | dict(rules or {}),
    )


def axes_of(contract: Contract, inputs: Mapping[str, Any]) -> dict[str, int]:
    """Return the size of every axis that the tensors of a call determine; none where they contradict each other."""
    try:
        sizes = check_sizes(contract, complete(contract, inputs))
    except Refused:
        return {}
    return {name: int(size) for name, size in sizes.items() if name in contract.axes}


def outside(contract: Contract, inputs: Mapping[str, Any]) -> str:
    """Return how a call breaks its contract by kind, size or value, or an empty text if no check finds that."""
    given = complete(contract, inputs)
    try:
        check_kinds(contract, given, None)
        check_values(contract, given, check_sizes(contract, given))
    except Refused as refused:
        return str(refused)
    return ""


def complete(contract: Contract, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the value of every parameter, in order."""
    return {parameter.name: inputs.get(parameter.name, parameter.default) for parameter in contract.parameters}


def rows_of_inputs(contract: Contract, inputs: Mapping[str, Any]) -> int:
    """Return the row count of a call."""
    index, dimension = contract.rows_from
    return int(inputs[contract.parameters[index].name].shape[dimension])


def stride_form(tensor: Tensor) -> str:
    """Return the strictest of ``contiguous``, ``unit_last`` and ``any`` that describes a tensor."""
    if tensor.is_contiguous():
        return "contiguous"
    return "unit_last" if tensor.dim() == 0 or tensor.shape[-1] <= 1 or tensor.stride(-1) == 1 else "any"


def dtype_name(tensor: Tensor) -> str:
    """Return a tensor's dtype as contracts write it."""
    return str(tensor.dtype).removeprefix("torch.")


def _layout(argument: Argument, options: Mapping[str, Any]) -> str:
    """Return the layout that the options name for an argument: its own option, else the one of all.

    An argument's own option has the argument's name or the word before the noun: ``extra_layout`` for ``extra_cache``.
    """
    for name in (f"{argument.name}_layout", f"{argument.name.rpartition('_')[0]}_layout", "layout"):
        if options.get(name) in argument.layouts:
            return str(options[name])
    return argument.layouts[0]
