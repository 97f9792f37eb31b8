"""The bench of a whole decode cycle: all its operators in one graph, under two plans that take turns."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import dspark_ops
from dspark_ops import contracts
from dspark_ops._lazy import torch
from dspark_ops.bench.cycle_steps import GEMM, Step, cycle_layout, cycle_steps
from dspark_ops.bench.inputs import Place, bench_inputs
from dspark_ops.bench.timing import CallGraph, alternate, comparison, spread
from dspark_ops.errors import ConfigError, EvidenceError
from dspark_ops.selection.device import Device
from dspark_ops.selection.named_model import named_shapes
from dspark_ops.selection.plan import Plan
from dspark_ops.selection.settings import OperatorSettings, Settings
from dspark_ops.suggest import did_you_mean

__all__ = ["PRESETS", "CycleBench", "preset_settings", "time_cycle"]

#: Input sets that an operator's calls go round.
_SETS: Final = 8
#: Plans that need no file: what is planned, the torch references, and fused operators made of their parts.
PRESETS: Final = ("planned", "reference", "parts")


def preset_settings(name: str, base: Settings) -> Settings:
    """Return the settings of a preset on top of others.

    Raises:
        ConfigError: there is no such preset.
    """
    if name == "planned":
        return base
    known = contracts.all_contracts()
    if name == "reference":
        order = {operator: OperatorSettings(order=("core/*/reference",)) for operator in known}
    elif name == "parts":
        fused = [operator for operator, contract in known.items() if contract.decomposition]
        order = {
            operator: replace(base.of(operator), pin=None, order=("core/*/composed", "core/*/reference"))
            for operator in fused
        }
    else:
        raise ConfigError(f"no plan {name!r}: wanted {', '.join(PRESETS)} or a file{did_you_mean(name, PRESETS)}")
    return replace(base, operators={**base.operators, **order})


@dataclass(frozen=True, slots=True)
class CycleBench:
    """What is measured.

    Attributes:
        device: the GPU.
        model: name of the model's shapes.
        rows: rows of the verify step.
        arms: settings by name, two of them.
        gap_us: microseconds for which a stub holds the place of each matrix product or collective; 0 leaves them out.
    """

    device: Device
    model: str
    rows: int
    arms: Mapping[str, Settings]
    gap_us: float = 0.0


@dataclass(slots=True)
class _Arm:
    """One plan's calls of the cycle."""

    plan: Plan
    calls: dict[Step, list[Callable[[], Any]]] = field(default_factory=dict)
    refused: dict[Step, str] = field(default_factory=dict)


