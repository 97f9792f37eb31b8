"""Statistics of paired launches: the interval of an effect, and what an experiment of this size could have found.

Everything here works on log-ratios. A launch has one number, its median cycle time; a pair is two neighbouring launches
of the two arms; its log-ratio is ``ln(time of A / time of B)``, so that a positive effect means that B is faster.
Cycles and requests within a launch are never counted as the sample (C4.4, R4.5): they share a process, and with it the
choices of its autotuners.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dspark_ops._lazy import LazyModule
from dspark_ops.errors import ContractError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[Any]

__all__ = [
    "Estimate",
    "log_ratios",
    "p_value",
    "paired_estimate",
    "percent",
    "power",
    "two_sample_estimate",
    "verdict_power",
]

# scipy is in the extra `bench`; numpy comes with it.
numpy = LazyModule("numpy", "bench")
scipy = LazyModule("scipy", "bench")

_DRAWS = 20_000


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean log-ratio with its Student t interval.

    Attributes:
        mean: mean log-ratio; `percent` turns it into a percentage.
        low, high: ends of the interval.
        deviation: standard deviation of what was averaged, ``pairs - 1`` in the denominator.
        pairs: how many log-ratios there are; for two unpaired samples, the smaller one's size.
        freedom: degrees of freedom of the interval.
        confidence: its level, such as 0.95.
    """

    mean: float
    low: float
    high: float
    deviation: float
    pairs: int
    freedom: float
    confidence: float

    @property
    def includes_zero(self) -> bool:
        """Whether no difference at all is inside the interval."""
        return self.low <= 0.0 <= self.high

    @property
    def reach(self) -> float:
        """The largest absolute log-ratio inside the interval."""
        return max(abs(self.low), abs(self.high))

    def text(self) -> str:
        """Return the estimate for people, in percent."""
        level = f"{100 * self.confidence:g} %"
        return f"{percent(self.mean):+.2f} % [{percent(self.low):+.2f}, {percent(self.high):+.2f}] ({level})"


def percent(log_ratio: float) -> float:
    """Return a log-ratio as the percentage by which the second arm is faster."""
    return 100.0 * math.expm1(log_ratio)


def log_ratios(first: Sequence[float], second: Sequence[float]) -> list[float]:
    """Return ``ln(first / second)`` of each pair of times.

    Raises:
        ContractError: the counts differ, or a time is not a positive number.
    """
    if len(first) != len(second):
        raise ContractError(f"paired times: wanted equally many of both arms, got {len(first)} and {len(second)}")
    for value in (*first, *second):
        if not (value > 0 and math.isfinite(value)):
            raise ContractError(f"paired times: wanted positive numbers, got {value}")
    return [math.log(left / right) for left, right in zip(first, second, strict=True)]


def paired_estimate(ratios: Sequence[float], confidence: float = 0.95) -> Estimate:
    """Return the mean of paired log-ratios with its t interval of ``pairs - 1`` degrees of freedom (R4.5).

    Raises:
        ContractError: there are fewer than two pairs, a ratio is not finite, or the confidence is not in (0, 1).
    """
    _check(ratios, confidence)
    count = len(ratios)
    mean = math.fsum(ratios) / count
    deviation = _deviation(ratios, mean)
    half = float(scipy.stats.t.ppf(0.5 + confidence / 2, count - 1)) * deviation / math.sqrt(count)
    return Estimate(mean, mean - half, mean + half, deviation, count, count - 1, confidence)


