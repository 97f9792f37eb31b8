"""What a call costs whatever the device: launches, and the bytes that any implementation has to move."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from dspark_ops._lazy import torch
from dspark_ops.conformance.prepared import launches_of_call
from dspark_ops.contracts.contract import Contract
from dspark_ops.selection.device import Device
from dspark_ops.selection.problem import Problem

__all__ = ["static_cost"]


def static_cost(
    function: Callable[..., Any], contract: Contract, problem: Problem, device: Device, rows: int
) -> dict[str, int] | None:
    """Return the launches, programs and bytes of one call at a place of the model, or None without an input for it.

    The input is the contract's first one at the model's scale with the wanted rows and the place's sizes. Bytes are
    those of the arguments and results: what is read twice counts once, and what an index leaves out counts too, so that
    the figure is right for operators that read all they are given, and an upper bound for gathers and stores to pages.

    Args:
        function: the kernel, or what its preparation returned.
        contract: its operator.
        problem: the place.
        device: the planned device.
        rows: rows of the call.
    """
    inputs = _input_of(contract, problem, rows)
    if inputs is None:
        return None
    launches = launches_of_call(function, device, inputs)
    programs = 0
    for launch in launches:
        count = 1
        for size in launch.grid:
            count *= size
        programs = max(programs, count)
    sizes = [value.numel() * value.element_size() for value in inputs.values() if isinstance(value, torch.Tensor)]
    return {"launches": len(launches), "programs": programs, "bytes of the arguments": sum(sizes)}


def _input_of(contract: Contract, problem: Problem, rows: int) -> Mapping[str, Any] | None:
    index, dimension = contract.rows_from
    first = contract.parameters[index].name
    for case in contract.cases("model", 0):
        given = case.inputs[first]
        if isinstance(given, torch.Tensor) and given.shape[dimension] == rows and _fits(contract, problem, case.inputs):
            return case.inputs
    return None


def _fits(contract: Contract, problem: Problem, inputs: Mapping[str, Any]) -> bool:
    for argument in contract.arguments:
        value = inputs.get(argument.name)
        if value is None:
            continue
        for symbol, size in zip(argument.shape, value.shape, strict=False):
            if isinstance(symbol, str) and symbol in problem.axes and problem.axes[symbol] != size:
                return False
    return True
