"""What an experiment of a given size can find: its smallest detectable effect, and the pairs that an effect needs."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from dspark_ops.bench.statistics import percent, verdict_power

__all__ = ["PROMISED_POWER", "Sensitivity", "minimum_detectable", "pairs_needed", "sensitivity"]

#: The chance with which an effect is to be found before it counts as one that the experiment can find.
PROMISED_POWER = 0.8
_MOST_PAIRS = 1024


@dataclass(frozen=True, slots=True)
class Sensitivity:
    """What an experiment could have found.

    Attributes:
        deviation: standard deviation of one pair's log-ratio that this rests on.
        origin: which pairs gave it.
        smallest: the smallest log-ratio that is found with a chance of `PROMISED_POWER`.
        pairs_for: percentage to the pairs of each comparison that find it with that chance; None above 1,024.
    """

    deviation: float
    origin: str
    smallest: float
    pairs_for: dict[float, int | None]

    def to_json(self) -> dict[str, Any]:
        """Return it with plain types only, the effect in percent."""
        return {
            "pair_deviation_percent": percent(self.deviation),
            "from": self.origin,
            "power": PROMISED_POWER,
            "smallest_effect_percent": percent(self.smallest),
            "pairs_for_percent": {f"{effect:g}": count for effect, count in self.pairs_for.items()},
        }


def sensitivity(deviation: float, origin: str, pairs: int, control_pairs: int, confidence: float) -> Sensitivity:
    """Return what `pairs` pairs with a control of `control_pairs` can find, given one pair's standard deviation."""
    smallest = minimum_detectable(deviation, pairs, control_pairs, confidence)
    needed = {effect: pairs_needed(effect / 100, deviation, control_pairs > 0, confidence) for effect in (1.0, 2.0)}
    return Sensitivity(deviation, origin, smallest, needed)


def minimum_detectable(deviation: float, pairs: int, control_pairs: int, confidence: float = 0.95) -> float:
    """Return the smallest true log-ratio that a verdict finds with a chance of `PROMISED_POWER`.

    Args:
        deviation: standard deviation of one pair's log-ratio.
        pairs: pairs of the A/B comparison, 2 or more.
        control_pairs: pairs of the A/A control; 0 for none.
        confidence: level of the intervals.
    """
    if deviation == 0.0:
        return 0.0
    low, high = 0.0, deviation
    while verdict_power(high, deviation, pairs, control_pairs, confidence) < PROMISED_POWER:
        low, high = high, 2 * high
    # The same draws at every step make the chance a monotone function of the effect, so that halving works.
    while high - low > 1e-3 * high:
        middle = (low + high) / 2
        if verdict_power(middle, deviation, pairs, control_pairs, confidence) < PROMISED_POWER:
            low = middle
        else:
            high = middle
    return high


def pairs_needed(effect: float, deviation: float, control: bool, confidence: float = 0.95) -> int | None:
    """Return the least even number of pairs that find `effect` with a chance of `PROMISED_POWER`; None above 1,024.

    Args:
        effect: true ratio minus one, such as 0.02.
        deviation: standard deviation of one pair's log-ratio.
        control: whether as many pairs of an A/A control are run.
        confidence: level of the intervals.
    """
    target = math.log1p(effect)

    def enough(pairs: int) -> bool:
        return verdict_power(target, deviation, pairs, pairs * control, confidence) >= PROMISED_POWER

    low, high = 0, 2
    while not enough(high):
        low, high = high, 2 * high
        if high > _MOST_PAIRS:
            return None
    while high - low > 2:
        middle = (low + high) // 4 * 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high
