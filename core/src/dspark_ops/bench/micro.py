"""The bench of single operators: the planned kernel beside its peers, one operator and row count at a time."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import dspark_ops
from dspark_ops import contracts
from dspark_ops._lazy import torch
from dspark_ops.api.kernel import RankClass
from dspark_ops.bench.agreement import Wanted, called_once
from dspark_ops.bench.floors import bytes_moved
from dspark_ops.bench.inputs import Place, bench_inputs
from dspark_ops.bench.machine import OWN, cache_bytes
from dspark_ops.bench.peers import Adapter, Peer, UnfitError
from dspark_ops.bench.timing import CallGraph, alternate, comparison, spread
from dspark_ops.contracts.contract import Contract, Site
from dspark_ops.contracts.model_shapes import ModelShapes
from dspark_ops.errors import EvidenceError, SelectionError
from dspark_ops.selection.device import Device
from dspark_ops.selection.named_model import named_shapes
from dspark_ops.selection.plan import Choice, Plan
from dspark_ops.selection.settings import Settings

__all__ = ["OWN", "PARTS", "Bench", "Group"]

#: Name of the arm of a fused operator's parts.
PARTS: Final = "parts"

#: Input sets of a graph: fewer than 8 would let the replays show; together they are to exceed the cache this often.
_LEAST_SETS: Final = 8
_MOST_SETS: Final = 384
_CACHES: Final = 2.0
#: Captured calls per binding: kernels whose programs meet through words of the bound operator have set aside words for
#: 32 captured calls, as many as an engine's graphs of one row count need; a further one costs a node that zeroes some.
_CALLS_PER_BINDING: Final = 24
#: A peer so slow that one replay would take longer than this has fewer calls in its graph.
_REPLAY_US: Final = 8_000.0


@dataclass(frozen=True, slots=True)
class Arm:
    """One way to make the calls of a group: what it is, and a function from inputs to the call."""

    name: str
    what: str
    prepare: Callable[[Mapping[str, Any]], Callable[[], Any]]
    outputs: Callable[[Any, Mapping[str, Any]], Mapping[str, Any]] | None = None
    adapter: Adapter | None = None


@dataclass(slots=True)
class Group:
    """One operator at one place and row count, captured and ready to be timed.

    Attributes:
        record: what is known of it, with plain types only; `timed` adds the times.
    """

    record: dict[str, Any]
    graphs: dict[str, CallGraph] = field(default_factory=dict)
    kept: list[Any] = field(default_factory=list)

    def timed(self, rounds: int) -> dict[str, Any]:
        """Return the record with microseconds per call of each arm, and the peers' ratios to the own one."""
        samples = alternate(self.graphs, rounds) if self.graphs else {}
        for name, values in samples.items():
            arm = self.record["arms"][name]
            arm |= spread(values.values()).to_json()
            if name != OWN and OWN in samples:
                arm["own_is_faster"] = comparison(samples[OWN], values).to_json()
        return self.record


