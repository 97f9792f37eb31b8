"""Rates of a step by its number of tokens: what the scheduler weighs an additional verify row against."""

from __future__ import annotations

import json
from bisect import bisect_right
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Protocol

from dspark_ops.errors import ConfigError
from dspark_ops.suggest import did_you_mean

__all__ = ["AdditiveStepTime", "MeasuredRates", "StepRates", "default_rates", "packaged_rates", "read_rates"]


class StepRates(Protocol):
    """Anything that knows how many steps per second a device makes."""

    @property
    def calibrated(self) -> bool:
        """Whether there is anything to choose by; without it a scheduler verifies everything."""

    def dense(self, requests: int, most_tokens: int) -> list[float]:
        """Return the rate of a step of `requests` requests with b tokens at index b, up to `most_tokens`.

        Index 0 has no meaning.
        """


@dataclass(frozen=True, slots=True)
class MeasuredRates:
    """Rates measured at some numbers of tokens (C1.10.9a).

    Attributes:
        tokens: numbers of tokens that were measured, rising.
        steps_per_second: the rate of each.
        lookup: ``floor``: a step has the rate of the largest measured size at or below its own, which suits graphs that
            are captured at those sizes; ``linear``: rates between two measured sizes are interpolated. Both are flat
            outside.

    Raises:
        ConfigError: lengths differ, sizes do not rise, a rate is not positive, or the lookup is unknown.
    """

    tokens: tuple[int, ...]
    steps_per_second: tuple[float, ...]
    lookup: str = "floor"

    def __post_init__(self) -> None:
        _check_probes("steps per second", self.tokens, self.steps_per_second)
        if self.lookup not in ("floor", "linear"):
            raise ConfigError(f"lookup of step rates is {self.lookup!r}: wanted 'floor' or 'linear'")

    @property
    def calibrated(self) -> bool:
        """More than one size was measured; a table of one size says nothing about trimming."""
        return len(self.tokens) > 1

    def dense(self, requests: int, most_tokens: int) -> list[float]:
        """Return the rate at each number of tokens up to `most_tokens`; the number of requests has no influence."""
        look_up = self.floor if self.lookup == "floor" else self.interpolated
        return [look_up(count) for count in range(most_tokens + 1)]

    def floor(self, tokens: int) -> float:
        """Return the rate of the largest measured size at or below `tokens`, whatever `lookup` says."""
        return _floor(self.tokens, self.steps_per_second, tokens)

    def interpolated(self, tokens: int) -> float:
        """Return the rate at `tokens` on the line between two measured sizes, whatever `lookup` says."""
        return _linear(self.tokens, self.steps_per_second, tokens)


@dataclass(frozen=True, slots=True)
class AdditiveStepTime:
    """A step time that is the sum of a constant, a cost of requests and a cost of tokens (C1.10.9b).

    Attributes:
        seconds: the constant.
        requests, request_seconds: numbers of requests that were measured, and what each adds.
        tokens, token_seconds: numbers of tokens that were measured, and what each adds. Only this part is saved by
            verifying less.

    Both are interpolated and flat outside.

    Raises:
        ConfigError: lengths differ, sizes do not rise, or a time is negative.
    """

    seconds: float
    requests: tuple[int, ...]
    request_seconds: tuple[float, ...]
    tokens: tuple[int, ...]
    token_seconds: tuple[float, ...]

    def __post_init__(self) -> None:
        _check_probes("seconds by requests", self.requests, self.request_seconds, allow_zero=True)
        _check_probes("seconds by tokens", self.tokens, self.token_seconds, allow_zero=True)
        if not self.seconds > 0:
            raise ConfigError(f"constant part of the step time is {self.seconds}: wanted more than 0 seconds")

    @property
    def calibrated(self) -> bool:
        """More than one number of tokens was measured."""
        return len(self.tokens) > 1

    def dense(self, requests: int, most_tokens: int) -> list[float]:
        """Return the rate at each number of tokens up to `most_tokens`, for this number of requests."""
        fixed = self.seconds + _linear(self.requests, self.request_seconds, requests)
        return [1.0 / (fixed + _linear(self.tokens, self.token_seconds, count)) for count in range(most_tokens + 1)]


def default_rates() -> MeasuredRates:
    """Return a guess for a machine that was not measured: a token adds 4 percent of an empty step's time.

    Shape only, no measurement: rates are relative to the smallest step. By it a scheduler keeps a draft whose survival
    is above some 4 percent of the tokens that the step is already expected to give.
    """
    sizes = tuple(range(1, 513))
    return MeasuredRates(sizes, tuple(1.04 / (1.0 + 0.04 * size) for size in sizes), "linear")


