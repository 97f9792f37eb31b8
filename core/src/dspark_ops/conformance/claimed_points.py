"""The points that a region claims, as calls: borders and admitted choices, made from the contract's cases."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

from dspark_ops._lazy import torch
from dspark_ops.api.region import Constraint
from dspark_ops.binding.facts import facts_of, rows_of_inputs
from dspark_ops.conformance.borders import borders, changed, value_in
from dspark_ops.conformance.reshape import converted, resized, restrided
from dspark_ops.conformance.subject import Subject
from dspark_ops.conformance.variations import elements, rows_are_independent, runs_on_reference
from dspark_ops.contracts.contract import Case
from dspark_ops.contracts.values import unknown_names
from dspark_ops.selection.problem import Problem

__all__ = ["ClaimedPoint", "claimed_points"]

#: Elements of all tensors of one call that are still built, on a CPU and on a GPU.
BUDGETS = {"cpu": 1 << 21, "cuda": 1 << 28}


@dataclass(frozen=True, slots=True)
class ClaimedPoint:
    """One point of a region: a call to make there, or why none can be made.

    Attributes:
        name: what is special about it.
        inputs: the call; None where there is none.
        why_not: why there is none.
    """

    name: str
    inputs: Mapping[str, Any] | None = None
    why_not: str = ""


def claimed_points(subject: Subject, cases: list[Case], base: Problem) -> Iterator[ClaimedPoint]:
    """Yield the points that a kernel's region claims and its contract has, one subject at a time.

    These are the inside borders of every constraint, and what the contract admits and the region does not exclude:
    every dtype and stride form of every argument, every choice of an option, every layout, and one more of each axis
    that no constraint mentions. A point is a case of the contract that already lies there, or one made from a case by
    changing that one thing; it is left out, and said so, where no case can be changed so or it would be too large.
    """
    templates = sorted((case for case in cases if subject.accepts(case.inputs)), key=lambda case: elements(case.inputs))
    seen: set[str] = set()
    for constraint, value in (*_borders(subject, base), *_choices(subject), *_grown(subject, templates)):
        name = f"{constraint.subject} = {value} claimed by {constraint.text!r}"
        if (key := f"{constraint.kind} {constraint.subject} {value}") in seen:
            continue
        seen.add(key)
        point = _point(subject, templates, constraint, value, name)
        if point is not None:
            yield point


def _borders(subject: Subject, base: Problem) -> Iterator[tuple[Constraint, Any]]:
    for constraint in subject.registered.kernel.region:
        if isinstance(constraint, Constraint):
            for border in borders(constraint, subject.contract, base):
                if border.inside:
                    yield constraint, border.value


def _choices(subject: Subject) -> Iterator[tuple[Constraint, Any]]:
    """Yield what the contract admits, as constraints of its own."""
    accepted = {"contiguous": ("contiguous",), "unit_last": ("contiguous", "unit_last")}
    for argument in subject.contract.arguments:
        forms = accepted.get(argument.strides, ("contiguous", "unit_last", "any"))
        for kind, values in (("dtype", argument.dtypes), ("stride", forms), ("layout", argument.layouts)):
            for value in values:
                yield Constraint(kind, argument.name, "one_of", values, f"{kind} of the contract"), value
    for option in subject.contract.options:
        for value in option.choices:
            yield Constraint("option", option.name, "one_of", option.choices, "option of the contract"), value


def _grown(subject: Subject, templates: list[Case]) -> Iterator[tuple[Constraint, Any]]:
    """Yield one more than a case has, of each axis that no constraint mentions: the region claims every size."""
    region = [item for item in subject.registered.kernel.region if isinstance(item, Constraint)]
    mentioned = {name for item in region for name in item.subjects()}
    smallest = next((case for case in templates if rows_of_inputs(subject.contract, case.inputs)), None)
    sizes = facts_of(subject.contract, smallest.inputs).axes if smallest else {}
    for axis in subject.contract.axes:
        if axis not in mentioned and sizes.get(axis):
            yield Constraint("axis", axis, "between", (0, None), f"no constraint on {axis}"), sizes[axis] + 1


def _point(
    subject: Subject, templates: list[Case], constraint: Constraint, value: Any, name: str
) -> ClaimedPoint | None:
    """Return the point, or None where another constraint excludes it: then it is not claimed."""
    exact = [case for case in templates if _lies_at(subject, case, constraint, value)]
    if exact:
        return ClaimedPoint(f"{name}, as in {exact[0].name}", exact[0].inputs)
    if not templates:
        return ClaimedPoint(name, why_not="no case of the contract lies in the region")
    if constraint.kind not in ("axis", "elements"):
        facts = subject.facts(templates[0].inputs)
        if subject.refusals(changed(facts, constraint, value)):
            return None
    why = "no case of the contract can be changed so"
    claimed = True
    for template in _nearest(subject, templates, constraint, value)[:6]:
        size = _size_with(subject, template, constraint, value)
        if size > BUDGETS.get(subject.place, BUDGETS["cpu"]):
            why = f"the call would have {size:.3g} elements"
            continue
        inputs = _made(subject, template, constraint, value)
        if inputs is None:
            continue
        if not subject.accepts(inputs):
            claimed = False
        elif runs_on_reference(subject.contract, inputs, BUDGETS.get(subject.place, BUDGETS["cpu"])):
            return ClaimedPoint(f"{name}, made from {template.name}", inputs)
        else:
            why = "the contract's reference does not take what a case becomes so"
    return ClaimedPoint(name, why_not=why) if claimed else None


def _lies_at(subject: Subject, case: Case, constraint: Constraint, value: Any) -> bool:
    facts = facts_of(subject.contract, case.inputs, subject.rules)
    if constraint.kind in ("dtype", "stride") and not isinstance(case.inputs.get(constraint.subject), torch.Tensor):
        return False
    return bool(value_in(facts, constraint) == value)


def _nearest(subject: Subject, templates: list[Case], constraint: Constraint, value: Any) -> list[Case]:
    """Return cases in the order in which they should be tried: with rows, and for sizes the nearest first.

    The first of each combination of sizes comes before the others: what one cannot become, its like cannot either.
    """
    axis = constraint.subjects()[:1]
    sizes = [facts_of(subject.contract, case.inputs).axes for case in templates]
    first = {tuple(axes.items()): place for place, axes in reversed(list(enumerate(sizes)))}

    def order(place: int) -> tuple[bool, bool, int]:
        axes = sizes[place]
        without_rows = axes.get(subject.contract.rows, 0) == 0
        return without_rows, first[tuple(axes.items())] != place, abs(axes.get(axis[0], 0) - value) if axis else 0

    return [templates[place] for place in sorted(range(len(templates)), key=order)]


def _size_with(subject: Subject, template: Case, constraint: Constraint, value: Any) -> int:
    """Return how many elements the changed call would have, to a good approximation."""
    size = elements(template.inputs)
    if constraint.kind == "elements":
        return max(size, int(value))
    if constraint.kind != "axis":
        return size
    have = facts_of(subject.contract, template.inputs).axes.get(constraint.subject, 0)
    touched = 0
    for argument in subject.contract.arguments:
        tensor = template.inputs.get(argument.name)
        entries = [entry for entry in argument.shape if isinstance(entry, str) and entry != "*"]
        if isinstance(tensor, torch.Tensor) and any(constraint.subject in unknown_names(e, {}) for e in entries):
            touched += tensor.numel()
    return size - touched + (touched * value // have if have else 0)


def _made(subject: Subject, template: Case, constraint: Constraint, value: Any) -> dict[str, Any] | None:
    contract, inputs, name = subject.contract, template.inputs, constraint.subject
    given = isinstance(inputs.get(name), torch.Tensor)
    if constraint.kind in ("axis", "elements"):
        axis = constraint.subjects()[0]
        if constraint.kind == "elements":
            axes = facts_of(contract, inputs).axes
            rest = prod(axes.get(other, 1) for other in constraint.subjects()[1:])
            value = max(value // max(rest, 1), 1)
        # Cut or repeated rows are a call of the same kind only where the reference treats each row by itself.
        if axis == contract.rows and value and not rows_are_independent(contract, inputs):
            return None
        return resized(contract, inputs, axis, value)
    if constraint.kind == "dtype" and given:
        return converted(inputs, name, value)
    if constraint.kind == "stride" and given:
        spaced = restrided(inputs[name], value)
        return None if spaced is None else {**inputs, name: spaced}
    if constraint.kind == "option" and name in {option.name for option in contract.options}:
        return {**inputs, name: value}
    return None
