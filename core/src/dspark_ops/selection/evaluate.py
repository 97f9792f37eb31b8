"""Evaluation: every reason why a candidate may not serve a problem, and at which row counts each one holds.

Reasons that do not depend on the row count are found once. A constraint that reads the rows axis becomes a mask: bit
``i`` is set where row count ``rows[i]`` violates it. So planning costs hardly more for more row counts.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from math import prod
from typing import Protocol

from dspark_ops.api.kernel import Traits
from dspark_ops.api.reason import Eligible, Ineligible, Reason, ReasonCode, Verdict
from dspark_ops.api.region import Constraint
from dspark_ops.contracts.contract import Contract
from dspark_ops.selection.candidate import Candidate, kernel_candidate
from dspark_ops.selection.device import Device
from dspark_ops.selection.policy import OperatorPolicy
from dspark_ops.selection.problem import Problem
from dspark_ops.selection.registry import RegisteredKernel
from dspark_ops.selection.requirements import PackageCheck, requirement_reasons
from dspark_ops.selection.rows import rows_text
from dspark_ops.selection.settings import Settings


class Known(Protocol):
    """What `dspark_ops.selection.knowledge` knows of single kernels."""

    def proved(self, candidate: Candidate) -> Candidate:
        """Return the candidate with the evidence that records give it."""

    def refusals(self, candidate: Candidate, device: Device) -> Iterable[Reason]:
        """Return why it may not serve whatever it claims."""


@dataclass(frozen=True, slots=True)
class Question:
    """One operator at one place, at these row counts, under these settings.

    Attributes:
        contract, problem: what is asked for.
        rows: row counts, sorted.
        settings, policy: the configuration, and what it means for this operator.
    """

    contract: Contract
    problem: Problem
    rows: tuple[int, ...]
    settings: Settings
    policy: OperatorPolicy

    @property
    def everywhere(self) -> int:
        """The mask of all row counts."""
        return (1 << len(self.rows)) - 1


@dataclass(frozen=True, slots=True)
class Finding:
    """One reason, and the mask of the row counts at which it holds.

    `constraint` is set where the reason's "got" depends on the row count; `on` then words it for a bucket.
    """

    reason: Reason
    mask: int
    constraint: Constraint | None = None

    def on(self, question: Question, block: int) -> Reason:
        """Return the reason as it reads for the row counts of a block, of which it may hold for some only."""
        if self.constraint is None:
            return self.reason
        counts = counts_in(question.rows, self.mask & block)
        if self.constraint.kind == "axis":
            got = rows_text(counts)
        else:
            ends = dict.fromkeys(_check_at(self.constraint, question, count) for count in (counts[0], counts[-1]))
            got = " to ".join(reason.got for reason in ends if reason)
        return Reason(self.reason.code, self.reason.field, self.reason.wanted, got)


@dataclass(frozen=True, slots=True)
class Evaluation:
    """A candidate with all its findings."""

    candidate: Candidate
    findings: tuple[Finding, ...]

    @property
    def refused(self) -> int:
        """The mask of the row counts at which the candidate may not serve."""
        mask = 0
        for finding in self.findings:
            mask |= finding.mask
        return mask

    def verdict(self, question: Question, block: int) -> Verdict:
        """Return the verdict for a block of row counts at all of which, or at none, the candidate may serve."""
        reasons = tuple([finding.on(question, block) for finding in self.findings if finding.mask & block])
        return Ineligible(reasons) if reasons else Eligible()


def counts_in(rows: Sequence[int], mask: int) -> tuple[int, ...]:
    """Return the row counts whose bit is set."""
    start, end = (mask & -mask).bit_length() - 1, mask.bit_length()
    if mask == (1 << end) - (1 << start):  # one run, which nearly all are
        return tuple(rows[start:end])
    return tuple(count for index, count in enumerate(rows) if mask >> index & 1)


def evaluate(
    registered: RegisteredKernel,
    question: Question,
    device: Device,
    packages: PackageCheck,
    known: Known | None = None,
) -> Evaluation:
    """Return a kernel's findings: requirements, what is known of it, semantics, region and settings, all of them."""
    kernel = registered.kernel
    candidate = kernel_candidate(registered, device.arch.name)
    requirements = tuple(requirement_reasons(kernel, question.contract, device, packages))
    if known is not None:
        candidate = known.proved(candidate)
        requirements = (*requirements, *known.refusals(candidate, device))
    region = [item for item in kernel.region if isinstance(item, Constraint)]  # Kernel has flattened its groups
    return evaluation(candidate, question, traits=kernel.traits, requirements=requirements, region=region)


