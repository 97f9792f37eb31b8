"""The statistics of paired launches: against scipy, against published pairs, and against simulated experiments."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from dspark_ops.bench.comparison import Verdict, decide
from dspark_ops.bench.sensitivity import PROMISED_POWER, minimum_detectable, pairs_needed
from dspark_ops.bench.statistics import (
    log_ratios,
    p_value,
    paired_estimate,
    percent,
    power,
    two_sample_estimate,
    verdict_power,
)
from dspark_ops.errors import ContractError

EXPERIMENTS = 2000
NOISE = 0.02  # of one launch; a pair has the root of two times as much
PAIR_NOISE = NOISE * math.sqrt(2)


def drawn(pairs: int, effect: float, seed: int) -> np.ndarray:
    """Log-ratios [experiments, pairs] of launches with 2 % noise each, and `effect` between the arms."""
    launches = np.random.default_rng(seed).normal(0.0, NOISE, (2, EXPERIMENTS, pairs))
    return launches[0] - launches[1] + effect


@pytest.mark.parametrize("pairs", [2, 3, 4, 8, 30])
def test_the_paired_interval_and_its_p_value_are_those_of_scipy(pairs: int) -> None:
    values = drawn(pairs, 0.01, seed=pairs)[0]
    found = paired_estimate(values.tolist(), 0.9)
    wanted = stats.ttest_1samp(values, 0.0)
    low, high = wanted.confidence_interval(0.9)
    assert (found.mean, found.low, found.high) == pytest.approx((values.mean(), low, high), rel=1e-12)
    assert p_value(found) == pytest.approx(wanted.pvalue, rel=1e-9)


def test_two_sessions_are_compared_by_the_interval_of_welch() -> None:
    random = np.random.default_rng(5)
    first, second = random.normal(8.7, 0.03, 5), random.normal(8.69, 0.01, 9)
    found = two_sample_estimate(first.tolist(), second.tolist())
    wanted = stats.ttest_ind(first, second, equal_var=False)
    low, high = wanted.confidence_interval(0.95)
    assert (found.low, found.high, found.freedom) == pytest.approx((low, high, wanted.df), rel=1e-12)
    assert p_value(found) == pytest.approx(wanted.pvalue, rel=1e-9)


def test_three_published_pairs_of_s0_give_the_interval_that_their_spread_allows() -> None:
    """+2.50, +1.64 and +2.41 % (C4.2): C4.3 item 2 states +2.16 % +- 1.16 % in log-ratios; exactly it is 1.151."""
    found = paired_estimate([math.log1p(gain / 100) for gain in (2.50, 1.64, 2.41)])
    assert 100 * found.mean == pytest.approx(2.16, abs=0.005)
    assert 100 * (found.high - found.mean) == pytest.approx(1.16, abs=0.01)
    assert (found.pairs, found.freedom, found.includes_zero) == (3, 2, False)


@pytest.mark.parametrize(
    ("mean", "low", "high", "p"), [(9.6, -6.5, 25.7, 0.15), (6.8, 4.1, 9.6, None), (6.1, 5.6, 6.5, None)]
)
def test_four_pairs_of_the_spread_that_s1_published_give_its_interval(
    mean: float, low: float, high: float, p: float | None
) -> None:
    """S1 states means, ends and one p-value of paired t over 4 pairs (C4.2), not the pairs: these have that spread."""
    deviation = (high - low) / 2 / stats.t.ppf(0.975, 3) * 2
    pattern = np.array([-1.5, -0.5, 0.5, 1.5])
    values = mean + pattern / pattern.std(ddof=1) * deviation
    found = paired_estimate(values.tolist())
    assert (found.low, found.high) == pytest.approx((low, high), abs=0.06)
    assert found.includes_zero == (low < 0)
    if p is not None:
        assert p_value(found) == pytest.approx(p, abs=0.005)


@pytest.mark.parametrize("pairs", [3, 4, 8])
def test_between_3_and_7_percent_of_experiments_without_an_effect_look_like_one(pairs: int) -> None:
    values = drawn(pairs, 0.0, seed=pairs)
    wrong = sum(not paired_estimate(row).includes_zero for row in values.tolist())
    assert 0.03 <= wrong / EXPERIMENTS <= 0.07


def test_a_verdict_that_also_looks_at_the_control_is_wrong_still_less_often() -> None:
    pairs, controls = drawn(4, 0.0, seed=1), drawn(4, 0.0, seed=2)
    verdicts = [
        decide(paired_estimate(row), paired_estimate(control))
        for row, control in zip(pairs.tolist(), controls.tolist(), strict=True)
    ]
    assert sum(verdict is not Verdict.NOISE for verdict in verdicts) / EXPERIMENTS < 0.02


@pytest.mark.parametrize("pairs", [4, 8, 16])
def test_an_effect_of_2_percent_is_found_as_often_as_the_interval_promises(pairs: int) -> None:
    effect = math.log(1.02)
    found = sum(not paired_estimate(row).includes_zero for row in drawn(pairs, effect, seed=10 + pairs).tolist())
    assert found / EXPERIMENTS == pytest.approx(power(effect, PAIR_NOISE, pairs), abs=0.035)


@pytest.mark.parametrize("pairs", [8, 30])
def test_an_effect_of_2_percent_is_found_as_often_as_the_verdict_promises(pairs: int) -> None:
    effect = math.log(1.02)
    experiments = zip(drawn(pairs, effect, seed=3).tolist(), drawn(pairs, 0.0, seed=4).tolist(), strict=True)
    found = sum(
        decide(paired_estimate(row), paired_estimate(control)) is Verdict.FASTER for row, control in experiments
    )
    assert found / EXPERIMENTS == pytest.approx(verdict_power(effect, PAIR_NOISE, pairs, pairs), abs=0.035)


def test_the_power_of_the_interval_is_that_of_the_noncentral_t() -> None:
    edge = stats.t.ppf(0.975, 7)
    shift = 0.02 / PAIR_NOISE * math.sqrt(8)
    wanted = 1 - stats.nct.cdf(edge, 7, shift) + stats.nct.cdf(-edge, 7, shift)
    assert power(0.02, PAIR_NOISE, 8) == pytest.approx(wanted, rel=1e-9)
    assert power(0.0, PAIR_NOISE, 8) == pytest.approx(0.05, abs=1e-9)
    assert (power(0.0, 0.0, 4), power(0.01, 0.0, 4)) == (0.0, 1.0)


def test_the_smallest_effect_is_found_with_the_promised_chance_and_fewer_pairs_would_not_do() -> None:
    effect = minimum_detectable(PAIR_NOISE, 6, 6)
    assert verdict_power(effect, PAIR_NOISE, 6, 6) == pytest.approx(PROMISED_POWER, abs=0.005)
    needed = pairs_needed(0.02, PAIR_NOISE, control=True)
    assert needed is not None and needed % 2 == 0
    assert verdict_power(math.log(1.02), PAIR_NOISE, needed, needed) >= PROMISED_POWER
    assert verdict_power(math.log(1.02), PAIR_NOISE, needed - 2, needed - 2) < PROMISED_POWER
    assert pairs_needed(0.0001, 0.5, control=False) is None


def test_a_positive_effect_means_that_the_second_arm_takes_less_time() -> None:
    (ratio,) = log_ratios([6205.6], [6080.2])
    assert percent(ratio) == pytest.approx(100 * (6205.6 / 6080.2 - 1))
    assert paired_estimate([0.02, 0.02]).text() == "+2.02 % [+2.02, +2.02] (95 %)"


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: paired_estimate([0.1]), "needs 2 pairs or more, got 1"),
        (lambda: paired_estimate([0.1, math.nan]), "needs finite numbers"),
        (lambda: paired_estimate([0.1, 0.2], 95), "confidence: wanted a number between 0 and 1"),
        (lambda: log_ratios([1.0], [0.0]), "wanted positive numbers, got 0.0"),
        (lambda: log_ratios([1.0], []), "equally many of both arms, got 1 and 0"),
    ],
)
def test_what_has_no_interval_is_refused(call: object, text: str) -> None:
    with pytest.raises(ContractError, match=text):
        call()  # type: ignore[operator]
