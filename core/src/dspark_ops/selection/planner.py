"""Planning: from contracts, kernels, a device and settings to a plan. Pure: equal inputs give equal bytes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from dspark_ops.api.kernel import Package, Traits
from dspark_ops.api.reason import Ineligible, Reason, ReasonCode
from dspark_ops.contracts.contract import Contract
from dspark_ops.contracts.model_shapes import ModelShapes
from dspark_ops.errors import ConfigError, SelectionError
from dspark_ops.selection.candidate import CORE, Candidate, composed_candidate, reference_candidate
from dspark_ops.selection.coselect import Agreement, Results, co_select
from dspark_ops.selection.device import Device
from dspark_ops.selection.evaluate import Evaluation, Finding, Question, counts_in, evaluate, evaluation
from dspark_ops.selection.explain import nothing_serves
from dspark_ops.selection.knowledge import NOTHING, Knowledge
from dspark_ops.selection.plan import Choice, Plan, Refusal, Selection
from dspark_ops.selection.policy import operator_policy
from dspark_ops.selection.problem import Problem, part_problem, part_rows
from dspark_ops.selection.rank import NO_STANDING, Standing, preference, rank
from dspark_ops.selection.registry import Registry
from dspark_ops.selection.requirements import PackageCheck
from dspark_ops.selection.rows import rows_text
from dspark_ops.selection.settings import Settings
from dspark_ops.suggest import did_you_mean

#: Core's own candidates follow each contract's default rules and run on any device.
_CORE_TRAITS = Traits(batch_invariant=True)


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result for one block of row counts: a choice, or None with what was refused and what else may serve."""

    mask: int
    choice: Choice | None
    refused: tuple[Refusal, ...]
    eligible: tuple[Candidate, ...]


def make_plan(
    *,
    device: Device,
    shapes: ModelShapes,
    rows: tuple[int, ...],
    settings: Settings,
    registry: Registry,
    contracts: Mapping[str, Contract],
    operators: Sequence[str] | None = None,
    packages: PackageCheck,
    knowledge: Knowledge = NOTHING,
) -> Plan:
    """Return the plan for every operator that the model has a place for.

    Args:
        device: what to plan for.
        shapes: the model's sizes.
        rows: row counts, sorted, each once.
        settings: the configuration.
        registry: what the plugins offer.
        contracts: every contract by name; fused operators look up their parts here.
        operators: names to plan; None plans all.
        packages: returns why a package is not usable, or None.
        knowledge: evidence, known faults, quarantined kernels, the lock's choices and measured times.

    Raises:
        SelectionError: a pinned kernel does not exist or may not serve, or nothing may serve an operator. The text has
            every candidate's reasons and every plugin that failed to load.
        ConfigError: the settings speak of an operator that does not exist.
    """
    planning = _Planning(device, shapes, settings, registry, contracts, packages, knowledge)
    planning.check_settings()
    if settings.layouts:
        planning = planning.agreed(rows)
    selections: list[Selection] = []
    unserved: list[str] = []
    for name in sorted(contracts if operators is None else {*operators}):
        contract = contracts[name]
        for question, outcomes in planning.of(contract, rows):
            for item in outcomes:
                if item.choice is None:
                    unserved.append(nothing_serves(question, item.mask, item.refused, item.eligible))
            choices = tuple(item.choice for item in outcomes if item.choice is not None)
            selections.append(Selection(contract.version, question.problem, choices, contract.small))
    if unserved:
        raise SelectionError("\n".join([*unserved, *planning.failures()]))
    return Plan(
        device=device,
        model=shapes.name,
        rows=rows_text(rows),
        settings=settings,
        layouts=planning.agreement.layouts,
        selections=tuple(selections),
        plugins=registry.plugins,
        # Tracebacks belong to the machine and stay with the registry; the cause is kept.
        failures=tuple(replace(failure, detail="") for failure in registry.failures),
    )