@dataclass(frozen=True, slots=True)
class Bench:
    """What a run measures.

    Attributes:
        device: the GPU.
        model: name of the model's shapes.
        settings: the configuration; its policy does not matter, since operators without a kernel are reported as such.
        peers: what to compare with.
        peer_rows: row counts at which a peer takes part, by its name; absent: all.
    """

    device: Device
    model: str
    settings: Settings
    peers: Sequence[Peer] = ()
    peer_rows: Mapping[str, Sequence[int]] = field(default_factory=dict)

    @property
    def shapes(self) -> ModelShapes:
        """The model's sizes."""
        return named_shapes(self.model)

    def operators(self) -> tuple[str, ...]:
        """Return the operators of the model that some kernel of a plugin serves on this device."""
        plan = self.plan(None, (1, 6))
        own = [selection for selection in plan.selections if any(_is_kernel(one) for one in selection.choices)]
        return tuple(dict.fromkeys(selection.operator for selection in own))

    def plan(self, operators: Sequence[str] | None, rows: Sequence[int], settings: Settings | None = None) -> Plan:
        """Return the plan for some operators; references may serve in it."""
        base = settings or self.settings
        allowing = replace(base, policy=replace(base.policy, fallback="allow"))
        return dspark_ops.plan(device=self.device, model=self.model, rows=rows, config=allowing, operators=operators)

    def group(self, operator: str, rows: int, seed: int = 0) -> Group:
        """Return one operator at its first place, checked and captured; what failed is in the record, with the reason.

        Raises:
            UnknownOperatorError: there is no such operator.
        """
        contract = contracts.get(operator)
        sites = contract.sites(self.shapes)
        record: dict[str, Any] = {"op": operator, "rows": rows, "arms": {}, "unfit": {}}
        group = Group(record)
        if not sites:
            record["failed"] = f"{self.model} does not call {operator}"
            return group
        record |= {"site": sites[0].name, "rows_axis": contract.rows, "axes": dict(sites[0].axes)}
        try:
            self._fill(group, contract, sites[0], rows, seed)
        except Exception as error:  # one operator's failure is a result, and must not cost the others
            record["failed"] = f"{type(error).__name__}: {str(error).strip()}"
            group.graphs.clear()
        return group

    def _fill(self, group: Group, contract: Contract, site: Site, rows: int, seed: int) -> None:
        record = group.record
        generator = torch.Generator("cuda").manual_seed(seed)
        place = Place(contract, site, rows, generator)
        first = bench_inputs(place)
        size = _bytes(first)
        count = min(_MOST_SETS, max(_LEAST_SETS, math.ceil(_CACHES * cache_bytes() / max(size, 1))))
        sets = [first, *(bench_inputs(place) for _ in range(count - 1))]
        group.kept.append(sets)
        wanted = Wanted(contract, first)
        moved = bytes_moved(contract, first, wanted.outputs)
        record |= {"bytes": moved, "sets": count, "working_set_bytes": size * count}
        for arm in self._arms(record, contract, site, rows):
            try:
                got = called_once(contract, arm.prepare, first, arm.outputs)
                wrong = wanted.disagreement(got, arm.adapter.accuracy if arm.adapter else None)
                if wrong:
                    raise EvidenceError(f"wrong numbers, so not timed: {wrong}")
                graph = CallGraph(_calls(arm, sets))
            except UnfitError as error:
                record["unfit"][arm.name] = str(error)
                continue
            except Exception as error:  # a peer may raise anything; the other arms go on
                torch.cuda.synchronize()
                if arm.name == OWN:
                    raise
                record["unfit"][arm.name] = f"{type(error).__name__}: {str(error).strip()[:500]}"
                continue
            group.graphs[arm.name] = graph
            per_call = None if graph.launches is None else round(graph.launches / graph.calls, 3)
            others = None if graph.other_nodes is None else round(graph.other_nodes / graph.calls, 3)
            record["arms"][arm.name] = {
                "what": arm.what,
                "launches": per_call,
                "copies_and_fills": others,
                "calls": graph.calls,
            }

    def _arms(self, record: dict[str, Any], contract: Contract, site: Site, rows: int) -> list[Arm]:
        """Return the arms of a group, and note in the record who does not take part and why."""
        plan = self.plan((contract.name,), (rows,))
        choice = _choice(plan, contract.name, site.name, rows)
        arms = []
        if _is_kernel(choice):
            record["evidence"] = choice.kernel.evidence.value
            arms.append(_bound_arm(OWN, plan, choice, contract, site, rows))
            if contract.decomposition:
                try:
                    arms.append(self._parts(contract, site, rows, choice))
                except SelectionError as error:
                    record["unfit"][PARTS] = str(error).partition("\n")[0]
        else:
            record["failed"] = f"no kernel serves it here: the plan has {choice.kernel.id}"
        for peer in self.peers:
            if rows not in self.peer_rows.get(peer.name, (rows,)):
                continue
            adapter = peer.missing or peer.adapter(contract)
            if isinstance(adapter, str):
                record["unfit"][peer.name] = adapter
                continue
            what = f"{peer.version}" if not adapter.note else f"{peer.version}: {adapter.note}"
            arms.append(Arm(peer.name, what, adapter.prepare, adapter.outputs, adapter))
        return arms

    def _parts(self, contract: Contract, site: Site, rows: int, fused: Choice) -> Arm:
        """Return the arm of a fused operator's parts: what the plan has when every whole kernel is denied."""
        whole = [item.id for item in (fused.kernel, *fused.standby) if not item.id.startswith("core/")]
        denied = replace(self.settings.of(contract.name), deny=tuple(whole), pin=None)
        settings = replace(self.settings, operators={**self.settings.operators, contract.name: denied})
        plan = self.plan((contract.name,), (rows,), settings)
        choice = _choice(plan, contract.name, site.name, rows)
        return _bound_arm(PARTS, plan, choice, contract, site, rows)


def _bound_arm(name: str, plan: Plan, choice: Choice, contract: Contract, site: Site, rows: int) -> Arm:
    bound: list[Callable[..., Any]] = []
    calls = 0

    def prepare(inputs: Mapping[str, Any]) -> Callable[[], Any]:
        nonlocal calls
        if calls % _CALLS_PER_BINDING == 0:
            bound.append(getattr(plan.bind().at(rows=rows, site=site.name), contract.name))
        calls += 1
        function = bound[-1]
        arguments = [inputs[parameter.name] for parameter in contract.parameters]
        return lambda: function(*arguments)

    parts = ", ".join(part.choices[0].kernel.id for part in choice.parts)
    return Arm(name, parts or choice.kernel.id, prepare)


def _calls(arm: Arm, sets: Sequence[Mapping[str, Any]]) -> list[Callable[[], Any]]:
    """Return an arm's calls, one per set of inputs; of a slow peer's only so many that a replay is over soon."""
    if arm.name in (OWN, PARTS):
        return [arm.prepare(inputs) for inputs in sets]
    first = arm.prepare(sets[0])
    first()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    first()
    end.record()
    end.synchronize()
    most = int(_REPLAY_US / max(float(begin.elapsed_time(end)) * 1e3, 1.0))
    return [first, *(arm.prepare(inputs) for inputs in sets[1 : max(_LEAST_SETS, most)])]


def _choice(plan: Plan, operator: str, site: str, rows: int) -> Choice:
    return next(one for one in plan.of(operator) if one.site == site).by_rows[rows]


def _is_kernel(choice: Choice) -> bool:
    return choice.kernel.rank in (RankClass.FUSED, RankClass.PORTABLE)


def _bytes(inputs: Mapping[str, Any]) -> int:
    tensors = [value for value in inputs.values() if isinstance(value, torch.Tensor)]
    return sum(value.numel() * value.element_size() for value in tensors)
