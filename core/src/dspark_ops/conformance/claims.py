"""Claims: a kernel's region at its borders, and whether its target runs where the region says that it does."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from dspark_ops import contracts
from dspark_ops.api.arch import Arch
from dspark_ops.api.region import Constraint
from dspark_ops.conformance.borders import CODES, Border, borders, changed, satisfied
from dspark_ops.conformance.failure import Failure, Finding
from dspark_ops.conformance.subject import Subject
from dspark_ops.contracts.contract import Case
from dspark_ops.errors import BindingError
from dspark_ops.selection.catalogue import catalogue
from dspark_ops.selection.device import Device
from dspark_ops.selection.problem import Problem
from dspark_ops.selection.requirements import requirement_reasons

__all__ = ["Claims", "check_claims"]

_MODEL = "deepseek-v4.1-flash/tp4"
_ROWS = 6


@dataclass(slots=True)
class Claims:
    """What the check of a kernel's claims found.

    Attributes:
        failures: what is wrong.
        points: how many points were evaluated.
        not_covered: what was not looked at, and why.
        base: facts that the whole region admits, if any were found.
    """

    failures: list[Failure] = field(default_factory=list)
    points: int = 0
    not_covered: list[str] = field(default_factory=list)
    base: Problem | None = None


def check_claims(subject: Subject, cases: list[Case], seed: int) -> Claims:
    """Return what is wrong with a kernel's claims, without running it.

    Looked at are: that its target and preparation can be imported and have the contract's signature (where the kernel
    can run); the architectures of the catalogue, each accepted or refused with its reason; that facts exist which its
    whole region admits; and for each constraint the values just inside (eligible) and just outside (refused, with the
    constraint's reason code and field).

    Args:
        subject: the kernel.
        cases: the contract's cases, whose facts are tried where no place of the model lies in the region.
        seed: seed of the cases.
    """
    claims = Claims()

    def fail(case: str, what: str) -> None:
        claims.failures.append(Failure.of(subject.contract.name, case, seed, Finding(what)))

    if subject.place:
        try:
            subject.target()
        except BindingError as error:
            fail("target", str(error))
    for name, what in _architectures(subject, claims):
        fail(name, what)
    region = _region(subject)
    claims.base = _base(subject, cases, region)
    if claims.base is None:
        fail("region", f"no facts were found that the whole region admits: {'; '.join(item.text for item in region)}")
        return claims
    for constraint in region:
        points = list(borders(constraint, subject.contract, claims.base))
        if not points:
            claims.not_covered.append(f"borders of {constraint.text!r}: its test {constraint.test!r} is not known")
        for border in points:
            claims.points += 1
            what = _wrong_at(subject, region, border, claims)
            if what:
                fail(border.name, what)
    return claims


def _region(subject: Subject) -> tuple[Constraint, ...]:
    return tuple(item for item in subject.registered.kernel.region if isinstance(item, Constraint))


def _wrong_at(subject: Subject, region: tuple[Constraint, ...], border: Border, claims: Claims) -> str:
    """Return what is wrong with the verdict at one border, or an empty text."""
    base = claims.base
    if base is None:
        return ""
    problem = changed(base, border.constraint, border.value)
    reasons = subject.refusals(problem)
    if not border.inside:
        wanted, subject_name = CODES[border.constraint.kind], border.constraint.subject
        # Two constraints may speak of one subject: a value outside of one may be what the other refuses first.
        if any(reason.code == wanted and reason.field == subject_name for reason in reasons):
            return ""
        given = "; ".join(map(str, reasons)) or "eligible"
        return f"wanted it refused with {wanted.value} {subject_name}, got {given}"
    if not reasons:
        return ""
    others = tuple(item for item in region if item is not border.constraint)
    repaired = satisfied(others, subject.contract, problem, subject.refusals)
    if repaired is not None and border.constraint.check(repaired) is None:
        return ""
    mine = [reason for reason in reasons if reason.field == border.constraint.subject]
    if any(border.constraint.check(problem) == reason for reason in mine):
        return f"wanted it eligible, got {'; '.join(map(str, mine))}"
    claims.not_covered.append(f"{border.name}: the rest of the region excludes it ({reasons[0]})")
    return ""


def _base(subject: Subject, cases: list[Case], region: tuple[Constraint, ...]) -> Problem | None:
    contract = subject.contract
    starts = [
        Problem.at(contract, site).with_rows(contract.rows, _ROWS)
        for site in contract.sites(contracts.model_shapes(_MODEL))
    ]
    starts = [_asked(subject, problem) for problem in starts] + [subject.facts(case.inputs) for case in cases]
    for problem in starts:
        if not subject.refusals(problem):
            return problem
    # Repairing is tried last: facts of a model or of a case are ones that occur.
    attempts = (satisfied(region, contract, problem, subject.refusals) for problem in starts[:4])
    return next((problem for problem in attempts if problem is not None), None)


def _asked(subject: Subject, problem: Problem) -> Problem:
    """Return facts that ask for the rules that the kernel offers."""
    options: Mapping[str, Any] = {**problem.options, **subject.rules}
    return Problem(
        problem.operator, problem.site, problem.axes, problem.dtypes, problem.strides, problem.layouts, options
    )


def _architectures(subject: Subject, claims: Claims) -> Iterator[tuple[str, str]]:
    """Yield what is wrong with the architectures that a kernel accepts, and with those of its evidence."""
    kernel = subject.registered.kernel
    for name in dict.fromkeys(product.arch for product in catalogue()):
        device = Device.simulate(name)
        claims.points += 1
        codes = {
            reason.code.value for reason in requirement_reasons(kernel, subject.contract, device, lambda package: None)
        }
        accepted = kernel.arch is None or kernel.arch.matches(device.arch)
        refused = bool(codes & {"DEVICE_ARCH", "DEVICE_VENDOR"})
        if accepted == refused:
            yield f"architecture {name}", f"accepted is {accepted}, and the reasons are {', '.join(codes) or 'none'}"
        if "CONTRACT" in codes:
            yield f"architecture {name}", f"it implements no version {subject.contract.version} of the contract"
    for name, level in kernel.evidence:
        if kernel.arch is not None and not kernel.arch.matches(Arch.parse(name)):
            yield f"evidence on {name}", f"it claims {level.value} there, but {kernel.arch.text} excludes {name}"
