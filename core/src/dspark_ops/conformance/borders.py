"""The borders of a region: for each constraint the values just inside it and just outside it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import count as count_from
from math import prod
from typing import Any

from dspark_ops.api.reason import Reason, ReasonCode
from dspark_ops.api.region import Constraint
from dspark_ops.binding.facts import STRIDE_FORMS
from dspark_ops.contracts.contract import Contract
from dspark_ops.selection.problem import Problem

__all__ = ["CODES", "Border", "borders", "changed", "satisfied", "value_in"]

Refusals = Callable[[Problem], "tuple[Reason, ...]"]

#: The reason code with which each kind of constraint refuses.
CODES: Mapping[str, ReasonCode] = {
    "axis": ReasonCode.SHAPE,
    "elements": ReasonCode.SHAPE,
    "dtype": ReasonCode.DTYPE,
    "stride": ReasonCode.STRIDE,
    "layout": ReasonCode.LAYOUT,
    "option": ReasonCode.OPTION,
}

_FIELDS = {"axis": "axes", "dtype": "dtypes", "stride": "strides", "layout": "layouts", "option": "options"}


@dataclass(frozen=True, slots=True)
class Border:
    """One value of one constraint's subject.

    Attributes:
        constraint: whose border it is.
        value: the value: a size, a dtype, a stride form, a layout or an option's value.
        inside: whether the constraint admits it.
    """

    constraint: Constraint
    value: Any
    inside: bool

    @property
    def name(self) -> str:
        """What the point is called, as the name of a case."""
        side = "inside" if self.inside else "outside"
        return f"{self.constraint.subject} = {self.value}, {side} {self.constraint.text!r}"


def borders(constraint: Constraint, contract: Contract, problem: Problem) -> Iterator[Border]:
    """Yield the border values of a constraint, inside ones first.

    Args:
        constraint: the constraint.
        contract: the operator, which says what values there are at all.
        problem: facts that lie inside, for the sizes that a product of axes is made of.
    """
    inside, outside = _values(constraint, contract, problem)
    for value in dict.fromkeys(inside):
        yield Border(constraint, value, True)
    for value in dict.fromkeys(outside):
        yield Border(constraint, value, False)


def changed(problem: Problem, constraint: Constraint, value: Any) -> Problem:
    """Return facts in which a constraint's subject has a value; of a product of axes, the first one is made to fit."""
    name = constraint.subject
    if constraint.kind == "axis":
        return replace(problem, axes={**problem.axes, name: value})
    if constraint.kind == "elements":
        first = constraint.subjects()[0]
        power = constraint.subjects().count(first)
        rest = prod(problem.axes.get(other, 1) for other in constraint.subjects() if other != first)
        # The largest count that stays within the value, or the smallest that passes it where the value is outside.
        low, high = constraint.values
        most = value // rest
        count = most if power == 1 else next(size for size in count_from() if (size + 1) ** power > most)
        if high is not None and value > high and count**power * rest < value:
            count += 1
        if low is not None and value >= low and count**power * rest < low:
            count += 1
        return replace(problem, axes={**problem.axes, first: count})
    field = _FIELDS[constraint.kind]
    return replace(problem, **{field: {**getattr(problem, field), name: value}})


def value_in(problem: Problem, constraint: Constraint) -> Any:
    """Return the value that a constraint's subject has in given facts, or None; of a product of axes, the product."""
    if constraint.kind == "elements":
        sizes = [problem.axes.get(name) for name in constraint.subjects()]
        return None if None in sizes else prod(size for size in sizes if size is not None)
    return getattr(problem, _FIELDS[constraint.kind]).get(constraint.subject)


def satisfied(
    region: tuple[Constraint, ...], contract: Contract, problem: Problem, refusals: Refusals
) -> Problem | None:
    """Return facts that a whole region admits, as near to `problem` as its constraints let them be, or None.

    Each violated constraint's subject is given a value inside it, a few times over: constraints may share a subject.
    """
    for _ in range(4):
        if not refusals(problem):
            return problem
        for constraint in region:
            if constraint.check(problem) is None:
                continue
            for border in borders(constraint, contract, problem):
                if border.inside:
                    attempt = changed(problem, constraint, border.value)
                    if len(refusals(attempt)) < len(refusals(problem)):
                        problem = attempt
                        break
    return None if refusals(problem) else problem


def _values(constraint: Constraint, contract: Contract, problem: Problem) -> tuple[list[Any], list[Any]]:
    kind, test, values = constraint.kind, constraint.test, constraint.values
    # Sizes without an end of their own are looked at beside the one that the facts have, which other constraints admit.
    have = (value_in(problem, constraint) or 1) if kind in ("axis", "elements") else 1
    if test == "between":
        low, high = values
        inside = [bound for bound in (low, high) if bound is not None]
        outside = [low - 1] if low else []
        return inside, [*outside, high + 1] if high is not None else outside
    if test == "multiple_of":
        step = values[0]
        near = max(have - have % step, step)
        return [near, near + step], [near + 1, near + step - 1] if step > 1 else []
    if test == "power_of_two":
        near = 1 << max(have.bit_length() - 1, 0)
        return [near, 2 * near], [3 * near]
    if test != "one_of":
        return [], []
    if kind in ("axis", "elements"):
        beside = [size for value in values for size in (value - 1, value + 1)]
        return list(values), [size for size in beside if size > 0 and size not in values]
    return list(values), [value for value in _other_values(constraint, contract) if value not in values]


def _other_values(constraint: Constraint, contract: Contract) -> list[Any]:
    """Return what else a subject that is no size may be: what the contract admits, and a value that nobody admits."""
    name = constraint.subject
    arguments = {argument.name: argument for argument in contract.arguments}
    if constraint.kind == "dtype":
        return [*arguments[name].dtypes, "complex64"] if name in arguments else ["complex64"]
    if constraint.kind == "stride":
        return list(STRIDE_FORMS)
    if constraint.kind == "layout":
        return [*arguments[name].layouts, "no_such_layout"] if name in arguments else ["no_such_layout"]
    semantics = {semantic.name: semantic.choices for semantic in contract.semantics}
    options = {option.name: option.choices for option in contract.options}
    known = semantics.get(name) or options.get(name)
    if known:
        return list(known)
    first = constraint.values[0]
    if isinstance(first, bool):
        return [not first]
    return [first + 1] if isinstance(first, int | float) else [f"no_such_{name}"] if isinstance(first, str) else []
