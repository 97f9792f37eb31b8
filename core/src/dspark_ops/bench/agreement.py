"""Whether a call computes what its contract says, looked at once before it is timed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from dspark_ops._lazy import torch
from dspark_ops.conformance.compare import compare
from dspark_ops.conformance.numbers import outputs_of, reference_outputs
from dspark_ops.contracts.contract import Contract
from dspark_ops.contracts.exactness import Exactness, bitwise

__all__ = ["Wanted", "called_once", "disagreement"]

Outputs = Mapping[str, Any]


class Wanted:
    """The outputs of a call's reference: computed where the inputs are, and on the CPU only where that is in doubt.

    References accumulate in float64, so that a GPU gives their results too, and far sooner for large calls. The CPU's
    count: an output that differs from the GPU's is compared with them before it is called wrong.
    """

    def __init__(self, contract: Contract, inputs: Mapping[str, Any]) -> None:
        self._contract, self._inputs = contract, inputs
        given = {name: _copied(value, None) for name, value in inputs.items()}
        self.outputs = outputs_of(contract, contract.reference(**given), given)
        self._on_cpu: dict[str, Any] | None = None

    def disagreement(self, got: Outputs, accuracy: Mapping[str, Exactness] | None = None) -> str:
        """Return how outputs differ from the reference's, see `disagreement`."""
        wrong = disagreement(self._contract, self._inputs, got, self.outputs, accuracy)
        if not wrong:
            return ""
        if self._on_cpu is None:
            inputs = {name: _copied(value, "cpu") for name, value in self._inputs.items()}
            self._on_cpu = reference_outputs(self._contract, inputs)
        return disagreement(self._contract, self._inputs, got, self._on_cpu, accuracy)


def called_once(
    contract: Contract,
    prepare: Callable[[Mapping[str, Any]], Callable[[], Any]],
    inputs: Mapping[str, Any],
    read: Callable[[Any, Mapping[str, Any]], Outputs] | None = None,
) -> dict[str, Any]:
    """Return the outputs by name, on the CPU, of one call on copies of the inputs.

    Args:
        contract: the operator.
        prepare: gets the inputs and returns the call.
        inputs: parameters by name; none is changed.
        read: gets what the call returned and its inputs, and returns outputs by name; None: as the contract says.
    """
    given = {name: _copied(value, None) for name, value in inputs.items()}
    returned = prepare(given)()
    if read is None:
        return outputs_of(contract, returned, given)
    found = read(returned, given)
    return {name: value.detach().cpu() if isinstance(value, torch.Tensor) else value for name, value in found.items()}


def disagreement(
    contract: Contract,
    inputs: Mapping[str, Any],
    got: Outputs,
    wanted: Outputs,
    accuracy: Mapping[str, Exactness] | None = None,
) -> str:
    """Return how outputs differ from the reference's beyond their bounds, or an empty text.

    Args:
        contract: the operator.
        inputs: parameters before the call.
        got: outputs by name; those that are absent are not compared.
        wanted: the reference's.
        accuracy: bounds that replace the contract's, by output.
    """
    before = {name: _copied(value, "cpu") for name, value in inputs.items()}
    found = []
    for output in contract.outputs:
        name = output.name
        if name not in got:
            continue
        exact, target = (accuracy or {}).get(name, output.exact), wanted.get(name)
        if exact.kind == "bitwise_given":
            if name not in contract.rules or exact.given not in got:
                continue
            exact, target = bitwise(), contract.rules[name](before, got)
        mismatch = compare(got[name], target, exact, before=before.get(name))
        if mismatch is not None:
            found.append(f"{name}: {mismatch}")
    return "; ".join(found)


def _copied(value: Any, device: str | None) -> Any:
    """Return a copy of a tensor that keeps its strides, on `device` or its own."""
    if not isinstance(value, torch.Tensor):
        return value
    if value.is_contiguous() or value.numel() == 0:
        return value.detach().to(device or value.device, copy=True)
    span = 1 + sum((size - 1) * stride for size, stride in zip(value.shape, value.stride(), strict=True))
    flat = value.as_strided((span,), (1,)).detach().to(device or value.device, copy=True)
    return flat.as_strided(value.shape, value.stride())
