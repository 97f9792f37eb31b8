"""One launch, from the inside: load, count, warm up, run the timed runs, and say what was measured."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dspark_ops import contracts
from dspark_ops.bench.calls import CallCounter
from dspark_ops.bench.gates import all_bitwise
from dspark_ops.bench.measurement import Dispatch, Measurement
from dspark_ops.bench.runs import Work
from dspark_ops.binding.observed import observed

if TYPE_CHECKING:
    from dspark_ops.api.reason import Reason
    from dspark_ops.decode import Model

__all__ = ["LaunchSpec", "run_launch"]


#: Fields that belong to one launch or one arm, not to the work that both arms share.
_ONE_ARM = ("config", "execution", "gate", "conformance", "knock_out")


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
        gate: compare tokens with plain decoding first: greedy ones one by one, sampled ones by their law.
        conformance: hold the kernels against their contracts first; see `dspark_ops.bench.gates.KernelCheck`.
        knock_out: operator to take out of the timed runs, or empty; see `dspark_ops.bench.calls.KnockOut`.
        simulated: fields of `dspark_ops.decode.forced.ForcedAcceptance`: the accept lengths are drawn, equally in both
            arms; None for a real run.
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
    conformance: bool = False
    knock_out: str = ""
    simulated: Mapping[str, Any] | None = None

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


def run_launch(spec: LaunchSpec, model: Model) -> Measurement:
    """Return what one launch measured.

    First come the checks that are asked for and a run whose operators are counted, then warm-up runs, one in which the
    host's waits are counted, and timed runs with the operators as they are: no counter, clock or print of the bench is
    inside a timed run (R4.8, R4.10). A run decodes the prompts group by group.

    Raises:
        ConfigError: the operator to knock out is not one of the model's.
        ModelError: the model cannot serve the prompts.
    """
    work = Work(spec, model)
    counter = CallCounter(timed=spec.device == "cpu")
    counted = work.run(observed(work.ops, counter.around), work.uncaptured)
    conformance = work.conformance() if spec.conformance else ""
    gate = work.gate(counted) if spec.gate else ""
    for _ in range(spec.warmups):
        work.run(work.ops)
    waits = work.host_waits()
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
        warmups=1 + spec.warmups + (waits is not None),
        tokens_digest="+".join(sorted(tokens)),
        cached_tokens=0,  # decoding has no prefix cache
        simulated=spec.simulated is not None,
        folded_share=accept.folded / accept.forwards,
        eager_fallbacks=sum(accept.unfolded.values()),
        first_fallback=next(iter(accept.unfolded), ""),
        host_syncs=waits,
        conformance=conformance,
        gate=gate,
        dispatch=tuple(_dispatch(model, spec, counter)),
        ceiling=spec.knock_out,
    )


def _dispatch(model: Model, spec: LaunchSpec, counter: CallCounter) -> list[Dispatch]:
    plan = model.plan(spec.gamma, simulated=spec.simulated is not None)
    reasons = dict(_reasons(plan.selections))
    return [
        Dispatch(
            place.operator, place.kernel, calls, place.rank, reasons.get((place.operator, place.kernel), ""), seconds,
            composed, all_bitwise(contracts.get(place.operator)),
        )
        for place, calls, seconds, composed in counter.rows()
    ]  # fmt: skip


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