def evaluation(
    candidate: Candidate,
    question: Question,
    *,
    traits: Traits,
    requirements: Iterable[Reason] = (),
    region: Iterable[Constraint] = (),
    parts: Iterable[Finding] = (),
) -> Evaluation:
    """Return the findings of any candidate; a decomposition brings those of its parts."""
    everywhere = question.everywhere
    fixed = [*requirements, *_semantic_reasons(traits, question), *_settings_reasons(candidate, question)]
    if (reason := question.policy.graph_reason(candidate, traits.graph_safe)) is not None:
        fixed.append(reason)
    findings = [Finding(reason, everywhere) for reason in fixed]
    findings += [finding for item in region for finding in _region_findings(item, question)]
    findings += parts
    return Evaluation(candidate, tuple(findings))


def _semantic_reasons(traits: Traits, question: Question) -> Iterator[Reason]:
    for semantic in question.contract.semantics:
        wanted = question.problem.options[semantic.name]
        # A caller that takes any rule is served by every rule.
        got = getattr(traits, semantic.name, "") or semantic.default
        if wanted not in (got, "any"):
            yield Reason(ReasonCode.SEMANTICS, semantic.name, str(wanted), got, origin=f"site {question.problem.site}")


def _settings_reasons(candidate: Candidate, question: Question) -> Iterator[Reason]:
    operator, settings = question.contract.name, question.settings
    own = settings.of(operator)
    for glob in own.deny:
        if fnmatchcase(candidate.id, glob):
            leaf = f"ops.{operator}.deny"
            hint = f"remove {glob!r} from {leaf}"
            yield Reason(
                ReasonCode.DENIED, leaf, f"no id that matches {glob!r}", candidate.id, hint, settings.origin(leaf)
            )
    # A pin names its kernel more plainly than an order list does, so the list does not bar it.
    if own.order and candidate.id != own.pin and order_index(candidate.id, own.order) == len(own.order):
        leaf = f"ops.{operator}.order"
        listed = " or ".join(own.order)
        yield Reason(ReasonCode.NOT_LISTED, leaf, listed, candidate.id, f"add it to {leaf}", settings.origin(leaf))
    # A decomposition's parts are barred by their own policy, see OperatorPolicy.is_weaker.
    reason = question.policy.class_reason(operator, candidate)
    if reason is not None:
        yield reason
    reason = question.policy.evidence_reason(candidate)
    if reason is not None:
        yield reason


def order_index(kernel_id: str, order: Sequence[str]) -> int:
    """Return the position of the first glob that matches an id, or the length of the list if none does."""
    return next((index for index, glob in enumerate(order) if fnmatchcase(kernel_id, glob)), len(order))


def _region_findings(constraint: Constraint, question: Question) -> Iterator[Finding]:
    rows_axis = question.contract.rows
    try:
        if rows_axis not in constraint.subjects():
            reason = constraint.check(question.problem)
            if reason is not None:
                yield Finding(reason, question.everywhere)
            return
        mask = _violations(constraint, question)
        if mask:
            first = question.rows[(mask & -mask).bit_length() - 1]
            reason = _check_at(constraint, question, first)
            if reason is not None:
                yield Finding(reason, mask, constraint)
    except Exception as error:  # a plugin's constraint may raise anything; it must not stop the others
        got = f"{type(error).__name__}: {error}"
        reason = Reason(
            ReasonCode.PREDICATE_RAISED,
            constraint.subject,
            constraint.text,
            got,
            hint="report this to the plugin's author",
        )
        yield Finding(reason, question.everywhere)


def _violations(constraint: Constraint, question: Question) -> int:
    """Return the mask of the row counts that violate a constraint."""
    rows = question.rows
    factor = _factor(constraint, question)
    if constraint.test == "between" and factor:
        low, high = constraint.values
        start = 0 if low is None else bisect_left(rows, -(-low // factor))
        end = len(rows) if high is None else bisect_right(rows, high // factor)
        return question.everywhere & ~(((1 << end) - 1) & ~((1 << start) - 1))
    return sum(1 << index for index, count in enumerate(rows) if _check_at(constraint, question, count) is not None)


def _factor(constraint: Constraint, question: Question) -> int:
    """Return what one row adds to the constrained size, or 0 where the size is not a multiple of the row count."""
    symbols = list(constraint.subjects())
    symbols.remove(question.contract.rows)
    if question.contract.rows in symbols:
        return 0
    return prod(question.problem.axes.get(symbol, 0) for symbol in symbols)


def _check_at(constraint: Constraint, question: Question, count: int) -> Reason | None:
    return constraint.check(question.problem.with_rows(question.contract.rows, count))


__all__ = ["Evaluation", "Finding", "Question", "counts_in", "evaluate", "evaluation", "order_index"]
