"""The figures of a run as others define them (C4.1), and as JSON and Prometheus text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dspark_ops.decode.metrics import DecodeMetrics
from dspark_ops.decode.request import Result
from dspark_ops.errors import InvariantError

if TYPE_CHECKING:
    from dspark_ops.decode.serving import ServiceLoad

__all__ = ["Figures", "PositionRate", "figures_of", "prometheus_text"]

_PREFIX = "dspark_ops_decode"


@dataclass(frozen=True, slots=True)
class PositionRate:
    """How often the draft of one position is accepted.

    Attributes:
        position: 1 to gamma.
        proposed: blocks that had a draft there.
        judged: those in which it was verified and all drafts before it were right.
        accepted: those in which it was accepted.
    """

    position: int
    proposed: int
    judged: int
    accepted: int

    @property
    def unconditional(self) -> float:
        """Accepted of proposed: what vLLM logs. Drafts that were not verified count as not accepted."""
        return self.accepted / self.proposed if self.proposed else 0.0

    @property
    def conditional(self) -> float:
        """Accepted of judged: the chance of this draft, given that those before it are right."""
        return self.accepted / self.judged if self.judged else 0.0


@dataclass(frozen=True, slots=True)
class Figures:
    """What a run says of itself.

    Attributes:
        accept_len: tokens per request and verify step, the final one included, without those of prefills, before
            trimming.
        accept_rate: accepted drafts of proposed ones.
        cycle_us: microseconds per cycle: time after the prefills by verify steps of the whole batch; it does not depend
            on what is accepted.
        requests_per_cycle: requests that take part in a cycle, on average.
        verify_rate: rows verified of rows that whole blocks have; below 1 the schedule leaves drafts out.
        accepted_share: rows that became valid of rows verified.
        output_tps: emitted tokens per second after the prefills, prefill tokens left out.
        expected_tps: what accept length and cycle time say that `output_tps` should be, tokens that were trimmed behind
            the end of a request subtracted.
        client_tps: the same as a reader of the stream measures it, from the first to the last token of each request;
            only while requests run one at a time, else 0. It comes from another clock reading than `output_tps`.
        positions: per draft position.
        simulated: accepted lengths were drawn, not found.
    """

    accept_len: float
    accept_rate: float
    cycle_us: float
    requests_per_cycle: float
    verify_rate: float
    accepted_share: float
    output_tps: float
    expected_tps: float
    client_tps: float
    positions: tuple[PositionRate, ...]
    simulated: bool = False

    def to_json(self) -> dict[str, Any]:
        """Return the figures with plain types; each rate by position says of what it is a share."""
        plain = {name: getattr(self, name) for name in self.__dataclass_fields__ if name != "positions"}
        per_position = [
            {
                "position": rate.position,
                "proposed": rate.proposed,
                "judged": rate.judged,
                "accepted": rate.accepted,
                "accepted_of_proposed": rate.unconditional,
                "accepted_of_judged": rate.conditional,
            }
            for rate in self.positions
        ]
        return {**plain, "per_position": per_position}


def figures_of(metrics: DecodeMetrics, results: Sequence[Result] = (), *, simulated: bool = False) -> Figures:
    """Return the figures of a run.

    Args:
        metrics: counts and times of the whole run.
        results: of its requests, for `Figures.client_tps`.
        simulated: accepted lengths were drawn.

    Raises:
        InvariantError: the counters do not agree: emitted tokens are not what prefills, accepted drafts and final
            tokens give, so that tokens per second would not be accept length by cycle time.

    Source: C4.1.
    """
    steps, cycles = metrics.verify_steps, metrics.forwards
    wanted = metrics.prefills + metrics.accepted + steps - metrics.trimmed
    if metrics.emitted != wanted:
        raise InvariantError(
            f"{metrics.emitted} tokens were emitted, and prefills, accepted drafts and final tokens less those trimmed "
            f"are {wanted}: the counters of this run disagree"
        )
    cycle_us = 1e6 * metrics.seconds / cycles if cycles else 0.0
    per_cycle = steps / cycles if cycles else 0.0
    trimmed = metrics.trimmed / steps if steps else 0.0
    expected = (metrics.mean_accept_len - trimmed) * per_cycle * 1e6 / cycle_us if cycle_us else 0.0
    alone = sum(result.timing.rest for result in results) if steps == cycles else 0.0
    places = range(max(metrics.offered, default=-1) + 1)
    return Figures(
        accept_len=metrics.mean_accept_len,
        accept_rate=metrics.accepted / metrics.proposed if metrics.proposed else 0.0,
        cycle_us=cycle_us,
        requests_per_cycle=per_cycle,
        verify_rate=metrics.verified_rows / (metrics.proposed + steps) if steps else 0.0,
        accepted_share=(metrics.accepted + steps) / metrics.verified_rows if metrics.verified_rows else 0.0,
        output_tps=metrics.tokens_per_second,
        expected_tps=expected,
        client_tps=sum(max(len(result.tokens) - 1, 0) for result in results) / alone if alone else 0.0,
        positions=tuple(
            PositionRate(place + 1, metrics.offered[place], metrics.reached[place], metrics.correct[place])
            for place in places
        ),
        simulated=simulated,
    )


def prometheus_text(
    metrics: DecodeMetrics,
    labels: Mapping[str, str] | None = None,
    *,
    load: ServiceLoad | None = None,
    simulated: bool = False,
) -> str:
    """Return counters, the histogram of accept lengths and gauges in Prometheus' text format, version 0.0.4.

    Args:
        metrics: of a run, or of a service so far.
        labels: put on every sample.
        load: how busy the service is at the moment.
        simulated: accepted lengths were drawn; every sample is labelled with it.

    Raises:
        InvariantError: see `figures_of`.
    """
    found = figures_of(metrics, simulated=simulated)
    base = {**(labels or {}), **({"simulated": "true"} if simulated else {})}
    lines: list[str] = []
    for name, text in _COUNTERS.items():
        lines += _family(f"{_PREFIX}_{name}_total", "counter", text, [(base, getattr(metrics, name))])
    for name, text in _BY_POSITION.items():
        samples = [({**base, "position": str(rate.position)}, getattr(rate, name)) for rate in found.positions]
        lines += _family(f"{_PREFIX}_position_{name}_total", "counter", text, samples)
    lines += _accept_lens(metrics, base)
    for name, text in _GAUGES.items():
        lines += _family(f"{_PREFIX}_{name}", "gauge", text, [(base, getattr(found, name))])
    for name, text in _LOAD.items() if load is not None else ():
        lines += _family(f"{_PREFIX}_{name}", "gauge", text, [(base, getattr(load, name))])
    return "\n".join(lines) + "\n"


_COUNTERS = {
    "emitted": "Tokens given to callers.",
    "prefills": "Requests whose prompt was run.",
    "prompt_rows": "Prompt tokens run through the target.",
    "verify_steps": "Verify steps, counted once per request that takes part.",
    "verified_rows": "Rows of verify steps, anchors included.",
    "proposed": "Drafts proposed.",
    "accepted": "Drafts accepted.",
    "trimmed": "Tokens dropped behind the end of a request.",
    "cut_by_schedule": "Drafts proposed and not verified.",
    "forwards": "Verify steps, counted once per batch.",
    "folded": "Verify steps that accepted on the device.",
}
_BY_POSITION = {
    "proposed": "Blocks that had a draft at this position.",
    "judged": "Blocks in which the draft was verified and those before it were right.",
    "accepted": "Blocks in which the draft was accepted.",
}
_GAUGES = {
    "accept_len": "Tokens per request and verify step, the final one included.",
    "cycle_us": "Microseconds per cycle, prefills left out.",
    "verify_rate": "Rows verified of rows that whole blocks have.",
    "output_tps": "Tokens per second, prefills left out.",
}


_LOAD = {
    "running": "Requests that run.",
    "waiting": "Requests that wait for a place or for pages.",
    "used_pages": "Shared pages of the caches that are taken.",
    "pages": "Shared pages of the caches; 0 if every place has its own.",
    "short_of_pages": "Shared pages that the first waiting request lacks; 0 if it waits for a place.",
}


def _accept_lens(metrics: DecodeMetrics, base: Mapping[str, str]) -> Iterator[str]:
    name = f"{_PREFIX}_accept_len_tokens"
    yield f"# HELP {name} Accept lengths of verify steps, the final token included."
    yield f"# TYPE {name} histogram"
    total = 0
    for length in range(1, max(metrics.histogram, default=0) + 1):
        total += metrics.histogram[length]
        yield _sample(f"{name}_bucket", {**base, "le": str(length)}, total)
    yield _sample(f"{name}_bucket", {**base, "le": "+Inf"}, total)
    yield _sample(f"{name}_sum", base, metrics.accepted + metrics.verify_steps)
    yield _sample(f"{name}_count", base, total)


def _family(name: str, kind: str, text: str, samples: list[tuple[dict[str, str], float]]) -> Iterator[str]:
    yield f"# HELP {name} {text}"
    yield f"# TYPE {name} {kind}"
    for labels, value in samples:
        yield _sample(name, labels, value)


def _sample(name: str, labels: Mapping[str, str], value: float) -> str:
    inside = ",".join(f'{key}="{_escaped(text)}"' for key, text in labels.items())
    return f"{name}{{{inside}}} {value!r}" if inside else f"{name} {value!r}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
