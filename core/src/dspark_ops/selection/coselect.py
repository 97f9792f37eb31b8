"""Co-selection: operators that share a layout are chosen together, by the layout that serves all of them best.

Only a group that the configuration opens is tried, layout by layout: each try is a planning of the group's operators
like any other. A kernel that would have been better for its operator alone is refused with `COSELECT` and the partner.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from dspark_ops.api.reason import Reason, ReasonCode
from dspark_ops.contracts.contract import Contract
from dspark_ops.contracts.shared_layouts import SHARED_LAYOUTS, SharedLayout, Sharer
from dspark_ops.selection.evaluate import Evaluation, Finding, Question
from dspark_ops.selection.problem import Problem
from dspark_ops.selection.settings import Settings

if TYPE_CHECKING:
    from dspark_ops.selection.planner import Outcome

__all__ = ["Agreement", "co_select"]

#: What a try gives: for each operator of the group, its questions with their outcomes.
Results = Mapping[str, Sequence[tuple[Question, Sequence["Outcome"]]]]
#: Serving nothing is worse than serving by the weakest class.
_NOTHING = 10


@dataclass(frozen=True, slots=True)
class Agreement:
    """The layouts that were chosen, and what each kernel is told that another layout would have suited better.

    Attributes:
        layouts: by group.
        refusals: by operator and kernel id.
    """

    layouts: Mapping[str, str] = field(default_factory=dict)
    refusals: Mapping[tuple[str, str], Reason] = field(default_factory=dict)

    def applied(self, contract: Contract, problem: Problem) -> Problem:
        """Return a problem with the chosen layouts in place of those that its site says."""
        for name, token in self.layouts.items():
            for sharer in SHARED_LAYOUTS[name].sharers:
                if sharer.operator == contract.name and not sharer.fixed and sharer.admits(contract, token):
                    layouts = {**problem.layouts, **dict.fromkeys(sharer.arguments, token)}
                    options = {**problem.options, sharer.option: token} if sharer.option else problem.options
                    problem = replace(problem, layouts=layouts, options=options)
        return problem

    def judged(self, operator: str, evaluation: Evaluation, question: Question) -> Evaluation:
        """Return an evaluation in which COSELECT stands in place of the layouts that the kernel does not take."""
        reason = self.refusals.get((operator, evaluation.candidate.id))
        if reason is None:
            return evaluation
        fields = _fields(operator)
        rest = [finding for finding in evaluation.findings if not _about_layout(finding, fields)]
        if len(rest) == len(evaluation.findings):
            return evaluation  # it takes the layout: whatever bars it here is something else
        return Evaluation(evaluation.candidate, (Finding(reason, question.everywhere), *rest))


def co_select(
    settings: Settings,
    contracts: Mapping[str, Contract],
    locked: Mapping[str, str],
    attempt: Callable[[Agreement, Sequence[str]], Results],
) -> Agreement:
    """Return the layouts for all groups that the settings open.

    Of the layouts that every writer and some reader take, the one comes first that the lock has, then the one with the
    fewest row counts below the required class, then the one with the best classes on average, then the first named.

    Args:
        settings: which layouts the caller can make, by group.
        contracts: every contract by name.
        locked: layouts that the lock has chosen.
        attempt: plans some operators under an agreement.
    """
    agreement = Agreement()
    for name, tokens in settings.layouts.items():
        group = SHARED_LAYOUTS[name]
        members = [sharer.operator for sharer in group.sharers if sharer.operator in contracts]
        tried: dict[str, Results] = {}
        for token in tokens:
            if _fits(group, contracts, token):
                taking = [item for item in members if _sharer(group, item).admits(contracts[item], token)]
                tried[token] = attempt(Agreement({**agreement.layouts, name: token}), taking)
        if not tried:
            # No writer and reader agree on any of them: the first is planned, and its refusals say why.
            tried[tokens[0]] = {}
        order = list(tried)
        best = min(order, key=lambda token: (*_cost(tried[token], token != locked.get(name)), order.index(token)))
        refusals = dict(_refusals(group, best, tried, settings.origin(f"layouts.{name}")))
        agreement = Agreement({**agreement.layouts, name: best}, {**agreement.refusals, **refusals})
    return agreement


def _fits(group: SharedLayout, contracts: Mapping[str, Contract], token: str) -> bool:
    present = [sharer for sharer in group.sharers if sharer.operator in contracts]
    writers = [sharer.admits(contracts[sharer.operator], token) for sharer in present if sharer.writes]
    readers = [sharer.admits(contracts[sharer.operator], token) for sharer in present if not sharer.writes]
    return all(writers) and (any(readers) or not readers)


def _sharer(group: SharedLayout, operator: str) -> Sharer:
    return next(sharer for sharer in group.sharers if sharer.operator == operator)


def _fields(operator: str) -> set[str]:
    return {
        name
        for group in SHARED_LAYOUTS.values()
        for sharer in group.sharers
        if sharer.operator == operator
        for name in (*sharer.arguments, sharer.option)
    }


def _about_layout(finding: Finding, fields: set[str]) -> bool:
    return finding.reason.code in (ReasonCode.LAYOUT, ReasonCode.OPTION) and finding.reason.field in fields


def _cost(results: Results, unlocked: bool) -> tuple[bool, bool, int, float]:
    unserved = below = weight = 0
    classes = 0
    for questions in results.values():
        for _, outcomes in questions:
            for outcome in outcomes:
                count = outcome.mask.bit_count()
                weight += count
                unserved += 0 if outcome.choice else count
                below += count if outcome.choice and outcome.choice.below else 0
                classes += count * _order(outcome)
    return bool(unserved), unlocked, below, classes / max(weight, 1)


def _order(outcome: Outcome) -> int:
    return outcome.choice.kernel.rank.order if outcome.choice else _NOTHING


def _mean(results: Results, operator: str) -> float:
    pairs = [
        (outcome.mask.bit_count(), _order(outcome)) for _, outcomes in results.get(operator, ()) for outcome in outcomes
    ]
    return sum(count * order for count, order in pairs) / max(sum(count for count, _ in pairs), 1)


def _refusals(
    group: SharedLayout, best: str, tried: Mapping[str, Results], origin: str
) -> Iterator[tuple[tuple[str, str], Reason]]:
    """Yield a reason for each kernel that a layout which lost would have put in a better class than what serves now."""
    for token, results in tried.items():
        if token == best:
            continue
        for operator, questions in results.items():
            chosen = tried[best].get(operator, ())
            for (_, outcomes), (_, here) in zip(questions, chosen, strict=False):
                for outcome in outcomes:
                    beaten = [item for item in here if item.mask & outcome.mask and _order(item) > _order(outcome)]
                    if outcome.choice is not None and beaten:
                        kernel = outcome.choice.kernel
                        partner = _partner(group, operator, tried[best], results)
                        yield (operator, kernel.id), _reason(group, token, best, partner, tried, origin)


def _partner(group: SharedLayout, operator: str, best: Results, other: Results) -> str:
    """Return the operator that loses most under the other layout."""
    others = [sharer.operator for sharer in group.sharers if sharer.operator != operator and sharer.operator in best]
    return max(others, key=lambda name: _mean(other, name) - _mean(best, name), default=operator)


def _reason(
    group: SharedLayout, token: str, best: str, partner: str, tried: Mapping[str, Results], origin: str
) -> Reason:
    here, there = _served(tried[best], partner), _served(tried[token], partner)
    got = f"{best}, in which {here} serves {partner}; in {token} it would be {there}"
    return Reason(
        ReasonCode.COSELECT, group.name, token, got, hint=f'set layouts.{group.name} = ["{token}"]', origin=origin
    )


def _served(results: Results, operator: str) -> str:
    for _, outcomes in results.get(operator, ()):
        for outcome in outcomes:
            return outcome.choice.kernel.id if outcome.choice else "nothing"
    return "nothing"
