"""The uniform verify width: exact decisions, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dspark_ops.decode import sps
from dspark_ops.decode.sps import AdditiveStepTime, MeasuredRates, packaged_rates
from dspark_ops.decode.verify_width import VerifyWidthPolicy, WidthConditions, expected_accept
from dspark_ops.errors import ConfigError, ContractError

FLAT = MeasuredRates((1, 1000), (50.0, 50.0), "linear")


def counts_of(policy: VerifyWidthPolicy, width: int, accepted: list[int]) -> list[list[int]]:
    """Return counts of one width: `accepted[k]` requests accepted k drafts."""
    full = policy.widths[-1]
    table = [[0] * full for _ in policy.widths]
    table[policy.widths.index(width)][: len(accepted)] = accepted
    return table


def observed(rates: MeasuredRates, accepted: list[int], **options: object) -> VerifyWidthPolicy:
    policy = VerifyWidthPolicy(rates, len(accepted), **options)
    policy.update(counts_of(policy, len(accepted), accepted))
    return policy


def test_expected_tokens_of_the_vector_by_width() -> None:
    hazards = [0.9, 0.8, 0.7, 0.6, 0.5]
    wanted = [1, 1.9, 2.62, 3.124, 3.4264, 3.5776]
    assert [expected_accept(hazards, width) for width in range(1, 7)] == pytest.approx(wanted, abs=1e-12)


def test_hazards_are_correct_over_reached() -> None:
    policy = observed(FLAT, [2, 3, 5, 10])
    # 20 requests reach draft 0, 18 have it right; 18 reach draft 1, 15 have it right; 15 and 10
    assert policy.hazards() == [18 / 20, 15 / 18, 10 / 15]


def test_a_narrow_step_says_nothing_about_later_drafts() -> None:
    policy = VerifyWidthPolicy(FLAT, 4, (2, 3))
    policy.update(counts_of(policy, 2, [1, 3, 0, 0]))
    policy.update(counts_of(policy, 3, [0, 1, 1, 0]))
    assert policy.hazards() == [(0.9 * 3 + 2) / (0.9 * 4 + 2), 1 / 2, 0.0]


def test_old_counts_decay_only_where_new_ones_came() -> None:
    policy = observed(FLAT, [2, 3, 5, 10], extra=(2,))
    policy.update(counts_of(policy, 2, [4, 6, 0, 0]))
    first, second, third = policy.hazards()
    assert first == (0.9 * 18 + 6) / (0.9 * 20 + 10)
    assert (second, third) == (15 / 18, 10 / 15)


def test_the_full_width_is_taken_until_every_position_was_reached() -> None:
    steep = MeasuredRates((1, 6), (100.0, 1.0), "linear")
    policy = VerifyWidthPolicy(steep, 6)
    assert [policy.choose(1) for _ in range(5)] == [6] * 5
    policy.update(counts_of(policy, 6, [9, 0, 0, 0, 0, 0]))
    assert policy.choose(1) == 6  # drafts 1 to 4 were never reached
    policy.update(counts_of(policy, 6, [9, 0, 0, 0, 1, 0]))
    assert policy.choose(1) == 2
    assert policy.decisions == 7


def test_every_64th_choice_explores_and_leaves_the_current_width() -> None:
    steep = MeasuredRates((1, 6), (100.0, 1.0), "linear")
    policy = observed(steep, [9, 1, 1, 1, 1, 1])
    widths = [policy.choose(1) for _ in range(200)]
    assert [place for place, width in enumerate(widths, 1) if width == 6] == [64, 128, 192]
    assert set(widths) == {2, 6} and policy.current == 2


def test_exploration_counts_the_choices_before_anything_was_observed() -> None:
    steep = MeasuredRates((1, 6), (100.0, 1.0), "linear")
    policy = VerifyWidthPolicy(steep, 6)
    for _ in range(60):
        policy.choose(1)
    policy.update(counts_of(policy, 6, [9, 1, 1, 1, 1, 1]))
    assert [policy.choose(1) for _ in range(5)] == [2, 2, 2, 6, 2]


@pytest.mark.parametrize(("gain", "width"), [(1.021, 2), (1.019, 3)])
def test_a_width_must_be_better_by_more_than_two_percent(gain: float, width: int) -> None:
    # all drafts are accepted: 2 tokens against 3; the narrow step is faster by 1.5 * gain
    rates = MeasuredRates((2, 3), (150.0 * gain, 100.0), "linear")
    policy = observed(rates, [0, 0, 4], extra=(2,))
    assert policy.choose(1) == width


def test_exactly_two_percent_is_not_enough() -> None:
    rates = MeasuredRates((2, 4), (2 * 51.0, 50.0), "linear")
    policy = observed(rates, [0, 0, 0, 8], extra=(2,))
    assert policy.score(2, 1) == 204.0 and policy.score(4, 1) == 200.0
    assert policy.score(4, 1) * 1.02 == 204.0
    assert policy.choose(1) == 4


def test_the_margin_holds_in_both_directions_and_at_the_batch_size_of_the_step() -> None:
    # the narrow width pays where a step of all rows is slow: above 8 tokens
    rates = MeasuredRates((8, 9, 12, 16), (100.0, 99.0, 99.0, 30.0), "linear")
    policy = observed(rates, [1, 1, 1, 5], extra=(2,))
    narrow, full = 1 + 7 / 8, 1 + 7 / 8 + 6 / 8 + 5 / 8
    assert policy.score(2, 4) == 4 * narrow * 100 and policy.score(4, 4) == 4 * full * 30
    assert policy.choose(4) == 2
    assert policy.choose(2) == 4  # here both widths have 100 steps per second
    assert policy.choose(2) == 4
    assert policy.choose(4) == 2


def test_of_equal_widths_the_narrowest_is_the_best() -> None:
    # every draft is right, and a third row costs what it brings
    rates = MeasuredRates((2, 3, 4), (150.0, 100.0, 50.0), "linear")
    policy = observed(rates, [0, 0, 0, 8], extra=(3, 2))
    assert [policy.score(width, 1) for width in (2, 3, 4)] == [300.0, 300.0, 200.0]
    assert policy.choose(1) == 2


def test_a_forced_width_wins_and_counts_no_choice() -> None:
    policy = observed(FLAT, [1, 1, 1, 1, 1, 1], forced=3)
    assert [policy.choose(8) for _ in range(130)] == [3] * 130
    assert policy.decisions == 0


@pytest.mark.parametrize(
    ("full", "extra", "forced", "text"),
    [
        (6, (1,), 0, "others of 2 to 5"), (6, (6,), 0, "others of 2 to 5"), (6, (2, 7), 0, r"\[2, 7\]"),
        (1, (), 0, "full width of 2 or more"), (6, (2, 3), 4, r"is 4: wanted one of \[2, 3, 6\]"),
    ],
)  # fmt: skip
def test_widths_that_cannot_be_are_refused(full: int, extra: tuple, forced: int, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        VerifyWidthPolicy(FLAT, full, extra, forced)


def test_only_rates_by_tokens_are_read() -> None:
    additive = AdditiveStepTime(0.01, (1, 8), (0.0, 0.001), (1, 48), (0.0, 0.01))
    with pytest.raises(ConfigError, match="AdditiveStepTime: wanted rates by number of tokens"):
        VerifyWidthPolicy(additive, 6)


def test_counts_of_another_shape_are_refused() -> None:
    policy = VerifyWidthPolicy(FLAT, 6)
    with pytest.raises(ContractError, match=r"wanted 3 widths with 6"):
        policy.update([[0] * 6] * 2)
    with pytest.raises(ContractError):
        policy.update([[0] * 5] * 3)


def test_rates_are_interpolated_even_where_another_planner_looks_up_the_floor() -> None:
    rates = MeasuredRates((2, 4), (100.0, 50.0), "floor")
    assert [rates.floor(size) for size in (1, 2, 3, 4, 9)] == [100, 100, 100, 50, 50]
    assert [rates.interpolated(size) for size in (1, 2, 3, 4, 9)] == [100, 100, 75, 50, 50]
    assert VerifyWidthPolicy(rates, 3, (2,)).score(3, 1) == 75.0


def test_the_mi355x_table_is_packaged_with_its_origin() -> None:
    rates = packaged_rates("deepseek-v4.1-flash_mi355x_tp4")
    assert (rates.tokens[0], rates.tokens[-1], len(rates.tokens)) == (6, 1536, 19)
    assert [rates.interpolated(size) for size in (6, 12, 24, 48, 96, 768, 1536)] == [
        94.4, 82.3, 74.3, 63.7, 52.4, 19.5, 12.2
    ]  # fmt: skip
    assert rates.interpolated(9) == pytest.approx((94.4 + 82.3) / 2)
    assert (rates.interpolated(1), rates.interpolated(9999)) == (94.4, 12.2)
    text = json.loads((Path(sps.__file__).parent / "sps_tables" / "deepseek-v4.1-flash_mi355x_tp4.json").read_text())
    assert "f71b3904" in text["origin"] and "Not measured by this project" in text["origin"]


def test_an_unknown_packaged_table_is_refused_with_the_names_that_there_are() -> None:
    with pytest.raises(ConfigError, match=r"wanted deepseek-v4\.1-flash_mi355x_tp4.*did you mean"):
        packaged_rates("deepseek-v4.1-flash_mi355x_tp8")


def test_decisions_by_the_mi355x_table() -> None:
    rates = packaged_rates("deepseek-v4.1-flash_mi355x_tp4")
    # 2 of 3 first drafts are right, and half of each later one
    policy = observed(rates, [320, 320, 160, 80, 40, 40])
    assert policy.hazards() == [2 / 3, 1 / 2, 1 / 2, 1 / 2, 1 / 2]
    tokens = {2: 1 + 2 / 3, 3: 2.0, 6: 1 + 2 / 3 + 1 / 3 + 1 / 6 + 1 / 12 + 1 / 24}
    # 16, 24 and 48 tokens; the table has 12: 82.3, 24: 74.3 and 48: 63.7
    at_8 = {2: 82.3 - (82.3 - 74.3) / 3, 3: 74.3, 6: 63.7}
    # 64, 96 and 192 tokens; the table has 48: 63.7, 96: 52.4 and 192: 39.7
    at_32 = {2: 63.7 - (63.7 - 52.4) / 3, 3: 52.4, 6: 39.7}
    for requests, step_rates in ((8, at_8), (32, at_32)):
        for width, rate in step_rates.items():
            assert policy.score(width, requests) == pytest.approx(requests * tokens[width] * rate, rel=1e-12)
    assert policy.choose(1) == 6  # one step rate for all widths: more rows, more tokens
    assert policy.choose(8) == 6  # 148.6 against 146.0 tokens per second and request is not 2 percent more
    assert policy.choose(32) == 3
    assert policy.choose(8) == 3  # once narrow, the step stays narrow
    assert policy.choose(1) == 6


def test_reasons_not_to_choose_are_named_and_all_of_them() -> None:
    assert WidthConditions().refusals() == ()
    every = WidthConditions("compact", True, 2, True, True, True).refusals()
    assert len(every) == 6
    for text, reason in zip(
        ("'compact'", "data parallel", "2 pipeline ranks", "recurrent", "simulated", "observers"), every, strict=True
    ):
        assert text in reason
