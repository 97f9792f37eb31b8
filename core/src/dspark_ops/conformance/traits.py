"""Traits: what a kernel promises beyond its numbers, checked by calling it again, alone, and in a captured graph."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from dspark_ops._lazy import torch
from dspark_ops.binding.facts import dtype_name, rows_of_inputs
from dspark_ops.conformance.failure import Failure, Finding
from dspark_ops.conformance.numbers import outputs_of
from dspark_ops.conformance.reshape import by_rows
from dspark_ops.conformance.subject import Subject
from dspark_ops.conformance.variations import rows_are_independent, same_bits
from dspark_ops.contracts.contract import Case, Contract
from dspark_ops.errors import BindingError, EvidenceError

__all__ = ["NEEDS_GPU", "Harness", "Traits", "check_traits"]

NEEDS_GPU = "needs a GPU"
_CASES = 4
_RUNS = 3
_ALONE = 9  # rows: a kernel that treats the last row of a tile differently shows it within two tiles of eight

Function = Callable[..., Any]
Call = Callable[[], Any]


class Harness(Protocol):
    """What captures and watches calls. The real one is `dspark_ops.conformance.graphs.CudaHarness`."""

    def capture(self, call: Call) -> tuple[Any, Call]:
        """Return what a captured call returned and what replays it; raise where it synchronises with the host."""

    def allocations(self, call: Call) -> tuple[Any, int]:
        """Return what a call returned and how many allocations it made."""

    def unsynchronised(self, call: Call) -> Any:
        """Return what a call returned; raise where it synchronises with the host."""


@dataclass(slots=True)
class Traits:
    """What the check of a kernel's traits found.

    Attributes:
        failures: what is wrong.
        checks: how many calls were compared.
        not_run: trait and why it was not checked.
    """

    failures: list[Failure] = field(default_factory=list)
    checks: int = 0
    not_run: list[str] = field(default_factory=list)


def check_traits(subject: Subject, cases: list[Case], other: list[Case], seed: int, harness: Harness | None) -> Traits:
    """Return what is wrong with a kernel's promises.

    ``deterministic``: three calls give equal bits. ``batch_invariant``: a row alone gives the bits that it has among
    the others, where the reference itself does that. ``graph_safe``: a call is captured, and three replays with changed
    inputs equal calls; it does not wait for the device, and allocates nothing but its outputs.

    Args:
        subject: a kernel that can run here.
        cases: the contract's cases that lie in its region.
        other: the same cases of another seed, which give the changed inputs.
        seed: seed of `cases`.
        harness: captures graphs; None where there is no GPU.
    """
    found = Traits()
    traits = subject.registered.kernel.traits
    checks: list[tuple[str, bool, Any]] = [
        ("deterministic", traits.deterministic, _deterministic),
        ("batch_invariant", traits.batch_invariant, _batch_invariant),
    ]
    for name, claimed, check in checks:
        if not claimed:
            found.not_run.append(f"{name}: not claimed")
            continue
        ran = 0
        for case in _few(subject.contract, cases, several_rows=name == "batch_invariant"):
            ran += _collect(found, subject, case, seed, name, check(subject, case))
        if not ran:
            found.not_run.append(f"{name}: no case of the contract is fit for it")
    if not traits.graph_safe:
        found.not_run.append("graph_safe: not claimed")
    elif harness is None:
        found.not_run.append(f"graph_safe (replays, host sync, allocations): {NEEDS_GPU}")
    else:
        for case in _few(subject.contract, cases, several_rows=False):
            twins = [twin for twin in other if twin.name == case.name]
            _collect(found, subject, case, seed, "graph_safe", _graph_safe(subject, case, twins, harness))
    return found


def _few(contract: Contract, cases: list[Case], several_rows: bool) -> list[Case]:
    """Return a few cases of different shapes, the smaller ones first where a call per row is made."""
    shapes: dict[str, Case] = {}
    for case in cases:
        rows = rows_of_inputs(contract, case.inputs)
        if rows and (not several_rows or 2 <= rows <= _ALONE):
            key = repr([tuple(v.shape) if isinstance(v, torch.Tensor) else v for v in case.inputs.values()])
            shapes.setdefault(key, case)
    chosen = list(shapes.values())
    return chosen[:: max(len(chosen) // _CASES, 1)][:_CASES]


def _collect(
    found: Traits, subject: Subject, case: Case, seed: int, trait: str, problems: Iterator[Finding] | None
) -> bool:
    """Take over what one check found in one case; False where the case is not fit for the check."""
    findings: list[Finding] = []
    try:
        if problems is None:
            return False
        findings = list(problems)
    except torch.AcceleratorError as error:
        raise EvidenceError(f"{subject.id}: the accelerator failed in case {case.name!r}: {error}") from error
    except (Exception, BindingError) as error:  # whatever a kernel raises is a finding
        findings = [Finding(f"raised {type(error).__name__}: {error}")]
    found.checks += 1
    for finding in findings:
        what = Finding(f"{trait}: {finding.what}", finding.output, finding.index, finding.wanted, finding.got)
        found.failures.append(Failure.of(subject.contract.name, case.name, seed, what))
    return True


def _deterministic(subject: Subject, case: Case) -> Iterator[Finding]:
    runs = [_call(subject, _on(subject, case.inputs)) for _ in range(_RUNS)]
    for number, run in enumerate(runs[1:], start=2):
        yield from _differences(runs[0], run, f"run {number} differs from run 1 on equal inputs")


def _batch_invariant(subject: Subject, case: Case) -> Iterator[Finding] | None:
    if not rows_are_independent(subject.contract, case.inputs):
        return None

    def compare() -> Iterator[Finding]:
        together = _call(subject, _on(subject, case.inputs))
        shared = _on(subject, case.inputs)
        alone = by_rows(subject.contract, lambda part: _call(subject, part, like=case.inputs), shared)
        yield from _differences(together, alone or {}, "a row alone differs from the same row among others")

    return compare()


def _graph_safe(subject: Subject, case: Case, twins: list[Case], harness: Harness) -> Iterator[Finding]:
    contract = subject.contract
    function = subject.function(case.inputs)
    static = _on(subject, case.inputs)
    positional = [static.get(parameter.name, parameter.default) for parameter in contract.parameters]

    def call() -> Any:
        return function(*positional)

    call()  # what is compiled or kept at the first call
    try:
        returned, count = harness.allocations(call)
        owned = _storages(returned)
        if count > owned:
            yield Finding(f"{count} allocations for {owned} returned tensors")
        harness.unsynchronised(call)
        held, replay = harness.capture(call)
    except torch.AcceleratorError:
        raise
    except Exception as error:  # a host sync or whatever cannot be captured
        yield Finding(f"cannot be captured: {type(error).__name__}: {error}")
        return
    for number, inputs in enumerate(_changed_inputs(case, twins), start=1):
        for name, value in static.items():
            if isinstance(value, torch.Tensor):
                value.copy_(inputs[name])
        replay()
        # A replay overwrites its outputs, so they are copied before anything else runs.
        got = {name: _copy(value) for name, value in outputs_of(contract, held, static).items()}
        wanted = _call(subject, _on(subject, inputs))
        yield from _differences(wanted, got, f"replay {number} differs from a call with the same changed inputs")


def _changed_inputs(case: Case, twins: list[Case]) -> Iterator[Mapping[str, Any]]:
    """Yield three inputs of the same shapes and options: another seed's, floats in another order, the captured ones."""
    rolled = {name: _rolled(value) for name, value in case.inputs.items()}
    same = [twin.inputs for twin in twins if _alike(case.inputs, twin.inputs)]
    yield from (same[0] if same else case.inputs, rolled, case.inputs)