def time_cycle(bench: CycleBench, rounds: int, seed: int = 0) -> dict[str, Any]:
    """Return the cycle's time and launches under each plan, and each operator's part, with plain types only.

    An operator that cannot be captured under one plan is left out of both, so that the totals stay comparable; the
    result lists it with the reason. The parts are timed alone, each operator's calls in one graph: they add up to
    roughly the cycle.

    Raises:
        EvidenceError: not two arms, or no operator is left.
    """
    if len(bench.arms) != 2:
        raise EvidenceError(f"a cycle compares two plans, got {len(bench.arms)}")
    shapes = named_shapes(bench.model)
    steps = list(cycle_steps(cycle_layout(bench.model), shapes, bench.rows))
    kinds = [step for step in dict.fromkeys(steps) if step.operator != GEMM]
    arms = {name: _Arm(_plan(bench, settings, kinds)) for name, settings in bench.arms.items()}
    inputs = {step: _inputs(bench, step, seed) for step in kinds}
    for arm in arms.values():
        _fill(arm, inputs)
    left_out = {step: arm.refused[step] for arm in arms.values() for step in arm.refused}
    run = [step for step in steps if step not in left_out]
    counts = Counter(step for step in run if step.operator != GEMM)
    if not counts:
        raise EvidenceError("no operator of the cycle can be captured: " + "; ".join(left_out.values()))
    stub = _stub(bench.gap_us)
    whole = {name: CallGraph([lambda run=run, arm=arm: _once(run, arm, stub)]) for name, arm in arms.items()}
    samples = alternate(whole, rounds)
    first, second = samples
    gaps = sum(step.operator == GEMM for step in run)
    return {
        "model": bench.model,
        "rows": bench.rows,
        "gemm_stubs": {"places": gaps, "us_each": bench.gap_us},
        "arms": {
            name: {
                **spread(samples[name].values()).to_json(),
                "launches": whole[name].launches,
                "copies_and_fills": whole[name].other_nodes,
                "plan": arms[name].plan.digest,
            }
            for name in arms
        },
        "b_over_a": comparison(samples[first], samples[second]).to_json(),
        "operators": _parts(arms, counts, max(5, rounds // 2)),
        "left_out": [
            {"operator": step.operator, "site": step.site, "rows": step.rows, "calls": steps.count(step), "why": why}
            for step, why in left_out.items()
        ],
    }


def _plan(bench: CycleBench, settings: Settings, kinds: Sequence[Step]) -> Plan:
    allowing = replace(settings, policy=replace(settings.policy, fallback="allow"))
    return dspark_ops.plan(
        device=bench.device,
        model=bench.model,
        rows=sorted({step.rows for step in kinds}),
        config=allowing,
        operators=sorted({step.operator for step in kinds}),
    )


def _inputs(bench: CycleBench, step: Step, seed: int) -> list[dict[str, Any]]:
    contract = contracts.get(step.operator)
    site = next(site for site in contract.sites(named_shapes(bench.model)) if site.name == step.site)
    generator = torch.Generator("cuda").manual_seed(seed)
    place = Place(contract, site, step.rows, generator)
    return [bench_inputs(place) for _ in range(_SETS)]


def _fill(arm: _Arm, inputs: Mapping[Step, Sequence[Mapping[str, Any]]]) -> None:
    """Bind the plan, and try each kind of call in a graph of its own."""
    ops = arm.plan.bind()
    for step, sets in inputs.items():
        contract = contracts.get(step.operator)
        function = getattr(ops.at(rows=step.rows, site=step.site), step.operator)
        bound = [[one[parameter.name] for parameter in contract.parameters] for one in sets]
        calls = [lambda arguments=arguments, function=function: function(*arguments) for arguments in bound]
        try:
            CallGraph(calls[:1])
        except Exception as error:  # an operator that cannot run must not cost the cycle
            torch.cuda.synchronize()
            arm.refused[step] = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0][:300]}"
        else:
            arm.calls[step] = calls


def _once(run: Sequence[Step], arm: _Arm, stub: Callable[[], None] | None) -> list[Any]:
    """Call the cycle once, and return what the calls returned, so that each has memory of its own."""
    turn: Counter[Step] = Counter()
    kept = []
    for step in run:
        if step.operator == GEMM:
            if stub is not None:
                stub()
            continue
        calls = arm.calls[step]
        kept.append(calls[turn[step] % len(calls)]())
        turn[step] += 1
    return kept


def _stub(gap_us: float) -> Callable[[], None] | None:
    """Return a call that keeps one unit of the GPU waiting for that long, or None for no time."""
    if gap_us <= 0:
        return None
    graphs = CallGraph([lambda: torch.cuda._sleep(100_000)] * 8)
    per_cycle = min(graphs.run() for _ in range(3)) / 100_000
    cycles = max(1, round(gap_us / per_cycle))
    return lambda: torch.cuda._sleep(cycles)


def _parts(arms: Mapping[str, _Arm], counts: Mapping[Step, int], rounds: int) -> list[dict[str, Any]]:
    """Return for each kind of call what serves it under each plan, its time for all its calls, and its share."""
    rows: list[dict[str, Any]] = []
    totals: Counter[str] = Counter()
    for step, count in counts.items():
        graphs = {}
        for name, arm in arms.items():
            calls = arm.calls[step]
            graphs[name] = CallGraph([calls[turn % len(calls)] for turn in range(max(count, _SETS))])
        samples = alternate(graphs, rounds)
        entry: dict[str, Any] = {"operator": step.operator, "site": step.site, "rows": step.rows, "calls": count}
        for name, graph in graphs.items():
            found = spread(samples[name].values())
            totals[name] += count * found.median
            launches = None if graph.launches is None else round(graph.launches / graph.calls, 3)
            kernel = _kernel(arms[name].plan, step)
            entry[name] = {"kernel": kernel, **found.to_json(), "us": count * found.median, "launches": launches}
        rows.append(entry)
    for entry in rows:
        for name in arms:
            part = entry[name]
            part["share"] = round(part["us"] / totals[name], 4)
            part["us"] = round(part["us"], 2)
    return sorted(rows, key=lambda entry: -max(entry[name]["us"] for name in arms))


def _kernel(plan: Plan, step: Step) -> str:
    chosen = next(one for one in plan.of(step.operator) if one.site == step.site)
    return chosen.by_rows[step.rows].kernel.id
