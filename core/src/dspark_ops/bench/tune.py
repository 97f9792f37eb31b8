"""Tuning the choice: every kernel that may serve an operator on this device, timed beside the others.

The times go into a table that is read where a lock is written. Kernels take turns on the same inputs, and one that
computes something else than the contract says is not timed. On a GPU, calls are replayed from graphs over input sets
that together exceed the cache; on a CPU they are plain calls.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import dspark_ops
from dspark_ops import contracts
from dspark_ops._lazy import torch
from dspark_ops.api.kernel import Evidence
from dspark_ops.bench.agreement import Wanted, called_once
from dspark_ops.bench.inputs import Place, bench_inputs
from dspark_ops.bench.timing import CallGraph, alternate, spread
from dspark_ops.contracts.contract import Contract, Site
from dspark_ops.selection.device import Device
from dspark_ops.selection.evidence import EvidenceRecord, digest_of
from dspark_ops.selection.fingerprint import triton_version
from dspark_ops.selection.measured import MeasuredTime
from dspark_ops.selection.named_model import named_shapes
from dspark_ops.selection.plan import Plan
from dspark_ops.selection.registry import Registry
from dspark_ops.selection.settings import Settings

__all__ = ["METHODS", "Tuning"]

#: How times are taken, as the table says it.
METHODS: Final = {
    "cuda": "CUDA-graph replays over inputs larger than the cache, kernels in turn, median of the rounds",
    "cpu": "plain calls on one set of inputs, kernels in turn, median of the rounds",
}
_LEAST_SETS: Final = 8
_MOST_SETS: Final = 384
#: A round of plain calls takes about this long per kernel.
_ROUND_SECONDS: Final = 0.002

Prepare = Callable[[Mapping[str, Any]], Callable[[], Any]]


@dataclass(slots=True)
class Tuning:
    """One run.

    Attributes:
        device: what kernels run on, which must be this machine's.
        model: name of the model's shapes.
        settings: the configuration; what it denies is not timed.
        registry: the installed kernels.
        rounds: turns of each kernel.
        notes: what was not timed, and why, one line each; filled as `times` runs.
    """

    device: Device
    model: str
    settings: Settings
    registry: Registry
    rounds: int
    notes: list[str]

    @property
    def place(self) -> str:
        """The torch device type of the kernels."""
        return "cuda" if self.device.is_accelerator else "cpu"

    def times(self, operator: str, rows: Sequence[int]) -> Iterator[MeasuredTime]:
        """Yield the times of an operator at every place of the model and row count where two or more kernels may serve.

        Raises:
            UnknownOperatorError: there is no such operator.
        """
        contract = contracts.get(operator)
        sites = contract.sites(named_shapes(self.model))
        if not sites:
            self.notes.append(f"{operator}: {self.model} does not call it")
        for site in sites:
            for count in rows:
                kernels = self._kernels(operator, site.name, count)
                if len(kernels) < 2:
                    only = f"only {kernels[0]} may serve it" if kernels else "no kernel may serve it"
                    self.notes.append(f"{operator} at {site.name}, rows {count}: {only}")
                    continue
                yield from self._timed(contract, site, count, kernels)

    def records(self, times: Sequence[MeasuredTime], date: str) -> tuple[EvidenceRecord, ...]:
        """Return a record of ``measured`` for each kernel that was timed, as of a date."""
        versions = {"torch": str(torch.__version__), **({"triton": triton_version()} if triton_version() else {})}
        found = {
            time.kernel: EvidenceRecord(
                kernel=time.kernel, level=Evidence.MEASURED, arch=self.device.arch.name, by="tune", date=date,
                sources=time.sources, contract=contracts.get(time.operator).version, device=self.device.name,
                driver=self.device.driver, versions=versions,
            )
            for time in times
        }  # fmt: skip
        return tuple(found.values())

    def _plan(self, operator: str, rows: int, pin: str | None = None) -> Plan:
        own = replace(self.settings.of(operator), pin=pin)
        policy = replace(self.settings.policy, fallback="allow", lock="off", smoke="off", evidence=None)
        settings = replace(self.settings, policy=policy, operators={**self.settings.operators, operator: own})
        return dspark_ops.plan(
            device=self.device, model=self.model, rows=(rows,), config=settings, registry=self.registry,
            operators=(operator,),
        )  # fmt: skip

    def _kernels(self, operator: str, site: str, rows: int) -> list[str]:
        """Return the plugins' kernels that may serve at one place and row count."""
        selection = next(item for item in self._plan(operator, rows).of(operator) if item.site == site)
        choice = selection.choices[0]
        return [candidate.id for candidate in (choice.kernel, *choice.standby) if candidate.target]

    def _timed(self, contract: Contract, site: Site, rows: int, kernels: Sequence[str]) -> Iterator[MeasuredTime]:
        where = f"{contract.name} at {site.name}, rows {rows}"
        try:
            generator = torch.Generator(self.place).manual_seed(0)
            sets = self._sets(Place(contract, site, rows, generator))
            wanted = Wanted(contract, sets[0])
        except Exception as error:  # one operator's inputs must not cost the others
            self.notes.append(f"{where}: no inputs: {type(error).__name__}: {error}")
            return
        calls: dict[str, list[Callable[[], Any]]] = {}
        for kernel in kernels:
            try:
                prepare = self._prepare(contract, site.name, rows, kernel)
                wrong = wanted.disagreement(called_once(contract, prepare, sets[0]))
                if wrong:
                    self.notes.append(f"{where}: {kernel} is wrong, so not timed: {wrong}")
                    continue
                calls[kernel] = [prepare(inputs) for inputs in sets]
            except Exception as error:  # a kernel may raise anything; the others go on
                self.notes.append(f"{where}: {kernel} was not timed: {type(error).__name__}: {error}")
        sources = {entry.id: digest_of(entry) for entry in self.registry.of(contract.name)}
        for kernel, samples in self._samples(calls).items():
            found = spread(samples.values())
            yield MeasuredTime(
                kernel=kernel, operator=contract.name, site=site.name, axes=dict(sorted(site.axes.items())), rows=rows,
                us=round(found.median, 3), low=round(found.p10, 3), high=round(found.p90, 3), calls=found.rounds,
                sources=sources[kernel],
            )  # fmt: skip

    def _sets(self, place: Place) -> list[dict[str, Any]]:
        first = bench_inputs(place)
        if self.place == "cpu":
            return [first]
        from dspark_ops.bench.machine import cache_bytes

        tensors = [value for value in first.values() if isinstance(value, torch.Tensor)]
        size = max(sum(tensor.numel() * tensor.element_size() for tensor in tensors), 1)
        count = min(_MOST_SETS, max(_LEAST_SETS, math.ceil(2 * cache_bytes() / size)))
        return [first, *(bench_inputs(place) for _ in range(count - 1))]

    def _prepare(self, contract: Contract, site: str, rows: int, kernel: str) -> Prepare:
        bound = self._plan(contract.name, rows, pin=kernel).bind()
        function = getattr(bound.at(rows=rows, site=site), contract.name)

        def prepare(inputs: Mapping[str, Any]) -> Callable[[], Any]:
            arguments = [inputs[parameter.name] for parameter in contract.parameters]
            return lambda: function(*arguments)

        return prepare

    def _samples(self, calls: Mapping[str, Sequence[Callable[[], Any]]]) -> dict[str, dict[int, float]]:
        """Return microseconds per call of each kernel by round; alternating order evens out drift."""
        if not calls:
            return {}
        if self.place == "cuda":
            return alternate({kernel: CallGraph(own) for kernel, own in calls.items()}, self.rounds)
        repeats = {kernel: _repeats(own[0]) for kernel, own in calls.items()}
        samples: dict[str, dict[int, float]] = {kernel: {} for kernel in calls}
        for number in range(self.rounds):
            for kernel in calls if number % 2 == 0 else reversed(list(calls)):
                samples[kernel][number] = _seconds(calls[kernel][0], repeats[kernel]) / repeats[kernel] * 1e6
        return samples


def _repeats(call: Callable[[], Any]) -> int:
    call()
    return max(1, round(_ROUND_SECONDS / max(_seconds(call, 1), 1e-7)))


def _seconds(call: Callable[[], Any], repeats: int) -> float:
    start = time.perf_counter()
    for _ in range(repeats):
        call()
    return time.perf_counter() - start
