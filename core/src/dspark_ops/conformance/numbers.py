"""Checking a function against a contract: every case, every output, and everything that must stay as it was."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dspark_ops._lazy import torch
from dspark_ops.conformance.compare import compare
from dspark_ops.conformance.guarded import GuardedTensor
from dspark_ops.contracts.exactness import Exactness, bitwise

if TYPE_CHECKING:
    from dspark_ops.contracts.contract import Contract, Output

Adapt = Callable[[Mapping[str, Any]], "Mapping[str, Any] | None"]


@dataclass(frozen=True, slots=True)
class Failure:
    """One thing that a function got wrong, with what is needed to see it again.

    Attributes:
        op: operator name.
        case: name of the case.
        seed: seed of the case generator.
        what: output or argument, and how it is wrong.
    """

    op: str
    case: str
    seed: int
    what: str

    def __str__(self) -> str:
        return f"{self.op}, case {self.case!r}, seed {self.seed}: {self.what}"


def check_numbers(
    contract: Contract,
    function: Callable[..., Any],
    device: str = "cpu",
    scale: str = "small",
    seed: int = 0,
    adapt: Adapt | None = None,
) -> list[Failure]:
    """Return everything that `function` gets wrong on the contract's cases; an empty list means none.

    Each case runs on copies of its inputs between guard elements. Checked are: every returned value and every written
    argument by its exactness against the reference (and against the case's own expected values), no change in any other
    argument, and none around or between the rows of any.

    An output that is exact *given another one* is held against the contract's rule for it; where the contract offers
    none, its dtype and shape are all that is checked. The same goes for outputs that are equal in law only.

    Args:
        contract: what the function claims to be.
        function: callable with the contract's signature; arguments are passed by position.
        device: device on which the function runs. The reference runs on the CPU.
        scale: ``small`` or ``model``.
        seed: seed of the case generator.
        adapt: gets a case's inputs and returns the ones to use instead, or None to leave the case out (outside the
            region that a kernel serves). If it leaves out every case, that is a failure too.
    """
    failures: list[Failure] = []
    ran = 0
    for case in contract.cases(scale, seed):
        inputs = case.inputs if adapt is None else adapt(case.inputs)
        if inputs is None:
            continue
        ran += 1
        expected = case.expected if inputs is case.inputs else {}
        failures += [
            Failure(contract.name, case.name, seed, what)
            for what in _check(contract, function, device, inputs, expected)
        ]
    if not ran:
        failures.append(Failure(contract.name, "none", seed, "no case was run: all of them were left out"))
    return failures


def _check(
    contract: Contract, function: Callable[..., Any], device: str, inputs: Mapping[str, Any], known: Mapping[str, Any]
) -> list[str]:
    written = {argument.name for argument in contract.arguments if argument.written}
    names = [parameter.name for parameter in contract.parameters if parameter.name in inputs]
    reference = {name: _plain_copy(inputs[name]) for name in names}
    wanted = _outputs(contract, contract.reference(**reference), reference, written)
    guarded = {
        name: GuardedTensor.copy_of(inputs[name], device) for name in names if isinstance(inputs[name], torch.Tensor)
    }
    arguments = {name: guarded[name].view if name in guarded else inputs[name] for name in names}
    try:
        returned = function(*_positional(contract, arguments))
    except Exception as error:  # whatever a kernel raises is a finding of this case, not the end of the check
        return [f"raised {type(error).__name__}: {error}"]
    try:
        got = _outputs(contract, returned, arguments, written)
    except ValueError as error:
        return [str(error)]
    problems = []
    for name, tensor in guarded.items():
        changed = tensor.changed(everywhere=name not in written)
        if changed and name not in written:
            problems.append(f"argument {name} is not written by contract, but {changed} of its elements changed")
        elif changed:
            problems.append(f"argument {name}: {changed} elements around it or between its rows changed")
    for output in contract.outputs:
        problems += _compare(contract, output, got, wanted, inputs, known)
    return problems


def _compare(
    contract: Contract,
    output: Output,
    got: Mapping[str, Any],
    wanted: Mapping[str, Any],
    inputs: Mapping[str, Any],
    known: Mapping[str, Any],
) -> list[str]:
    exact, target = output.exact, wanted[output.name]
    if exact.kind == "bitwise_given":
        shape = compare(got[output.name], target, Exactness("law"))
        if shape is not None or output.name not in contract.rules:
            return [] if shape is None else [f"output {output.name}: {shape}"]
        exact, target = bitwise(), contract.rules[output.name](inputs, got)
    problems = []
    mismatch = compare(got[output.name], target, exact, before=inputs.get(output.name))
    if mismatch is not None:
        problems.append(f"output {output.name}: {mismatch}")
    if output.name in known:
        mismatch = compare(got[output.name], known[output.name], exact, before=inputs.get(output.name))
        if mismatch is not None:
            problems.append(f"output {output.name} against the known values: {mismatch}")
    return problems


def _outputs(contract: Contract, returned: Any, arguments: Mapping[str, Any], written: set[str]) -> dict[str, Any]:
    """Return every output by name, on the CPU: what was returned, then what written arguments hold."""
    names = [output.name for output in contract.outputs if output.name not in written]
    values = list(returned) if isinstance(returned, tuple) else [returned]
    if not names:
        values = [] if values == [None] else values
    if len(values) != len(names):
        raise ValueError(f"returned {len(values)} values: wanted {len(names)} ({', '.join(names) or 'none'})")
    found = dict(zip(names, values, strict=True))
    found.update({name: arguments[name] for name in written if name in arguments})
    return {name: value.detach().cpu() if isinstance(value, torch.Tensor) else value for name, value in found.items()}


def _positional(contract: Contract, arguments: Mapping[str, Any]) -> list[Any]:
    return [arguments.get(parameter.name, parameter.default) for parameter in contract.parameters]


def _plain_copy(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    return GuardedTensor.copy_of(value, "cpu").view
