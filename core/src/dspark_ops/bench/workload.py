"""One launch, from the inside: load, count, warm up, run the timed runs, and say what was measured."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dspark_ops._lazy import torch
from dspark_ops.bench.calls import CallCounter, KnockOut
from dspark_ops.bench.measurement import Dispatch, Measurement
from dspark_ops.binding.observed import observed
from dspark_ops.errors import ConfigError
from dspark_ops.suggest import did_you_mean

if TYPE_CHECKING:
    from dspark_ops.api.reason import Reason
    from dspark_ops.decode import Generation, Model, Request

__all__ = ["LaunchSpec", "run_launch"]


#: Fields that belong to one launch or one arm, not to the work that both arms share.
_ONE_ARM = ("config", "execution", "gate", "knock_out")


@dataclass(frozen=True, slots=True)
class LaunchSpec:
    """What one launch decodes.

    Attributes:
        model: model directory.
        prompts: texts, in the order in which they are decoded.
        config: configuration file, or None.
        device: ``cpu`` or ``cuda``.
        gamma: drafts per block; None takes the model's own.
        max_tokens: tokens per prompt; the end-of-text token does not end a request, so that every run has as many.
        batch: prompts at once; groups of this size are decoded one after the other.
        temperature, seed: of sampling; 0 is greedy.
        warmups: runs before the timed ones, behind the counted one.
        runs: timed runs.
        execution: how the steps of a cycle are run, see `dspark_ops.decode.options.Execution`.
        gate: compare the greedy tokens of the counted run with plain decoding first.
        knock_out: operator to take out of the timed runs, or empty; see `dspark_ops.bench.calls.KnockOut`.
    """

    model: str
    prompts: tuple[str, ...]
    config: str | None = None
    device: str = "cpu"
    gamma: int | None = None
    max_tokens: int = 64
    batch: int = 1
    temperature: float = 0.0
    seed: int = 0
    warmups: int = 1
    runs: int = 5
    execution: str = "packed"
    gate: bool = False
    knock_out: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return it with plain types only."""
        return asdict(self)

    def workload(self) -> dict[str, Any]:
        """Return what both arms of a comparison must share."""
        shared = {name: value for name, value in asdict(self).items() if name not in _ONE_ARM}
        text = "\0".join(self.prompts).encode()
        return shared | {
            "model": Path(self.model).name,
            "prompts": len(self.prompts),
            "prompts_digest": hashlib.sha256(text).hexdigest()[:16],
        }


@dataclass(frozen=True, slots=True)
class Run:
    """One pass over all prompts."""

    tokens: list[tuple[int, ...]]
    accept: Any
    cycle_us: float
    tps: float
    ttft_ms: float


def run_launch(spec: LaunchSpec, model: Model) -> Measurement:
    """Return what one launch measured.

    First comes a run whose operators are counted, then warm-up runs and timed runs with the operators as they are: no
    counter, clock or print of the bench is inside a timed run (R4.8, R4.10). A run decodes the prompts group by group.

    Raises:
        ConfigError: the operator to knock out is not one of the model's.
        ModelError: the model cannot serve the prompts.
    """
    work = _Work(spec, model)
    counter = CallCounter(timed=spec.device == "cpu")
    counted = work.run(observed(work.ops, counter.around), work.uncaptured)
    gate = work.gate(counted) if spec.gate else ""
    for _ in range(spec.warmups):
        work.run(work.ops)
    runs = [work.run(work.ops) for _ in range(spec.runs)]
    accept = runs[0].accept
    tokens = {_digest(run.tokens) for run in runs}
    return Measurement(
        cycle_us=tuple(run.cycle_us for run in runs),
        output_tps=tuple(run.tps for run in runs),
        ttft_ms=tuple(run.ttft_ms for run in runs),
        accept_len=accept.mean_accept_len,
        histogram=dict(sorted(accept.histogram.items())),
        verify_steps=accept.verify_steps,
        requests_per_step=accept.verify_steps / accept.forwards,
        trimmed=accept.trimmed,
        warmups=1 + spec.warmups,
        tokens_digest="+".join(sorted(tokens)),
        cached_tokens=0,  # decoding has no prefix cache
        folded_share=accept.folded / accept.forwards,
        eager_fallbacks=sum(accept.unfolded.values()),
        first_fallback=next(iter(accept.unfolded), ""),
        gate=gate,
        dispatch=tuple(_dispatch(model, spec, counter)),
        ceiling=spec.knock_out,
    )