def _rolled(value: Any) -> Any:
    """Return floats with their first dimension turned by one; ids and lengths keep their places and stay valid."""
    floats = isinstance(value, torch.Tensor) and value.is_floating_point() and value.dim() > 0
    return value.roll(1, 0) if floats else value


def _alike(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    if one.keys() != other.keys():
        return False
    for name, value in one.items():
        twin = other[name]
        if isinstance(value, torch.Tensor):
            if not isinstance(twin, torch.Tensor) or (value.shape, value.dtype) != (twin.shape, twin.dtype):
                return False
        elif value != twin:
            return False
    return True


def _call(subject: Subject, inputs: Mapping[str, Any], like: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return the outputs of one call on the subject's device, as copies.

    Args:
        subject: the kernel.
        inputs: on its device.
        like: inputs whose facts decide what is bound; by default `inputs`. A row alone is called through what serves
            the whole batch, as an engine would.
    """
    contract = subject.contract
    function = subject.function(like or inputs)
    returned = function(*[inputs.get(parameter.name, parameter.default) for parameter in contract.parameters])
    return {name: _copy(value) for name, value in outputs_of(contract, returned, inputs).items()}


def _on(subject: Subject, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return copies of inputs on the subject's device, with their strides."""

    def moved(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        made = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=subject.place)
        return made.copy_(value)

    return {name: moved(value) for name, value in inputs.items()}


def _copy(value: Any) -> Any:
    return value.clone() if isinstance(value, torch.Tensor) else value


def _storages(returned: Any) -> int:
    values = returned if isinstance(returned, tuple) else (returned,)
    tensors = [value for value in values if isinstance(value, torch.Tensor) and value.numel()]
    return len({value.untyped_storage().data_ptr() for value in tensors})


def _differences(wanted: Mapping[str, Any], got: Mapping[str, Any], text: str) -> Iterator[Finding]:
    from dspark_ops.conformance.compare import compare
    from dspark_ops.contracts.exactness import bitwise

    for name in got:
        if not same_bits(got[name], wanted[name]):
            mismatch = compare(got[name], wanted[name], bitwise())
            if mismatch is not None:
                yield Finding(
                    f"{text}: output {name} ({dtype_name(wanted[name])}): {mismatch}",
                    name, mismatch.index, mismatch.wanted, mismatch.got,
                )  # fmt: skip
