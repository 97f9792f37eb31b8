"""Drawn acceptance: the laws by which a benchmark fixes how many tokens each verify step emits.

A length counts the final token, so it lies between 1 and gamma + 1, and a mean outside is refused, not clamped in
silence. The lengths feed `accept_forced`, which stands where the real accept stands. Text made this way means nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from statistics import NormalDist
from typing import Any, Final

from dspark_ops.errors import ConfigError

__all__ = ["ForcedAcceptance", "ForcedLengths", "law_mean", "normal_clamped", "per_position", "two_point"]

_SCOPES: Final = ("per_request", "per_step")


@dataclass(frozen=True, slots=True)
class ForcedAcceptance:
    """How the lengths of a simulated run are drawn.

    Attributes:
        mean: tokens per request and step, the final one included.
        law: ``two_point`` (the two whole numbers around the mean), ``per_position`` (each position has a chance of its
            own, as even as the mean allows: see `per_position`) or ``normal_clamped`` (see `normal_clamped`, whose mean
            is another one near the ends).
        scope: ``per_request`` draws for each request, the same lengths whatever runs beside it; ``per_step`` gives all
            requests of a step one length, so their lengths never drift apart.
        seed: the same seed gives the same lengths, on every rank.
        clamp: move a mean outside the range to its end instead of refusing it.

    Raises:
        ConfigError: unknown law or scope.

    Source: C3.5 (R3.1, R3.4).
    """

    mean: float
    law: str = "two_point"
    scope: str = "per_request"
    seed: int = 0
    clamp: bool = False

    def __post_init__(self) -> None:
        if self.law not in _DRAWS:
            raise ConfigError(f"law of forced acceptance is {self.law!r}: wanted one of {', '.join(_DRAWS)}")
        if self.scope not in _SCOPES:
            raise ConfigError(f"scope of forced acceptance is {self.scope!r}: wanted one of {', '.join(_SCOPES)}")

    def start(self, gamma: int) -> ForcedLengths:
        """Return the source of lengths for one run with `gamma` drafts per block.

        Raises:
            ConfigError: the mean is not a number of 1 to gamma + 1, and `clamp` was not asked for.
        """
        return ForcedLengths(self, gamma, _checked(self.mean, gamma, self.clamp))


class ForcedLengths:
    """The lengths of one run, drawn step by step, and what came of them.

    Attributes:
        histogram: steps of requests by the length that came out; index 0 is length 1. It is the one that was drawn
            wherever so many rows were verified.
    """

    def __init__(self, acceptance: ForcedAcceptance, gamma: int, mean: float) -> None:
        self.histogram = [0] * (gamma + 1)
        self._drawn = 0
        self._acceptance = acceptance
        self._gamma = gamma
        self._mean = mean
        self._step = Random(acceptance.seed)
        self._own: dict[int, Random] = {}
        self._draw = _DRAWS[acceptance.law]

    def draw(self, requests: Sequence[int]) -> list[int]:
        """Return the length of each request for its next step.

        Args:
            requests: numbers that name them for as long as they run; each has a sequence of its own.
        """
        if self._acceptance.scope == "per_step":
            return [self._one(self._step)] * len(requests)
        return [self._one(self._random(request)) for request in requests]

    def note(self, drawn: Sequence[int], accept_lens: Sequence[int]) -> None:
        """Count what came out of a step: the lengths drawn for it, and the accept lengths, the final token included."""
        self._drawn += sum(drawn)
        for length in accept_lens:
            self.histogram[length - 1] += 1

    def forget(self, request: int) -> None:
        """Drop the sequence of a request that has ended."""
        self._own.pop(request, None)

    @property
    def drawn_mean(self) -> float:
        """Mean of all lengths drawn for the steps so far; NaN before the first."""
        return _ratio(self._drawn, sum(self.histogram))

    @property
    def realised_mean(self) -> float:
        """Mean of all lengths that came out so far; NaN before the first."""
        return _ratio(sum(length * times for length, times in enumerate(self.histogram, 1)), sum(self.histogram))

    def report(self) -> dict[str, Any]:
        """Return what every result of such a run must carry.

        The means that were asked for, of the law, drawn, and realised are four numbers; all are there. `differences`
        says what else is not as in a real run (R3.3).
        """
        differences = [_MEANING, _LOCALITY, _STAGED]
        if self._acceptance.scope == "per_step":
            differences.append("all requests of a step accept equally many drafts")
        return {
            "simulated": True,
            "law": self._acceptance.law,
            "scope": self._acceptance.scope,
            "seed": self._acceptance.seed,
            "mean": self._mean,
            "law_mean": law_mean(self._acceptance.law, self._mean, self._gamma),
            "drawn_mean": self.drawn_mean,
            "realised_mean": self.realised_mean,
            "histogram": {length: times for length, times in enumerate(self.histogram, 1)},
            "differences": differences,
        }

    def _random(self, request: int) -> Random:
        if request not in self._own:
            self._own[request] = Random(f"{self._acceptance.seed}, request {request}")
        return self._own[request]

    def _one(self, random: Random) -> int:
        # the middle of one of 2**53 equal parts of [0, 1], so that neither end is drawn
        coin = (random.getrandbits(53) + 0.5) * 2.0**-53
        return self._draw(self._mean, self._gamma, coin)


def two_point(mean: float, gamma: int, coin: float) -> int:
    """Return floor(mean), or one more with the chance of its fraction, so that the mean is exact.

    Args:
        mean: 1 to gamma + 1.
        gamma: drafts per block.
        coin: uniform of (0, 1).

    Raises:
        ConfigError: the mean is outside.

    Source: C3.1.2 (match-expected), N11.7.
    """
    low = int(_checked(mean, gamma))
    return min(low + (coin < mean - low), gamma + 1)


def per_position(mean: float, gamma: int) -> tuple[float, ...]:
    """Return for each draft the chance that it and all before it are accepted: the vector of least variance.

    ``mean - 1`` drafts are accepted on average: so many leading ones, then the fraction, then zeros.

    Raises:
        ConfigError: the mean is not in 1 to gamma + 1.

    Source: C3.2, C9.1 item 13.
    """
    accepted = _checked(mean, gamma) - 1.0
    return tuple(min(max(accepted - draft, 0.0), 1.0) for draft in range(gamma))


def normal_clamped(mean: float, gamma: int, coin: float) -> int:
    """Return a draw of Normal(mean, 1), clamped to 1 and gamma + 1, then rounded.

    The clamp moves the mean: at 5.5 of 6 it is 5.32, at 1.5 it is 1.68.

    Args:
        mean: 1 to gamma + 1.
        gamma: drafts per block.
        coin: uniform of (0, 1); the draw is its quantile.

    Raises:
        ConfigError: the mean is outside.

    Source: C3.1.2 (multinomial), N11.7.
    """
    value = NormalDist(_checked(mean, gamma), 1.0).inv_cdf(coin)
    return round(min(max(value, 1.0), gamma + 1.0))


def law_mean(law: str, mean: float, gamma: int) -> float:
    """Return the mean that a law really has where `mean` was asked for.

    Raises:
        ConfigError: unknown law, or the mean is not in 1 to gamma + 1.
    """
    if law not in _DRAWS:
        raise ConfigError(f"law of forced acceptance is {law!r}: wanted one of {', '.join(_DRAWS)}")
    if law != "normal_clamped":
        return _checked(mean, gamma)
    normal = NormalDist(_checked(mean, gamma), 1.0)
    # the sum of the chances that a length reaches 1, 2, ...
    return 1.0 + sum(1.0 - normal.cdf(length - 0.5) for length in range(2, gamma + 2))


def _per_position_length(mean: float, gamma: int, coin: float) -> int:
    return 1 + sum(coin < rate for rate in per_position(mean, gamma))


def _ratio(total: int, count: int) -> float:
    return total / count if count else float("nan")


def _checked(mean: float, gamma: int, clamp: bool = False) -> float:
    if 1.0 <= mean <= gamma + 1:
        return float(mean)
    if clamp and mean == mean:
        return 1.0 if mean < 1.0 else float(gamma + 1)
    raise ConfigError(
        f"forced acceptance of {mean} tokens per step: wanted 1 to {gamma + 1}, the final token and up to {gamma} "
        f"drafts"
    )


_DRAWS: Final[dict[str, Callable[[float, int, float], int]]] = {
    "two_point": two_point,
    "per_position": _per_position_length,
    "normal_clamped": normal_clamped,
}
_MEANING: Final = "the text means nothing: the tokens do not follow from each other"
_LOCALITY: Final = "experts and n-gram tables see other tokens than a real run's, so their locality differs"
_STAGED: Final = "lengths are drawn on the host and copied to the device before each step"
