"""Binding a plan: import what was chosen, prepare it, compose what is made of parts, and freeze the result."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from types import SimpleNamespace
from typing import Any

from dspark_ops import contracts as _contracts
from dspark_ops.binding.bound import BoundOps, Function
from dspark_ops.binding.checked import checked_part, device_type
from dspark_ops.binding.regions import Regions, check_region, chosen_regions
from dspark_ops.binding.smoke import Agree, Replan, tried_plan
from dspark_ops.binding.targets import check_signature, refuse_hint, resolve
from dspark_ops.contracts.contract import Contract
from dspark_ops.errors import BindingError
from dspark_ops.selection.candidate import Candidate
from dspark_ops.selection.plan import Choice, Plan, Selection
from dspark_ops.selection.problem import Problem
from dspark_ops.selection.rows import rows_of


def bind(
    plan: Plan,
    *,
    contracts: Callable[[str], Contract] | None = None,
    check: bool = False,
    replan: Replan | None = None,
    agree: Agree | None = None,
) -> BoundOps:
    """Return the callables that a plan chose, imported, checked against their contracts and prepared.

    Args:
        plan: what to bind.
        contracts: returns an operator's contract by name; by default `dspark_ops.contracts.get`.
        check: wrap every operator, and every part of one that is composed, in a check of its arguments (see
            `dspark_ops.binding.checked`), against the kernel's region too: for tests and debugging, since it reads
            values back from the device.
        replan: where ``policy.smoke`` is on, makes the plan without kernels that failed their trial run; by default
            from the installed plugins.
        agree: exchanges those kernels with the other ranks, so that all of them plan again together.

    Raises:
        BindingError: a kernel cannot be imported or prepared, its signature is not the contract's, or the plan was made
            for another version of a contract or for a simulated accelerator.
    """
    if plan.device.simulated and plan.device.is_accelerator:
        raise BindingError(
            f"the plan is for a simulated {plan.device.arch.name} ({plan.device.name}), whose kernels cannot run here: "
            f"plan for dspark_ops.probe(), or for Device.simulate('cpu')"
        )
    if plan.settings.policy.smoke == "on":
        plan = tried_plan(plan, replan=replan, agree=agree)
    regions = chosen_regions(plan) if check else None
    work = _Binding(plan, contracts or _contracts.get, regions)
    tables: dict[str, dict[str, dict[int, Function]]] = {}
    for selection in plan.selections:
        for choice in selection.choices:
            work.collect(work.contract(selection), selection.problem, choice)
    work.prepare()
    for selection in plan.selections:
        contract = work.contract(selection)
        by_rows: dict[int, Function] = {}
        for choice in selection.choices:
            function = work.function(contract, selection.problem, choice)
            by_rows.update(dict.fromkeys(rows_of(choice.rows), function))
        tables.setdefault(selection.operator, {})[selection.site] = by_rows
    return BoundOps.freeze(plan, tables, {name: work.contracts(name) for name in tables}, regions)


@dataclass(slots=True)
class _Binding:
    """One run of binding: each target is imported once, and each kernel prepared once per site and sizes."""

    plan: Plan
    contracts: Callable[[str], Contract]
    regions: Regions | None = None
    functions: dict[str, Function] = field(default_factory=dict)
    composed: dict[tuple[Any, ...], Function] = field(default_factory=dict)
    checks: dict[tuple[Any, ...], Function] = field(default_factory=dict)
    preparations: dict[tuple[Any, ...], tuple[Candidate, Problem, list[int]]] = field(default_factory=dict)
    prepared: dict[tuple[Any, ...], Function] = field(default_factory=dict)

    def contract(self, selection: Selection) -> Contract:
        """Return the contract of a selection, in the version that was planned for."""
        contract = self.contracts(selection.operator)
        if contract.version != selection.contract:
            raise BindingError(
                f"{selection.operator}: the plan is for version {selection.contract} of its contract, this is version "
                f"{contract.version}: plan again"
            )
        return contract

    def collect(self, contract: Contract, problem: Problem, choice: Choice) -> None:
        """Import what one choice needs, check its signature, and note for which row counts it has to be prepared."""
        kernel = choice.kernel
        if choice.parts and contract.decomposition:
            for part in choice.parts:
                self.collect(self.contract(part), part.problem, part.choices[0])
            return
        if kernel.id not in self.functions:
            function = resolve(kernel.target, kernel.id, contract.name) if kernel.target else contract.reference
            check_signature(function, contract, kernel.id)
            self.functions[kernel.id] = function
        if kernel.prepare:
            _, _, rows = self.preparations.setdefault((kernel.id, problem.place), (kernel, problem, []))
            rows.extend(rows_of(choice.rows))

    def function(self, contract: Contract, problem: Problem, choice: Choice) -> Function:
        """Return the callable of one choice: what its kernel's preparation returned for the site, else its target."""
        if choice.parts and contract.decomposition:
            parts = {part.operator: self.part(contract, part) for part in choice.parts}
            key = (contract.name, *parts.values())
            if key not in self.composed:
                self.composed[key] = partial(contract.decomposition.compose, SimpleNamespace(**parts))
            return self.composed[key]
        return self.prepared.get((choice.kernel.id, problem.place), self.functions[choice.kernel.id])

    def part(self, whole: Contract, part: Selection) -> Function:
        """Return the callable of one part of a fused operator, checked if that is asked for."""
        contract, choice = self.contract(part), part.choices[0]
        function = self.function(contract, part.problem, choice)
        regions = self.regions
        if regions is None:
            return function
        # One wrapper per callable: sites that share their parts go on sharing their composition.
        key = (whole.name, contract.name, choice.kernel.id, function)
        if key not in self.checks:
            where = device_type(self.plan.device)
            self.checks[key] = checked_part(
                contract,
                function,
                choice.kernel.id,
                whole.name,
                where,
                lambda kernel, arguments: check_region(regions.get(kernel, ()), contract, arguments, part.problem),
            )
        return self.checks[key]

    def prepare(self) -> None:
        """Call what compiles and allocates beforehand, once per kernel, site and sizes; keep what it returns."""
        for key, (kernel, problem, rows) in self.preparations.items():
            prepare = resolve(kernel.prepare, kernel.id, problem.operator)
            try:
                function = prepare(self.plan.device, problem, tuple(sorted(set(rows))))
            except Exception as error:  # a plugin's preparation may raise anything
                raise BindingError(
                    f"{kernel.id}: {kernel.prepare} failed for site {problem.site} on {self.plan.device.arch.name}: "
                    f"{type(error).__name__}: {error}; {refuse_hint(kernel.id, problem.operator)}"
                ) from error
            if function is None:
                continue
            if not callable(function):
                raise BindingError(
                    f"{kernel.id}: {kernel.prepare} returned a {type(function).__name__}: wanted the callable to bind, "
                    f"or None to bind {kernel.target}"
                )
            check_signature(function, self.contracts(problem.operator), kernel.id)
            self.prepared[key] = function