@dataclass(slots=True)
class _Planning:
    """One run of the planner: its inputs, and the outcomes found so far."""

    device: Device
    shapes: ModelShapes
    settings: Settings
    registry: Registry
    contracts: Mapping[str, Contract]
    packages: PackageCheck
    knowledge: Knowledge = NOTHING
    agreement: Agreement = field(default_factory=Agreement)
    package_reasons: dict[Package, Reason | None] = field(default_factory=dict)
    known: dict[tuple[Any, ...], tuple[Outcome, ...]] = field(default_factory=dict)

    def check_settings(self) -> None:
        """Refuse settings of unknown operators, and pins that name no candidate."""
        faults: list[str] = []
        for name in sorted(self.settings.operators):
            if name not in self.contracts:
                leaves = [leaf for leaf in self.settings.origins if leaf.startswith(f"ops.{name}.")]
                origin = self.settings.origin(min(leaves, default=f"ops.{name}"))
                raise ConfigError(f"{origin}: no operator is named {name!r}{did_you_mean(name, self.contracts)}")
            pin = self.settings.of(name).pin
            ids = [item.id for item in self.registry.of(name)] + [f"{CORE}/{name}/reference"]
            ids += [f"{CORE}/{name}/composed"] if self.contracts[name].decomposition else []
            if pin is not None and pin not in ids:
                origin = self.settings.origin(f"ops.{name}.pin")
                faults.append(f"ops.{name}.pin ({origin}): no kernel is named {pin!r}{did_you_mean(pin, ids)}")
                faults.append(f"  {name} has: {', '.join(sorted(ids))}")
        if faults:
            raise SelectionError("\n".join([*faults, *self.failures()]))

    def failures(self) -> list[str]:
        """Return one line per plugin that failed to load: what is missing may be what was wanted."""
        return [str(failure) for failure in self.registry.failures]

    def agreed(self, rows: tuple[int, ...]) -> _Planning:
        """Return the planning in which operators that share a layout have agreed on one."""

        def attempt(agreement: Agreement, names: Sequence[str]) -> Results:
            trial = replace(self, agreement=agreement, known={})
            return {name: list(trial.of(self.contracts[name], rows)) for name in names}

        agreement = co_select(self.settings, self.contracts, self.knowledge.layouts, attempt)
        return replace(self, agreement=agreement, known={})

    def of(self, contract: Contract, rows: tuple[int, ...]) -> Iterator[tuple[Question, tuple[Outcome, ...]]]:
        """Yield what is asked of an operator at each of its places, with the outcomes."""
        for site in contract.sites(self.shapes):
            question = self.question(contract, Problem.at(contract, site), rows)
            yield question, self.outcomes(question)

    def question(self, contract: Contract, problem: Problem, rows: tuple[int, ...]) -> Question:
        """Return what is asked of an operator at a place."""
        problem = self.agreement.applied(contract, problem)
        policy = operator_policy(self.settings, self.device, contract.name, small=contract.small)
        return Question(contract, problem, rows, self.settings, policy)

    def outcomes(self, question: Question) -> tuple[Outcome, ...]:
        """Return what serves a question, as a partition of its row counts, by lowest row count."""
        key = (question.contract.name, question.problem.place, question.rows)
        if key not in self.known:
            self.known[key] = tuple(self._decide(question))
        return self.known[key]

    def check_package(self, package: Package) -> Reason | None:
        """Return why a package is not usable; each is looked at once per plan."""
        if package not in self.package_reasons:
            self.package_reasons[package] = self.packages(package)
        return self.package_reasons[package]

    def _decide(self, question: Question) -> Iterator[Outcome]:
        name, arch = question.contract.name, self.device.arch.name
        known = None if self.knowledge is NOTHING else self.knowledge
        evaluations = [
            self.agreement.judged(name, evaluate(item, question, self.device, self.check_package, known), question)
            for item in self.registry.of(name)
        ]
        evaluations.append(evaluation(reference_candidate(name, arch), question, traits=_CORE_TRAITS))
        parts, findings = self._parts(question)
        if question.contract.decomposition:
            levels = [item.choice.kernel.evidence for part in parts for item in part.outcomes if item.choice]
            candidate = composed_candidate(name, levels)
            evaluations.append(evaluation(candidate, question, traits=_CORE_TRAITS, parts=findings))
        ranked = rank(evaluations, self.settings.of(name), question.policy)
        masks = {item.refused for item in ranked} | self.knowledge.masks((name, question.problem.place), question.rows)
        for block in _partition(question.everywhere, masks):
            outcome = self._choose(question, ranked, block)
            if outcome.choice is None or outcome.choice.kernel.id != f"{CORE}/{name}/composed":
                yield outcome
                continue
            # Smaller buckets, so that in each of them one kernel serves each part.
            for piece in _partition(block, {item.mask for part in parts for item in part.outcomes}):
                smaller = self._choose(question, ranked, piece)
                if smaller.choice is not None:
                    yield replace(smaller, choice=_with_parts(smaller.choice, piece, parts))

    def _parts(self, question: Question) -> tuple[list[_Part], list[Finding]]:
        """Return the parts of a fused operator with their outcomes, and why the decomposition may not serve."""
        decomposition = question.contract.decomposition
        parts: list[_Part] = []
        findings: list[Finding] = []
        for name in decomposition.parts if decomposition else ():
            contract = self.contracts[name]
            sites = contract.sites(self.shapes)
            # A part that is called at one place only has one set of facts, whatever the whole calls its place.
            site = next((item for item in sites if item.name == question.problem.site or len(sites) == 1), None)
            if site is None:
                got = ", ".join(item.name for item in sites) or "none"
                reason = Reason(ReasonCode.PART, name, f"a site {question.problem.site}", got)
                findings.append(Finding(reason, question.everywhere))
                continue
            rows = part_rows(question.contract, name, question.problem, question.rows)
            problem = part_problem(question.contract, contract, site, question.problem)
            part_question = self.question(contract, problem, rows)
            part = _Part(part_question, self.outcomes(part_question))
            parts.append(part)
            for item in part.outcomes:
                if item.choice is None:
                    why = "; ".join(f"{refusal.candidate.id}: {refusal.reasons[0]}" for refusal in item.refused)
                    reason = Reason(ReasonCode.PART, name, "a kernel that may serve it", f"none ({why})")
                    findings.append(Finding(reason, item.mask))
        return parts, findings

    def _choose(self, question: Question, ranked: Sequence[Evaluation], block: int) -> Outcome:
        """Return the first eligible candidate of a block of row counts with one outcome, with all others beside it."""
        eligible: list[Candidate] = []
        refused: list[Refusal] = []
        own, standing = self.settings.of(question.contract.name), self._standing(question, ranked, block)
        if standing is not NO_STANDING:
            ranked = rank(ranked, own, question.policy, standing)
        for item in ranked:
            verdict = item.verdict(question, block)
            if isinstance(verdict, Ineligible):
                refused.append(Refusal(item.candidate, verdict.reasons, better=not eligible))
            else:
                eligible.append(item.candidate)
        pin = question.policy.pin
        if not eligible or (pin is not None and eligible[0].id != pin):
            return Outcome(block, None, tuple(refused), tuple(eligible))
        chosen, *standby = eligible
        policy = question.policy
        tied = standby and preference(standby[0], own, policy, standing) == preference(chosen, own, policy, standing)
        choice = Choice(
            rows=rows_text(counts_in(question.rows, block)),
            kernel=chosen,
            standby=tuple(standby),
            refused=tuple(refused),
            below=policy.is_weaker(chosen) or policy.unproven(chosen),
            tie=standby[0].id if tied else "",
            origin=self.knowledge.origin_of(standing, chosen.id, pin),
        )
        return Outcome(block, choice, choice.refused, tuple(eligible))

    def _standing(self, question: Question, ranked: Sequence[Evaluation], block: int) -> Standing:
        """Return what the lock and measured times say of a block of row counts that they do not tell apart."""
        if not self.knowledge.locked and not self.knowledge.times:
            return NO_STANDING
        kernels = [item.candidate.id for item in ranked if item.candidate.target and not item.refused & block]
        count = counts_in(question.rows, block)[0]
        return self.knowledge.standing((question.contract.name, question.problem.place), count, kernels)


