"""Planning: from contracts, kernels, a device and settings to a plan. Pure: equal inputs give equal bytes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from dspark_ops.api.kernel import Package, Traits
from dspark_ops.api.reason import Eligible, Ineligible, Reason, ReasonCode
from dspark_ops.contracts.contract import Contract
from dspark_ops.contracts.model_shapes import ModelShapes
from dspark_ops.errors import ConfigError, SelectionError
from dspark_ops.selection.candidate import Candidate, composed_candidate, reference_candidate
from dspark_ops.selection.device import Device
from dspark_ops.selection.evaluate import Evaluation, Finding, Question, counts_in, evaluate, evaluation
from dspark_ops.selection.explain import nothing_serves
from dspark_ops.selection.plan import Choice, Plan, Refusal, Selection
from dspark_ops.selection.policy import operator_policy
from dspark_ops.selection.problem import Problem, part_rows
from dspark_ops.selection.rank import preference, rank
from dspark_ops.selection.registry import Registry
from dspark_ops.selection.requirements import PackageCheck
from dspark_ops.selection.rows import rows_text
from dspark_ops.selection.settings import Settings
from dspark_ops.suggest import did_you_mean

#: Core's own candidates follow each contract's default rules and run on any device.
_CORE_TRAITS = Traits(batch_invariant=True)


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result for one block of row counts: a choice, or None and the refusals that left none."""

    mask: int
    choice: Choice | None
    refused: tuple[Refusal, ...]


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

    Raises:
        SelectionError: a pinned kernel does not exist or may not serve, or nothing may serve an operator. The text has
            every candidate's reasons and every plugin that failed to load.
        ConfigError: the settings speak of an operator that does not exist.
    """
    planning = _Planning(device, shapes, settings, registry, contracts, packages)
    planning.check_settings()
    selections: list[Selection] = []
    unserved: list[str] = []
    for name in sorted(contracts if operators is None else operators):
        contract = contracts[name]
        for site in contract.sites(shapes):
            question = planning.question(contract, Problem.at(contract, site), rows)
            outcomes = planning.outcomes(question)
            unserved += [nothing_serves(question, item.mask, item.refused) for item in outcomes if item.choice is None]
            choices = tuple(item.choice for item in outcomes if item.choice is not None)
            selections.append(Selection(contract.version, question.problem, choices))
    if unserved:
        raise SelectionError("\n".join([*unserved, *planning.failures()]))
    return Plan(
        device=device,
        model=shapes.name,
        rows=rows_text(rows),
        settings=settings,
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
    package_reasons: dict[Package, Reason | None] = field(default_factory=dict)
    known: dict[tuple[str, str, tuple[int, ...]], tuple[Outcome, ...]] = field(default_factory=dict)

    def check_settings(self) -> None:
        """Refuse settings of unknown operators, and pins that name no candidate."""
        unknown_pins = []
        for name in sorted(self.settings.operators):
            if name not in self.contracts:
                origin = next(
                    (text for leaf, text in self.settings.origins.items() if leaf.startswith(f"ops.{name}.")),
                    "settings",
                )
                raise ConfigError(f"{origin}: no operator is named {name!r}{did_you_mean(name, self.contracts)}")
            pin = self.settings.of(name).pin
            ids = [item.id for item in self.registry.of(name)] + [f"core/{name}/reference"]
            if self.contracts[name].decomposition:
                ids.append(f"core/{name}/composed")
            if pin is not None and pin not in ids:
                origin = self.settings.origin(f"ops.{name}.pin")
                have = ", ".join(sorted(ids))
                unknown_pins.append(
                    f"ops.{name}.pin ({origin}): no kernel is named {pin!r}{did_you_mean(pin, ids)}\n  {name} has: {have}"
                )
        if unknown_pins:
            raise SelectionError("\n".join([*unknown_pins, *self.failures()]))

    def failures(self) -> list[str]:
        """Return one line per plugin that failed to load: what is missing may be what was wanted."""
        return [str(failure) for failure in self.registry.failures]

    def question(self, contract: Contract, problem: Problem, rows: tuple[int, ...]) -> Question:
        """Return what is asked of an operator at a place."""
        policy = operator_policy(self.settings, self.device, contract.name, small=contract.small)
        return Question(contract, problem, rows, self.settings, policy)

    def outcomes(self, question: Question) -> tuple[Outcome, ...]:
        """Return what serves a question, as a partition of its row counts, by lowest row count."""
        key = (question.contract.name, question.problem.site, question.rows)
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
        evaluations = [evaluate(item, question, self.device, self.check_package) for item in self.registry.of(name)]
        evaluations.append(evaluation(reference_candidate(name, arch), question, traits=_CORE_TRAITS))
        parts, findings = self._parts(question)
        if question.contract.decomposition:
            levels = [item.choice.kernel.evidence for _, outcomes in parts for item in outcomes if item.choice]
            candidate = composed_candidate(name, levels)
            evaluations.append(evaluation(candidate, question, traits=_CORE_TRAITS, parts=findings))
        ranked = rank(evaluations, self.settings.of(name))
        masks = {finding.mask for item in ranked for finding in item.findings}
        for block in _partition(question.everywhere, masks):
            outcome = self._choose(question, ranked, block)
            if outcome.choice is None or outcome.choice.kernel.id != f"core/{name}/composed":
                yield outcome
                continue
            for smaller in _partition(block, {item.mask for _, outcomes in parts for item in outcomes}):
                yield self._with_parts(self._choose(question, ranked, smaller), parts)

    def _parts(self, question: Question) -> tuple[list[tuple[Question, tuple[Outcome, ...]]], list[Finding]]:
        """Return each part of a fused operator with its outcomes, and why the decomposition may not serve."""
        decomposition = question.contract.decomposition
        parts: list[tuple[Question, tuple[Outcome, ...]]] = []
        findings: list[Finding] = []
        for name in decomposition.parts if decomposition else ():
            contract = self.contracts[name]
            sites = contract.sites(self.shapes)
            same = [site for site in sites if site.name == question.problem.site] or (sites if len(sites) == 1 else ())
            if not same:
                got = ", ".join(site.name for site in sites) or "none"
                reason = Reason(ReasonCode.PART, name, f"a site {question.problem.site}", got)
                findings.append(Finding(reason, question.everywhere))
                continue
            rows = part_rows(question.contract, name, question.problem, question.rows)
            part = self.question(contract, Problem.at(contract, same[0]), rows)
            outcomes = self.outcomes(part)
            parts.append((part, outcomes))
            for item in outcomes:
                if item.choice is None:
                    reasons = "; ".join(f"{refusal.candidate.id}: {refusal.reasons[0]}" for refusal in item.refused)
                    findings.append(
                        Finding(
                            Reason(ReasonCode.PART, name, "a kernel that may serve it", f"none ({reasons})"), item.mask
                        )
                    )
        return parts, findings

    def _choose(self, question: Question, ranked: Sequence[Evaluation], block: int) -> Outcome:
        """Return the first eligible candidate of a block of row counts with one outcome, with all others beside it."""
        eligible: list[Candidate] = []
        refused: list[tuple[int, Candidate, Ineligible]] = []
        for item in ranked:
            verdict = item.verdict(question, block)
            if isinstance(verdict, Eligible):
                eligible.append(item.candidate)
            else:
                refused.append((len(eligible), item.candidate, verdict))
        refusals = tuple(Refusal(candidate, verdict.reasons, before == 0) for before, candidate, verdict in refused)
        pin = question.policy.pin
        if not eligible or (pin is not None and eligible[0].id != pin):
            return Outcome(block, None, refusals)
        chosen, *standby = eligible
        own = self.settings.of(question.contract.name)
        tied = standby and preference(standby[0], own) == preference(chosen, own)
        choice = Choice(
            rows=rows_text(counts_in(question.rows, block)),
            kernel=chosen,
            standby=tuple(standby),
            refused=refusals,
            below=question.policy.is_weaker(chosen),
            tie=standby[0].id if tied else "",
        )
        return Outcome(block, choice, refusals)

    def _with_parts(self, outcome: Outcome, parts: Sequence[tuple[Question, tuple[Outcome, ...]]]) -> Outcome:
        """Return a decomposition's outcome with what serves each part in the same block."""
        chosen = []
        for part, outcomes in parts:
            choice = next(item.choice for item in outcomes if item.mask & outcome.mask)
            here = replace(choice, rows=rows_text(counts_in(part.rows, outcome.mask)))
            chosen.append(Selection(part.contract.version, part.problem, (here,)))
        evidence = composed_candidate("", [item.choices[0].kernel.evidence for item in chosen]).evidence
        kernel = replace(outcome.choice.kernel, evidence=evidence)
        below = outcome.choice.below or any(item.choices[0].below for item in chosen)
        return replace(outcome, choice=replace(outcome.choice, kernel=kernel, below=below, parts=tuple(chosen)))


def _partition(block: int, masks: set[int]) -> list[int]:
    """Return the coarsest partition of a block in which every mask holds for a part wholly or not at all."""
    parts = [block]
    for mask in masks:
        parts = [piece for part in parts for piece in (part & mask, part & ~mask) if piece]
    return sorted(parts, key=lambda part: part & -part)
