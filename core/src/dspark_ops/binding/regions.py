"""Calls against the regions of the kernels that were chosen: a plan is for sizes and dtypes, a call may have others."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from dspark_ops.api.region import Constraint
from dspark_ops.binding.arguments import Refused
from dspark_ops.binding.facts import facts_of
from dspark_ops.contracts.contract import Contract
from dspark_ops.selection.plan import Choice, Plan
from dspark_ops.selection.problem import Problem

__all__ = ["Regions", "check_region", "chosen_regions"]

#: What must hold of a call, by kernel id.
Regions = Mapping[str, Sequence[Constraint]]


def chosen_regions(plan: Plan) -> Regions:
    """Return the region of every kernel that a plan chose, parts of composed operators included.

    They are in the manifests of the installed plugins and not in the plan. A kernel that no installed plugin has, such
    as one of a registry that the plan's caller made, has none here; core's references take what the contract admits.
    """
    chosen = {kernel for item in plan.selections for choice in item.choices for kernel in _kernels(choice)}
    if not chosen:
        return {}
    from dspark_ops.selection.discovery import discover

    registry = discover(plan.settings)
    return {
        entry.id: tuple(item for item in entry.kernel.region if isinstance(item, Constraint))
        for entries in registry.kernels.values()
        for entry in entries
        if entry.id in chosen
    }


def _kernels(choice: Choice) -> Iterator[str]:
    """Yield the ids of the plugins' kernels in a choice."""
    if choice.kernel.target:
        yield choice.kernel.id
    for part in choice.parts:
        for inner in part.choices:
            yield from _kernels(inner)


def check_region(
    region: Sequence[Constraint], contract: Contract, arguments: Mapping[str, Any], planned: Problem
) -> None:
    """Hold a call against a kernel's region; what the call leaves open, such as an absent argument, is as planned.

    Raises:
        Refused: the call is outside the region; the text names the first constraint that does not hold.
    """
    if not region:
        return
    rules = {rule.name: planned.options[rule.name] for rule in contract.semantics if rule.name in planned.options}
    facts = facts_of(contract, arguments, rules)
    facts = replace(facts, axes={**planned.axes, **facts.axes})
    for constraint in region:
        reason = constraint.check(facts)
        if reason is not None:
            raise Refused(
                f"{reason.field}: the kernel's region wants {reason.wanted}, this call has {reason.got}; the plan is "
                f"for {_stated(planned)}: call it so, or plan for what is called"
            )


def _stated(planned: Problem) -> str:
    sizes = ", ".join(f"{name} = {size}" for name, size in planned.axes.items())
    dtypes = ", ".join(f"{name} {dtype}" for name, dtype in planned.dtypes.items())
    return "; ".join(filter(None, (sizes, dtypes)))
