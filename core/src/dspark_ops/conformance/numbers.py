"""Checking a function against a contract: every case, every output, and everything that must stay as it was."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from dspark_ops._lazy import torch
from dspark_ops.conformance.compare import compare
from dspark_ops.conformance.failure import Failure, Finding
from dspark_ops.conformance.guarded import GuardedTensor
from dspark_ops.contracts.exactness import Exactness, bitwise
from dspark_ops.errors import EvidenceError

if TYPE_CHECKING:
    from dspark_ops.contracts.contract import Contract, Output

__all__ = ["Adapt", "Failure", "check_case", "check_numbers", "counted_rows", "outputs_of", "reference_outputs"]

Adapt = Callable[[Mapping[str, Any]], "Mapping[str, Any] | None"]


def check_numbers(
    contract: Contract,
    function: Callable[..., Any],
    device: str = "cpu",
    scale: str = "small",
    seed: int = 0,
    adapt: Adapt | None = None,
) -> list[Failure]:
    """Return everything that `function` gets wrong on the contract's cases; an empty list means none.

    See `check_case` for what is looked at.

    Args:
        contract: what the function claims to be.
        function: callable with the contract's signature; arguments are passed by position.
        device: device on which the function runs. The reference runs on the CPU.
        scale: ``small`` or ``model``.
        seed: seed of the case generator.
        adapt: gets a case's inputs and returns the ones to use instead, or None to leave the case out (outside the
            region that a kernel serves). If it leaves out every case, that is a failure too.

    Raises:
        EvidenceError: the accelerator failed and can run nothing more.
    """
    failures: list[Failure] = []
    ran = 0
    for case in contract.cases(scale, seed):
        inputs = case.inputs if adapt is None else adapt(case.inputs)
        if inputs is None:
            continue
        ran += 1
        known = case.expected if inputs is case.inputs else {}
        findings = check_case(contract, function, device, inputs, known)
        failures += [Failure.of(contract.name, case.name, seed, finding) for finding in findings]
    if not ran:
        failures.append(Failure(contract.name, "none", seed, "no case was run: all of them were left out"))
    return failures


def check_case(
    contract: Contract,
    function: Callable[..., Any],
    device: str,
    inputs: Mapping[str, Any],
    known: Mapping[str, Any] | None = None,
    rows: Any = None,
) -> list[Finding]:
    """Return everything that one call of `function` gets wrong.

    The call runs on copies of its inputs between guard elements, and memory that it allocates through torch holds a
    pattern before it is written. Checked are: every returned value and every written argument by its exactness against
    the reference (and against known values), that every element of a returned tensor was written, no change in any
    other argument, and none around or between the rows of any.

    An output that is exact *given another one* is held against the contract's rule for it; where the contract offers
    none, its dtype and shape are all that is checked. The same goes for outputs that are equal in law only.

    Args:
        contract: what the function claims to be.
        function: callable with the contract's signature.
        device: device on which it runs.
        inputs: parameters by name, tensors on the CPU.
        known: outputs by name that are known without the reference.
        rows: mask of the rows that count, where others are padding whose results are free; None: all.

    Raises:
        EvidenceError: the accelerator failed and can run nothing more.
    """
    from dspark_ops.conformance.poison import PATTERNS, holding, unwritten

    wanted = reference_outputs(contract, inputs)
    written = _written(contract)
    try:
        got, guarded = _run(contract, function, device, inputs, PATTERNS[0])
        findings = _changes(guarded, written)
        own = {name: value for name, value in got.items() if name not in written}
        missing: dict[str, Any] = {}
        if any(isinstance(value, torch.Tensor) and holding(value, PATTERNS[0]).any() for value in own.values()):
            again, _ = _run(contract, function, device, inputs, PATTERNS[1])
            missing = _owed(contract, inputs, wanted, unwritten(own, again), (got, again))
    except _CallError as error:
        return [Finding(str(error))]
    for name, place in missing.items():
        index = tuple(place.nonzero()[0].tolist())
        count = f"{int(place.sum())} of {place.numel()} elements were never written"
        findings.append(Finding(f"output {name}: {count}, the first at {list(index)}", name, index))
    for output in contract.outputs:
        if output.name not in missing:
            findings += _compare(contract, output, got, wanted, inputs, known or {}, rows)
    return findings


def reference_outputs(contract: Contract, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return every output of the reference by name; `inputs` are not changed."""
    given = {name: _plain_copy(value) for name, value in inputs.items()}
    returned = contract.reference(**given)
    return outputs_of(contract, returned, given)


