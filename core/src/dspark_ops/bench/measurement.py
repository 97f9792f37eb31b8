"""What one launch measured: times, acceptance and dispatch, and whether its own figures agree with each other."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Any

__all__ = ["IDENTITY_TOLERANCE", "LONG_RUN", "Dispatch", "Measurement"]

#: By how much tokens per second may differ from acceptance length over cycle time (C4.4, R4.6).
IDENTITY_TOLERANCE = 0.02
#: Cycles from which a run's end, a fifth of a cycle at most, is within that.
LONG_RUN = 10


@dataclass(frozen=True, slots=True)
class Dispatch:
    """Who served an operator, and how often it was called.

    Attributes:
        operator, kernel, rank: the operator, the id of its kernel, and the kernel's class.
        calls: calls in one run of the workload, counted before the timed runs.
        why: in one line why this kernel.
        seconds: time inside these calls in the counted run; None where calls return before they are done.
        composed: it only calls its parts, which are listed too.
        bitwise: the operator's contract is exact to the bit in every output; None if not known.
    """

    operator: str
    kernel: str
    calls: int
    rank: str = ""
    why: str = ""
    seconds: float | None = None
    composed: bool = False
    bitwise: bool | None = None


@dataclass(frozen=True, slots=True)
class Measurement:
    """The figures of one launch (C4.1).

    Attributes:
        cycle_us: microseconds of a decode cycle without the prefill, one figure per timed run.
        output_tps: tokens per second after the first, one figure per timed run; empty if not given.
        ttft_ms: milliseconds to the first token, one figure per timed run; empty if not given.
        accept_len: mean tokens of a verify step of a request, the final one included; None if not given.
        histogram: verify steps by accept length.
        verify_steps: verify steps of one timed run, counted once per request that takes part.
        requests_per_step: mean requests that take part in a cycle.
        trimmed: tokens of a timed run that were accepted and dropped behind the end.
        warmups: runs before the timed ones.
        tokens_digest: hash of all tokens that the timed runs gave, or empty.
        cached_tokens: prompt tokens that a prefix cache served; None if not given.
        simulated: acceptance was drawn, so the text means nothing.
        selection: the launch was used to choose a configuration, so it is no evidence for it (R4.3).
        folded_share: share of cycles that accept on the device, as the tail of the verify step; None if not given.
        eager_fallbacks, first_fallback: cycles that could not, in a run that folds, and the first reason (R4.14).
        host_syncs: how often the host waited for the device in one run, behind the first tokens; None if not given.
        conformance: what holding the kernels against their contracts found: ``passed ...``, ``failed: ...``, or empty
            if that was not done.
        gate: what comparing the tokens with plain decoding found, in the same form.
        dispatch: who served what; None if not given.
        ceiling: operator that was taken out of the timed runs, or empty.
        ignored: names that the launch printed and that mean nothing here.
    """

    cycle_us: tuple[float, ...]
    output_tps: tuple[float, ...] = ()
    ttft_ms: tuple[float, ...] = ()
    accept_len: float | None = None
    histogram: Mapping[int, int] = field(default_factory=dict)
    verify_steps: int = 0
    requests_per_step: float = 1.0
    trimmed: float = 0.0
    warmups: int | None = None
    tokens_digest: str = ""
    cached_tokens: int | None = None
    simulated: bool = False
    selection: bool = False
    folded_share: float | None = None
    eager_fallbacks: int | None = None
    first_fallback: str = ""
    host_syncs: int | None = None
    conformance: str = ""
    gate: str = ""
    dispatch: tuple[Dispatch, ...] | None = None
    ceiling: str = ""
    ignored: tuple[str, ...] = ()

    @property
    def cycle(self) -> float:
        """The launch's statistic: the median of its cycle times, in microseconds (R4.4)."""
        return median(self.cycle_us)

    @property
    def tps(self) -> float | None:
        """Median tokens per second, if given."""
        return median(self.output_tps) if self.output_tps else None

    @property
    def dispatch_hash(self) -> str:
        """Hash of who serves what; calls and times do not enter. Empty without dispatch evidence."""
        if self.dispatch is None:
            return ""
        table = sorted({(item.operator, item.kernel) for item in self.dispatch})
        return hashlib.sha256(json.dumps(table).encode()).hexdigest()[:16]

    @property
    def cycles(self) -> float:
        """Cycles of one timed run; 0 if the verify steps are not given."""
        return self.verify_steps / self.requests_per_step

    def failed_checks(self) -> list[str]:
        """Return what the checks before the timed runs found wrong (R4.13)."""
        return [text for text in (self.conformance, self.gate) if text.startswith("failed")]

    def faults(self) -> Iterator[str]:
        """Yield what makes this launch worth nothing."""
        if self.cached_tokens:
            yield f"{self.cached_tokens} prompt tokens came from a prefix cache: wanted 0, flush or disable it"
        if self.warmups == 0:
            yield "no warm-up run: the timed runs hold compilation and autotuning"
        yield from (f"the check before the timed runs {text}" for text in self.failed_checks())
        tolerance = self.identity_tolerance()
        if (difference := self.identity_error()) is not None and abs(difference) > tolerance:
            yield (
                f"the counters disagree: {self.tps:.2f} tokens/s is {100 * difference:+.1f} % from what accept length "
                f"{self.accept_len:.3f} and {self.cycle:.1f} us per cycle give, wanted within "
                f"{100 * tolerance:.2g} %"
            )

    def identity_error(self) -> float | None:
        """Return how far tokens per second are from acceptance length over cycle time, relative; None if not known.

        Tokens dropped behind the end of a request were accepted, and are no output: they are taken off.
        """
        if self.tps is None or self.accept_len is None:
            return None
        kept = self.accept_len - (self.trimmed / self.verify_steps if self.verify_steps else 0.0)
        return self.tps * self.cycle / (1e6 * kept * self.requests_per_step) - 1.0

    def identity_tolerance(self) -> float:
        """Return how far they may be: `IDENTITY_TOLERANCE`, and more for runs of fewer than `LONG_RUN` cycles.

        The client's time ends with the last token, the loop's a part of a cycle later.
        """
        return IDENTITY_TOLERANCE * max(1.0, LONG_RUN / self.cycles if self.cycles else 1.0)

    def to_json(self) -> dict[str, Any]:
        """Return all figures with plain types only."""
        return asdict(self) | {"histogram": {str(key): value for key, value in self.histogram.items()}}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Measurement:
        """Return the measurement that `to_json` wrote.

        Raises:
            KeyError, TypeError, ValueError: the data is none.
        """
        values = dict(data)
        for name in ("cycle_us", "output_tps", "ttft_ms", "ignored"):
            values[name] = tuple(values.get(name, ()))
        values["histogram"] = {int(key): int(count) for key, count in values.get("histogram", {}).items()}
        if values.get("dispatch") is not None:
            values["dispatch"] = tuple(Dispatch(**item) for item in values["dispatch"])
        return cls(**values)