def two_sample_estimate(first: Sequence[float], second: Sequence[float], confidence: float = 0.95) -> Estimate:
    """Return the difference of two samples of log times, first minus second, with Welch's interval.

    For launches that were not interleaved: drift between the two sessions is part of this difference.

    Raises:
        ContractError: a sample has fewer than two values, a value is not finite, or the confidence is not in (0, 1).
    """
    _check(first, confidence)
    _check(second, confidence)
    means = math.fsum(first) / len(first), math.fsum(second) / len(second)
    parts = [_deviation(v, m) ** 2 / len(v) for v, m in zip((first, second), means, strict=True)]
    error = math.sqrt(sum(parts))
    weights = [part**2 / (len(values) - 1) for part, values in zip(parts, (first, second), strict=True)]
    freedom = sum(parts) ** 2 / sum(weights) if sum(weights) else float(len(first) + len(second) - 2)
    mean = means[0] - means[1]
    half = float(scipy.stats.t.ppf(0.5 + confidence / 2, freedom)) * error
    size = min(len(first), len(second))
    return Estimate(mean, mean - half, mean + half, error * math.sqrt(size), size, freedom, confidence)


def p_value(estimate: Estimate) -> float:
    """Return the two-sided p-value of no difference."""
    error = estimate.deviation / math.sqrt(estimate.pairs)
    if error == 0.0:
        return 1.0 if estimate.mean == 0.0 else 0.0
    return float(2 * scipy.stats.t.sf(abs(estimate.mean) / error, estimate.freedom))


def power(effect: float, deviation: float, pairs: int, confidence: float = 0.95) -> float:
    """Return the chance that the t interval of `pairs` pairs excludes zero, for a true log-ratio `effect`.

    Args:
        effect: true mean log-ratio.
        deviation: true standard deviation of one pair's log-ratio; launch noise of each arm times the root of two.
        pairs: number of pairs, 2 or more.
        confidence: level of the interval.
    """
    if deviation == 0.0:
        return float(effect != 0.0)
    edge = float(scipy.stats.t.ppf(0.5 + confidence / 2, pairs - 1))
    shift = abs(effect) / deviation * math.sqrt(pairs)
    return float(scipy.stats.nct.sf(edge, pairs - 1, shift) + scipy.stats.nct.cdf(-edge, pairs - 1, shift))


def verdict_power(
    effect: float, deviation: float, pairs: int, control_pairs: int, confidence: float = 0.95, seed: int = 0
) -> float:
    """Return the chance that the whole verdict calls an effect found: beyond zero and beyond the A/A interval.

    A verdict asks more than its t interval does, so it finds less: see `dspark_ops.bench.verdict`. The chance is the
    share of 20,000 experiments drawn with `seed`; equal arguments give equal answers.

    Args:
        effect: true mean log-ratio of A/B.
        deviation: true standard deviation of one pair's log-ratio, in A/B and A/A alike.
        pairs: pairs of the A/B comparison.
        control_pairs: pairs of the A/A control; 0 for none.
        confidence: level of both intervals.
        seed: of the draws.
    """
    if control_pairs < 2:
        return power(effect, deviation, pairs, confidence)
    random = numpy.random.default_rng(seed)
    mean, half = _drawn(random, deviation, pairs, confidence)
    control, control_half = _drawn(random, deviation, control_pairs, confidence)
    mean = mean + effect
    found = (abs(mean) > half) & (abs(mean) > abs(control) + control_half)
    return float(found.mean())


def _drawn(random: Any, deviation: float, pairs: int, confidence: float) -> tuple[Array, Array]:
    """Return means and half-widths of experiments without an effect: a normal mean and, apart from it, a chi-square."""
    edge = float(scipy.stats.t.ppf(0.5 + confidence / 2, pairs - 1))
    means = random.normal(0.0, deviation / math.sqrt(pairs), _DRAWS)
    deviations = deviation * numpy.sqrt(random.chisquare(pairs - 1, _DRAWS) / (pairs - 1))
    return means, edge * deviations / math.sqrt(pairs)


def _deviation(values: Sequence[float], mean: float) -> float:
    return math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1))


def _check(values: Sequence[float], confidence: float) -> None:
    if len(values) < 2:
        raise ContractError(f"an interval needs 2 pairs or more, got {len(values)}: run more launches")
    if not all(map(math.isfinite, values)):
        raise ContractError(f"an interval needs finite numbers, got {list(values)}")
    if not 0 < confidence < 1:
        raise ContractError(f"confidence: wanted a number between 0 and 1, such as 0.95, got {confidence}")