def outputs_of(contract: Contract, returned: Any, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return every output by name, on the CPU: what was returned, then what written arguments hold.

    Raises:
        ValueError: another number of values was returned than the contract has.
    """
    written = _written(contract)
    names = [output.name for output in contract.outputs if output.name not in written]
    values = list(returned) if isinstance(returned, tuple) else [returned]
    if not names:
        values = [] if values == [None] else values
    if len(values) != len(names):
        raise ValueError(f"returned {len(values)} values: wanted {len(names)} ({', '.join(names) or 'none'})")
    found = dict(zip(names, values, strict=True))
    found.update({name: arguments[name] for name in written if name in arguments})
    return {name: value.detach().cpu() if isinstance(value, torch.Tensor) else value for name, value in found.items()}


class _CallError(Exception):
    """A call raised or returned something else than outputs; the text says what."""


def _run(
    contract: Contract, function: Callable[..., Any], device: str, inputs: Mapping[str, Any], byte: int
) -> tuple[dict[str, Any], dict[str, GuardedTensor]]:
    """Return the outputs of one call and its guarded arguments."""
    from dspark_ops.conformance.poison import Poison

    guarded = {
        name: GuardedTensor.copy_of(value, device) for name, value in inputs.items() if isinstance(value, torch.Tensor)
    }
    arguments = {name: guarded[name].view if name in guarded else value for name, value in inputs.items()}
    positional = [arguments.get(parameter.name, parameter.default) for parameter in contract.parameters]
    try:
        with Poison(byte):
            returned = function(*positional)
        if device != "cpu":
            torch.cuda.synchronize()  # so that what fails late is found in the call that caused it
    except torch.AcceleratorError as error:
        raise EvidenceError(
            f"{contract.name}: the accelerator failed and can run nothing more in this process: {error}"
        ) from error
    except Exception as error:  # whatever a kernel raises is a finding of this case, not the end of the check
        raise _CallError(f"raised {type(error).__name__}: {error}") from error
    try:
        return outputs_of(contract, returned, arguments), guarded
    except ValueError as error:
        raise _CallError(str(error)) from error


def _changes(guarded: Mapping[str, GuardedTensor], written: set[str]) -> list[Finding]:
    findings = []
    for name, tensor in guarded.items():
        changed = tensor.changed(everywhere=name not in written)
        if changed and name not in written:
            what = f"argument {name} is not written by contract, but {changed} of its elements changed"
            findings.append(Finding(what))
        elif changed:
            findings.append(Finding(f"argument {name}: {changed} elements around it or between its rows changed"))
    return findings


def _owed(
    contract: Contract,
    inputs: Mapping[str, Any],
    wanted: Mapping[str, Any],
    unwritten: Mapping[str, Any],
    runs: Sequence[Mapping[str, Any]],
) -> dict[str, Any]:
    """Return the unwritten elements that the contract defines: where its rule gives back what is there, it is free."""
    owed = {}
    for name, place in unwritten.items():
        rule = contract.rules.get(name)
        if rule is not None and all(run[name].shape == wanted[name].shape for run in runs):
            free = [rule(inputs, run).to(run[name].dtype) == run[name] for run in runs]
            place = place & ~torch.stack(free).all(0)
        if place.any():
            owed[name] = place
    return owed


def _compare(
    contract: Contract,
    output: Output,
    got: Mapping[str, Any],
    wanted: Mapping[str, Any],
    inputs: Mapping[str, Any],
    known: Mapping[str, Any],
    rows: Any,
) -> list[Finding]:
    name, exact, target = output.name, output.exact, wanted.get(output.name)
    if exact.kind == "bitwise_given":
        shape = compare(got.get(name), target, Exactness("law"))
        if shape is not None or name not in contract.rules:
            return [] if shape is None else [Finding.of_output(name, shape)]
        exact, target = bitwise(), contract.rules[name](inputs, got)
    findings = []
    value, before = got.get(name), inputs.get(name)
    if rows is not None:
        value, target = (counted_rows(contract, output, one, rows) for one in (value, target))
        before = None
    mismatch = compare(value, target, exact, before=before)
    if mismatch is not None:
        findings.append(Finding.of_output(name, mismatch))
    if name in known:
        mismatch = compare(value, known[name], exact, before=before)
        if mismatch is not None:
            findings.append(Finding.of_output(name, mismatch, " against the known values"))
    return findings


def counted_rows(contract: Contract, output: Output, value: Any, rows: Any) -> Any:
    """Return the rows of an output that are not padding; an output without rows counts as a whole."""
    from dspark_ops.conformance.reshape import row_dimension

    dimension = row_dimension(contract, output.shape)
    if dimension is None or not isinstance(value, torch.Tensor) or value.shape[dimension] % len(rows):
        return value
    per_row = value.shape[dimension] // len(rows)
    return value.index_select(dimension, rows.repeat_interleave(per_row).nonzero().squeeze(1))


def _written(contract: Contract) -> set[str]:
    return {argument.name for argument in contract.arguments if argument.written}


def _plain_copy(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    return GuardedTensor.copy_of(value, "cpu").view
