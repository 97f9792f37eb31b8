"""Was the treatment really applied? What the dispatch evidence of two arms says (C4.4, R4.8)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from dspark_ops import contracts
from dspark_ops.bench.fingerprint import differing_fields
from dspark_ops.bench.pairing import measured
from dspark_ops.bench.record import ArmRecord, Launch
from dspark_ops.selection.candidate import CORE

__all__ = ["TreatmentEvidence", "treatment_evidence"]

Calls = Mapping[tuple[str, str], int]


@dataclass(frozen=True, slots=True)
class TreatmentEvidence:
    """What the calls of two arms show.

    Attributes:
        treated: operators that the arms serve with different kernels, called in this workload: operator, kernel of A,
            kernel of B.
        faults: why the comparison compares nothing, or not what it says.
        not_shown: what the evidence leaves open.
    """

    treated: tuple[tuple[str, str, str], ...]
    faults: tuple[str, ...]
    not_shown: tuple[str, ...]


def treatment_evidence(
    first: ArmRecord, second: ArmRecord, launches: tuple[Sequence[Launch], Sequence[Launch]]
) -> TreatmentEvidence:
    """Return what the dispatch evidence of two arms says, given their launches that count."""
    if not all(launches):
        return TreatmentEvidence((), (), ())
    faults: list[str] = []
    open_: list[str] = []
    tables = [_calls(group) for group in launches]
    for record, table in zip((first, second), tables, strict=True):
        if table is None:
            open_.append(
                f"which kernels arm {record.arm.value} called: its command printed no dispatch evidence, so a fallback "
                "cannot be told from the kernel"
            )
        faults += _unmet(record, table)
    faults += _not_knocked_out(launches[1])
    a, b = tables
    if a is None or b is None:
        return TreatmentEvidence((), tuple(faults), tuple(open_))
    if set(a) == set(b) and set(_kinds(first, second)) == {"config"}:
        faults.append(
            "both configurations chose the same kernels everywhere: there is no difference to measure; see  dspark-ops "
            "explain OPERATOR --config FILE"
        )
    faults += _not_called(first.arm.value, a, b)
    faults += _not_called(second.arm.value, b, a)
    treated = tuple(_treated(a, b))
    faults += _unequal_acceptance(first, second, launches, treated)
    unreached = sorted({operator for operator, _ in set(a) ^ set(b)} - {name for name, _, _ in treated})
    if unreached and not faults:
        open_.append(f"{', '.join(unreached)}: served by different kernels, and never called by this workload")
    return TreatmentEvidence(treated, tuple(faults), tuple(open_))


def _calls(launches: Sequence[Launch]) -> dict[tuple[str, str], int] | None:
    """Return the fewest calls that any launch counted, by operator and kernel; None if a launch has no evidence."""
    table: dict[tuple[str, str], int] = {}
    for launch in launches:
        served = measured(launch).dispatch
        if served is None:
            return None
        for item in served:
            key = (item.operator, item.kernel)
            table[key] = min(table.get(key, item.calls), item.calls)
    return table


def _not_called(arm: str, own: Calls, other: Calls) -> Iterator[str]:
    """Yield a fault for kernels that only one arm has and that were not called, unless no arm calls the operator.

    What the other arm calls as parts of a fused operator is no call of the part: one kernel may stand for them all.
    """
    alone = {key: calls for key, calls in own.items() if key not in other}
    for (operator, kernel), calls in alone.items():
        if not calls and (_calls_by_itself(operator, other) > 0 or not any(alone.values())):
            yield (
                f"arm {arm}: {kernel}, which only this arm chose, was called 0 times: the arms do not differ where "
                f"they were measured; use a workload that calls {operator}"
            )


def _calls_by_itself(operator: str, table: Calls) -> int:
    """Return how often an operator was called, but for the calls that composed operators made of it as their part."""
    total = sum(calls for (name, _), calls in table.items() if name == operator)
    for (whole, kernel), calls in table.items():
        if kernel == f"{CORE}/{whole}/composed" and whole in contracts.names():
            decomposition = contracts.get(whole).decomposition
            total -= calls * (decomposition.parts.count(operator) if decomposition else 0)
    return total


def _not_knocked_out(launches: Sequence[Launch]) -> Iterator[str]:
    for operator in sorted({measured(item).ceiling for item in launches} - {""}):
        calls = [served.calls for item in launches for served in measured(item).dispatch or ()
                 if served.operator == operator]  # fmt: skip
        if not any(calls):
            yield f"arm B: {operator}, which was to be taken out, was called 0 times: the workload does not need it"


def _treated(first: Calls, second: Calls) -> Iterator[tuple[str, str, str]]:
    called = [{key for key, calls in table.items() if calls} for table in (first, second)]
    for operator in sorted({name for name, _ in called[0] ^ called[1]}):
        kernels = [", ".join(sorted(kernel for name, kernel in side if name == operator)) or "-" for side in called]
        yield operator, kernels[0], kernels[1]


def _unequal_acceptance(
    first: ArmRecord,
    second: ArmRecord,
    launches: tuple[Sequence[Launch], Sequence[Launch]],
    treated: Sequence[tuple[str, str, str]],
) -> Iterator[str]:
    """Yield a fault where kernels that must agree to the bit are the treatment, and accept lengths differ (R4.13)."""
    exact = {
        served.operator: served.bitwise for group in launches for item in group
        for served in measured(item).dispatch or ()
    }  # fmt: skip
    operators = [name for name, _, _ in treated]
    alone = set(_kinds(first, second)) == {"config"}
    if not operators or not alone or not all(exact.get(name) for name in operators):
        return
    found = [{tuple(sorted(measured(item).histogram.items())) for item in group} for group in launches]
    if len(found[0] | found[1]) > 1:
        yield (
            f"accept lengths differ between launches, and all that the arms serve differently is exact to the bit "
            f"({', '.join(operators)}): a kernel is wrong, or the runs are not the same; see  dspark-ops check"
        )


def _unmet(record: ArmRecord, table: Calls | None) -> Iterator[str]:
    for pattern in record.expected:
        calls = sum(count for (_, kernel), count in (table or {}).items() if fnmatchcase(kernel, pattern))
        if not calls:
            shown = "called 0 times" if table is not None else "not shown to be called: there is no dispatch evidence"
            yield f"arm {record.arm.value}: {pattern} was expected and {shown}"


def _kinds(first: ArmRecord, second: ArmRecord) -> Iterator[str]:
    for name in differing_fields(first.treatment, second.treatment):
        yield name.partition(".")[0]
