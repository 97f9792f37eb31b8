"""The comparison of two arms: verdict, intervals, and what was not shown."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from enum import Enum
from statistics import fmean, median
from typing import Any

from dspark_ops.bench.comparable import incomparable
from dspark_ops.bench.limits import limits, notes
from dspark_ops.bench.pairing import Pair, figures, measured, pairs_of
from dspark_ops.bench.record import ArmRecord, Launch
from dspark_ops.bench.sensitivity import Sensitivity, sensitivity
from dspark_ops.bench.statistics import Estimate, p_value, paired_estimate, percent, two_sample_estimate
from dspark_ops.bench.treatment import treatment_evidence

__all__ = ["ArmSummary", "Comparison", "Verdict", "compare_arms", "decide"]


class Verdict(str, Enum):
    """What a comparison says."""

    FASTER = "B is faster"
    SLOWER = "B is slower"
    NOISE = "not distinguishable from noise"
    CEILING = "ceiling"
    VOID = "no statement"


@dataclass(frozen=True, slots=True)
class ArmSummary:
    """Figures of one arm: medians over its launches, each of which is a median over its timed runs (R4.6).

    Waits of the host for the device are those of one run, behind its first tokens (R4.14); None where they were not
    counted in every launch. `conformance` and `gate` are what a launch found before it was timed (R4.13).
    """

    arm: str
    launches: int
    cycle_us: float
    output_tps: float | None
    tps_normalised: float | None
    ttft_ms: float | None
    accept_len: float | None
    verify_steps: int
    histogram: dict[int, int]
    host_syncs: int | None = None
    host_syncs_per_cycle: float | None = None
    conformance: str = ""
    gate: str = ""


@dataclass(frozen=True, slots=True)
class Comparison:
    """What two arms show.

    Attributes:
        verdict: see `Verdict`; VOID if there is any fault.
        text: the verdict in one sentence, with its figures.
        simulated: acceptance was drawn in at least one launch.
        interleaved: launches were pairs of neighbours; else drift between sessions is in the effect.
        effect: of cycles per second; positive where B is faster.
        p: two-sided p-value of no effect.
        control: the same estimate of A against A.
        tps, tps_normalised: effect on tokens per second, as measured and with the acceptance length taken out.
        pairs, control_pairs: all pairs.
        arms: both arms' figures.
        treated: operators that the arms serve differently: operator, kernel of A, kernel of B.
        sensitivity: what this many pairs could have found.
        faults: why there is no statement.
        left_out: launches that do not count, each with the reason.
        notes: what a reader should know.
        not_shown: what the comparison does not show.
    """

    verdict: Verdict
    text: str
    simulated: bool
    interleaved: bool
    effect: Estimate | None
    p: float | None
    control: Estimate | None
    tps: Estimate | None
    tps_normalised: Estimate | None
    pairs: tuple[Pair, ...]
    control_pairs: tuple[Pair, ...]
    arms: tuple[ArmSummary, ...] | None
    treated: tuple[tuple[str, str, str], ...]
    sensitivity: Sensitivity | None
    faults: tuple[str, ...]
    left_out: tuple[str, ...]
    notes: tuple[str, ...]
    not_shown: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """Return it with plain types only; effects in percent."""
        names = ("text", "simulated", "interleaved", "p", "faults", "left_out", "notes", "not_shown", "treated")
        return {
            **{name: getattr(self, name) for name in names},
            "verdict": self.verdict.value,
            **{name: _estimate(getattr(self, name)) for name in ("effect", "control", "tps", "tps_normalised")},
            **{name: [_pair(pair) for pair in getattr(self, name)] for name in ("pairs", "control_pairs")},
            "arms": [asdict(arm) for arm in self.arms] if self.arms else None,
            "sensitivity": self.sensitivity.to_json() if self.sensitivity else None,
        }


def compare_arms(first: ArmRecord, second: ArmRecord, confidence: float = 0.95) -> Comparison:
    """Return what two arms show, `first` being A and `second` B.

    The estimate is the mean of the paired launch log-ratios with its t interval (R4.5). Arms of different sessions are
    compared too, as two samples. Faults never stop the comparison: they make its verdict "no statement".
    """
    pairs = pairs_of(first, second)
    interleaved = first.session == second.session
    faults = [str(difference) for difference in incomparable(first, second)]
    for launch in pairs.launches:
        faults += [f"launch {launch.number} (arm {launch.arm.value}): {text}" for text in measured(launch).faults()]
    evidence = treatment_evidence(first, second, (pairs.first, pairs.second))
    faults += evidence.faults
    if len({measured(item).simulated for item in pairs.launches}) > 1:
        faults.append("acceptance was drawn in some launches and found in others: their cycles are not the same work")
    effect = control = None
    if min(len(pairs.first), len(pairs.second)) < 2:
        faults.append(f"fewer than 2 launches of each arm count ({len(pairs.first)} of A, {len(pairs.second)} of B)")
    elif interleaved:
        effect = paired_estimate([pair.ratio for pair in pairs.compared], confidence)
    else:
        logs = [[math.log(measured(item).cycle) for item in group] for group in (pairs.first, pairs.second)]
        effect = two_sample_estimate(logs[0], logs[1], confidence)
    if len(pairs.control) >= 2:
        control = paired_estimate([pair.ratio for pair in pairs.control], confidence)
    ceiling = next((measured(item).ceiling for item in pairs.second if measured(item).ceiling), "")
    verdict = Verdict.VOID if faults or effect is None else decide(effect, control)
    arms = (
        (_summary("A", pairs.first, pairs), _summary("B", pairs.second, pairs))
        if pairs.first and pairs.second
        else None
    )
    simulated = any(measured(item).simulated for item in pairs.launches)
    found = _sensitivity(effect, control, confidence) if interleaved else None
    return Comparison(
        verdict=Verdict.CEILING if ceiling and verdict is not Verdict.VOID else verdict,
        text=_text(verdict, effect, control, ceiling, simulated, len(faults)),
        simulated=simulated,
        interleaved=interleaved,
        effect=effect,
        p=p_value(effect) if effect else None,
        control=control,
        tps=_rates(pairs.compared, confidence, normalised=False),
        tps_normalised=_rates(pairs.compared, confidence, normalised=True),
        pairs=pairs.compared,
        control_pairs=pairs.control,
        arms=arms,
        treated=evidence.treated,
        sensitivity=found,
        faults=tuple(faults),
        left_out=pairs.left_out,
        notes=tuple(notes(first, second, pairs, ceiling)),
        not_shown=(*evidence.not_shown, *limits(first, second, pairs, control, evidence.treated)),
    )


def decide(effect: Estimate, control: Estimate | None) -> Verdict:
    """Return what an effect is called: found only beyond zero, and beyond all that A against A may be (R4.2)."""
    if effect.includes_zero or (control is not None and abs(effect.mean) <= control.reach):
        return Verdict.NOISE
    return Verdict.FASTER if effect.mean > 0 else Verdict.SLOWER


def _text(
    verdict: Verdict, effect: Estimate | None, control: Estimate | None, ceiling: str, simulated: bool, faults: int
) -> str:
    if effect is None or verdict is Verdict.VOID:
        return f"no statement: {faults} fault{'s' if faults != 1 else ''}, see below"
    lead = "simulated acceptance: " if simulated else ""
    if ceiling:
        lead += (
            f"ceiling of {ceiling}, which was taken out (no kernel for it can gain more, give or take the interval): "
        )
    beside = f"; A/A {control.text()}" if control else "; no A/A control"
    why = ""
    if verdict is Verdict.NOISE:
        why = " (the interval includes 0)" if effect.includes_zero else " (inside the A/A interval)"
    return f"{lead}{verdict.value}{why}: {effect.text()} cycles per second{beside}"


def _rates(pairs: Sequence[Pair], confidence: float, normalised: bool) -> Estimate | None:
    """Return the effect on tokens per second; with `normalised`, per accepted token of a step."""
    rates = figures(pairs, lambda item: item.tps)
    lengths = figures(pairs, lambda item: item.accept_len) if normalised else [0.0] * len(pairs)
    if rates is None or lengths is None or len(pairs) < 2:
        return None
    return paired_estimate([length - rate for rate, length in zip(rates, lengths, strict=True)], confidence)


def _sensitivity(effect: Estimate | None, control: Estimate | None, confidence: float) -> Sensitivity | None:
    found = [item for item in (effect, control) if item]
    if effect is None:
        return None
    freedom = sum(item.pairs - 1 for item in found)
    deviation = math.sqrt(sum(item.deviation**2 * (item.pairs - 1) for item in found) / freedom)
    origin = "A/B and A/A pairs" if control else "A/B pairs"
    return sensitivity(deviation, origin, effect.pairs, control.pairs if control else 0, confidence)


def _summary(name: str, launches: Sequence[Launch], pairs: Any) -> ArmSummary:
    items = [measured(launch) for launch in launches]
    rates = [rate for item in items if (rate := item.tps) is not None]
    waits = [median(item.ttft_ms) for item in items if item.ttft_ms]
    lengths = [item.accept_len for item in items if item.accept_len is not None]
    base = [item.accept_len for item in map(measured, pairs.first) if item.accept_len is not None]
    histogram: dict[int, int] = {}
    for item in items:
        for length, count in item.histogram.items():
            histogram[length] = histogram.get(length, 0) + count
    mean = fmean(lengths) if len(lengths) == len(items) else None
    tps = median(rates) if len(rates) == len(items) else None
    known = tps and mean and len(base) == len(pairs.first)
    syncs = [(item.host_syncs, item.cycles) for item in items if item.host_syncs is not None]
    counted = len(syncs) == len(items)
    return ArmSummary(
        arm=name,
        launches=len(items),
        cycle_us=median(item.cycle for item in items),
        output_tps=tps,
        tps_normalised=tps * fmean(base) / mean if known and tps and mean else None,
        ttft_ms=median(waits) if waits else None,
        accept_len=mean,
        verify_steps=sum(item.verify_steps for item in items),
        histogram=dict(sorted(histogram.items())),
        conformance=next((item.conformance for item in items if item.conformance), ""),
        gate=next((item.gate for item in items if item.gate), ""),
        host_syncs=round(median(count for count, _ in syncs)) if counted else None,
        host_syncs_per_cycle=(
            median(count / cycles for count, cycles in syncs)
            if counted and all(cycles for _, cycles in syncs)
            else None
        ),
    )


def _estimate(estimate: Estimate | None) -> dict[str, Any] | None:
    if estimate is None:
        return None
    ends = {name: percent(getattr(estimate, name)) for name in ("mean", "low", "high")}
    return {f"{name}_percent": value for name, value in ends.items()} | {
        "mean_log_ratio": estimate.mean,
        "pair_deviation": estimate.deviation,
        "pairs": estimate.pairs,
        "freedom": estimate.freedom,
        "confidence": estimate.confidence,
    }


def _pair(pair: Pair) -> dict[str, Any]:
    return {
        "pair": pair.number,
        "launches": [pair.first.number, pair.second.number],
        "cycle_us": [measured(pair.first).cycle, measured(pair.second).cycle],
        "effect_percent": percent(pair.ratio),
    }