class _Work:
    """A model with its operators and requests."""

    def __init__(self, spec: LaunchSpec, model: Model) -> None:
        from dspark_ops.decode import DecodeOptions, Request, SamplingParams
        from dspark_ops.decode.options import Execution

        if model.tokenizer is None:
            raise ConfigError(f"{spec.model}: wanted a model with a tokenizer")
        self.model = model
        self.ops = model.ops(spec.gamma)
        self.knock_out = KnockOut(spec.knock_out) if spec.knock_out else None
        if self.knock_out:
            known = sorted(self.ops)
            if spec.knock_out not in known:
                hint = did_you_mean(spec.knock_out, known)
                raise ConfigError(f"knock out {spec.knock_out!r}: wanted one of {', '.join(known)}{hint}")
            self.ops = observed(self.ops, self.knock_out.around)
        execution = Execution(spec.execution)
        self.options = DecodeOptions(spec.gamma, max_batch=spec.batch, ignore_eos=True, execution=execution)
        # A graph replays without calling anything: calls are counted in the same steps, run without graphs.
        captured = spec.device != "cpu" and execution in (Execution.GRAPH, Execution.FOLDED)
        self.uncaptured = replace(self.options, execution=Execution.STATIC) if captured else self.options
        requests = [
            Request(
                model.tokenizer.encode(text),
                spec.max_tokens,
                SamplingParams(temperature=spec.temperature, seed=spec.seed + number),
            )
            for number, text in enumerate(spec.prompts)
        ]
        self.groups = [requests[start : start + spec.batch] for start in range(0, len(requests), spec.batch)]
        self.greedy = spec.temperature == 0.0

    def run(self, ops: Any, options: Any = None) -> Run:
        from dspark_ops.decode import DecodeMetrics

        total, tokens, times = DecodeMetrics(), [], []
        model: Any = _Served(self.model, ops)
        if self.knock_out:
            self.knock_out.begin_run()
        for group in self.groups:
            generation, ttft, seconds = _generate(model, group, options or self.options)
            times.append((ttft, seconds, generation.metrics.emitted - len(group)))
            total = total.merged(generation.metrics)
            tokens += [result.tokens for result in generation.results]
        return Run(
            tokens=tokens,
            accept=total,
            # by the loop's own clock, apart from the client's, so that the two can be held against each other
            cycle_us=1e6 * total.seconds / total.forwards,
            tps=sum(count for _, _, count in times) / sum(seconds for _, seconds, _ in times),
            ttft_ms=1e3 * sum(ttft for ttft, _, _ in times) / len(times),
        )

    def gate(self, counted: Run) -> str:
        """Return whether greedy tokens equal those of plain decoding."""
        from dspark_ops.decode import decode_plain

        if not self.greedy:
            return ""
        plain = [decode_plain(self.model, group, self.options) for group in self.groups]
        wanted = [result.tokens for generation in plain for result in generation.results]
        pairs = enumerate(zip(wanted, counted.tokens, strict=True), 1)
        different = [number for number, (plainly, drafted) in pairs if plainly != drafted]
        return "passed" if not different else f"failed: prompts {different} give other tokens than plain decoding"


class _Served:
    """A model that serves its calls with given operators."""

    def __init__(self, model: Model, ops: Any) -> None:
        self._model = model
        self._ops = ops

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def ops(self, gamma: int | None = None, *, check: bool = False, simulated: bool = False) -> Any:
        return self._ops


def _generate(model: Any, group: Sequence[Request], options: Any) -> tuple[Generation, float, float]:
    """Return what a group gives, the seconds to its first tokens and those from there to its last, as a client sees."""
    from dspark_ops.decode import generate

    waiting = set(range(len(group)))
    first = last = began = time.perf_counter()

    def seen(index: int, _: tuple[int, ...]) -> None:
        nonlocal first, last
        last = time.perf_counter()
        if index in waiting:
            waiting.discard(index)
            first = last

    generation = generate(model, group, options, on_tokens=seen)
    if model.torch_device != "cpu":
        torch.cuda.synchronize()  # behind the run: nothing of it may be left in flight for the next one
    return generation, first - began, last - first


def _dispatch(model: Model, spec: LaunchSpec, counter: CallCounter) -> list[Dispatch]:
    reasons = dict(_reasons(model.plan(spec.gamma).selections))
    return [
        Dispatch(place.operator, place.kernel, calls, place.rank, reasons.get((place.operator, place.kernel), ""), s, c)
        for place, calls, s, c in counter.rows()
    ]


def _reasons(selections: Any) -> Any:
    for selection in selections:
        for choice in selection.choices:
            refused = [
                f"{item.candidate.id} refused: {_short(item.reasons[0])}" for item in choice.refused if item.better
            ]
            yield (selection.operator, choice.kernel.id), "; ".join(refused) or "first of those that may serve"
            yield from _reasons(choice.parts)


def _short(reason: Reason) -> str:
    return f"{reason.code.value} {reason.field}: wanted {reason.wanted}, got {reason.got.partition(' (')[0]}"


def _digest(tokens: Sequence[Sequence[int]]) -> str:
    return hashlib.sha256(repr([list(row) for row in tokens]).encode()).hexdigest()[:16]