@dataclass(frozen=True, slots=True)
class _Part:
    """One part of a fused operator: what it is asked at the whole's row counts, one for one, and what serves it."""

    question: Question
    outcomes: tuple[Outcome, ...]


def _with_parts(whole: Choice, mask: int, parts: Sequence[_Part]) -> Choice:
    """Return a decomposition's choice with what serves each part at the same row counts."""
    selections: list[Selection] = []
    for part in parts:
        rows = rows_text(counts_in(part.question.rows, mask))
        choices = tuple(replace(item.choice, rows=rows) for item in part.outcomes if item.choice and item.mask & mask)
        contract = part.question.contract
        selections.append(Selection(contract.version, part.question.problem, choices, contract.small))
    chosen = [choice for selection in selections for choice in selection.choices]
    proven = composed_candidate(whole.kernel.id, [choice.kernel.evidence for choice in chosen]).evidence
    return replace(
        whole,
        kernel=replace(whole.kernel, evidence=proven),
        below=whole.below or any(choice.below for choice in chosen),
        parts=tuple(selections),
    )


def _partition(block: int, masks: set[int]) -> list[int]:
    """Return the coarsest partition of a block in which every mask holds for a part wholly or not at all."""
    parts = [block]
    for mask in masks:
        parts = [piece for part in parts for piece in (part & mask, part & ~mask) if piece]
    return sorted(parts, key=lambda part: part & -part)