def read_rates(path: str | Path) -> StepRates:
    """Return the step rates that a JSON file holds.

    Two forms are read: ``sample_batch_tokens`` with ``sample_steps_per_sec`` (looked up by floor unless ``lookup`` says
    ``linear``), and ``bias_seconds`` with ``bs_probes``, ``alpha_seconds``, ``m_probes``, ``theta_seconds``.

    Raises:
        ConfigError: the file is missing, is not JSON, has neither form, or its values are not usable.
    """
    place = Path(path)
    try:
        data = json.loads(place.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot read step rates from {place}: {error}") from error
    if not isinstance(data, dict):
        raise ConfigError(f"step rates in {place}: wanted an object, got {type(data).__name__}")
    try:
        if "sample_batch_tokens" in data:
            sizes, rates = _numbers(data, "sample_batch_tokens"), _numbers(data, "sample_steps_per_sec")
            most = int(data.get("max_batch_tokens", sizes[-1] if sizes else 0))
            if sizes and most < sizes[-1]:
                raise ConfigError(
                    f"max_batch_tokens is {most}: wanted at least {int(sizes[-1])}, the largest size measured"
                )
            return MeasuredRates(tuple(map(int, sizes)), rates, str(data.get("lookup", "floor")))
        if "bias_seconds" in data:
            return AdditiveStepTime(
                float(data["bias_seconds"]),
                tuple(map(int, _numbers(data, "bs_probes"))),
                _numbers(data, "alpha_seconds"),
                tuple(map(int, _numbers(data, "m_probes"))),
                _numbers(data, "theta_seconds"),
            )
    except (ValueError, TypeError) as error:
        raise ConfigError(f"step rates in {place}: {error}") from error
    raise ConfigError(
        f"step rates in {place}: wanted the key 'sample_batch_tokens' or 'bias_seconds', got {', '.join(sorted(data))}"
    )


def packaged_rates(name: str) -> StepRates:
    """Return step rates that come with this package, by name; each file states where its numbers were measured.

    ``deepseek-v4.1-flash_mi355x_tp4``: whole steps of full width on four MI355X, 6 to 1536 tokens (A18).

    Raises:
        ConfigError: no packaged table has this name.
    """
    folder = Path(__file__).parent / "sps_tables"
    names = sorted(place.stem for place in folder.glob("*.json"))
    if name not in names:
        wanted = ", ".join(names)
        raise ConfigError(f"no packaged step rates are named {name!r}: wanted {wanted}{did_you_mean(name, names)}")
    return read_rates(folder / f"{name}.json")


def _numbers(data: dict[str, Any], key: str) -> tuple[float, ...]:
    values = data.get(key)
    if not isinstance(values, list) or not all(isinstance(x, int | float) and not isinstance(x, bool) for x in values):
        raise ConfigError(f"{key}: wanted a list of numbers, got {values!r}")
    return tuple(float(value) for value in values)


def _check_probes(what: str, sizes: tuple[int, ...], values: tuple[float, ...], allow_zero: bool = False) -> None:
    if not sizes or len(sizes) != len(values):
        raise ConfigError(
            f"{what}: wanted one value for each size and at least one, got {len(values)} for {len(sizes)}"
        )
    if any(later <= earlier for earlier, later in pairwise(sizes)) or sizes[0] < 0:
        raise ConfigError(f"{what}: wanted rising sizes, got {list(sizes)}")
    wrong = [value for value in values if not (value > 0 or (allow_zero and value == 0)) or value == float("inf")]
    if wrong:
        raise ConfigError(
            f"{what}: wanted finite {'non-negative' if allow_zero else 'positive'} values, got {wrong[0]}"
        )


def _floor(sizes: tuple[int, ...], values: tuple[float, ...], size: int) -> float:
    return values[max(bisect_right(sizes, size) - 1, 0)]


def _linear(sizes: tuple[int, ...], values: tuple[float, ...], size: int) -> float:
    after = bisect_right(sizes, size)
    if after in (0, len(sizes)):
        return values[0] if after == 0 else values[-1]
    share = (size - sizes[after - 1]) / (sizes[after] - sizes[after - 1])
    return values[after - 1] + share * (values[after] - values[after - 1])
