"""Verify policies, step rates and confidence temperatures."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from dspark_ops.contracts.schedule import schedule_prefix
from dspark_ops.decode.calibration import read_calibration
from dspark_ops.decode.policy import PrefixPolicy, StaticPolicy, ThresholdPolicy
from dspark_ops.decode.sps import AdditiveStepTime, MeasuredRates, default_rates, read_rates
from dspark_ops.errors import ConfigError

OPS = SimpleNamespace(schedule_prefix=schedule_prefix)
CONFIDENCE = torch.tensor([[0.9, 0.8, 0.5], [0.6, 0.5, 0.4]])
FALLING = MeasuredRates((1, 2, 3, 4, 5, 6, 7, 8), (1.0, 1.0, 0.96, 0.9, 0.82, 0.73, 0.65, 0.58))
STAIRS = MeasuredRates((1, 2, 3, 6, 7, 8), (1.0, 1.0, 0.68, 0.67, 0.66, 0.5))


def lens(scheduler: object, confidence: torch.Tensor, requests: list[int] | None = None) -> list[int]:
    return scheduler.verify_lens(confidence, confidence.cumprod(-1), requests or list(range(len(confidence)))).tolist()


def test_the_static_policy_gives_every_request_the_same_rows_and_never_more_than_there_are() -> None:
    assert lens(StaticPolicy().scheduler(OPS, 3), CONFIDENCE) == [4, 4]
    assert lens(StaticPolicy(2).scheduler(OPS, 3), CONFIDENCE) == [2, 2]
    assert lens(StaticPolicy(9).scheduler(OPS, 3), CONFIDENCE) == [4, 4]


@pytest.mark.parametrize(
    ("threshold", "rows"), [(0.0, [4, 4]), (0.45, [4, 3]), (0.5, [4, 3]), (0.7, [3, 1]), (0.95, [1, 1])]
)
def test_the_threshold_policy_stops_before_the_first_confidence_below(threshold: float, rows: list[int]) -> None:
    assert lens(ThresholdPolicy(threshold).scheduler(OPS, 3), CONFIDENCE) == rows


def test_the_threshold_policy_does_not_resume_behind_a_low_or_missing_confidence() -> None:
    scheduler = ThresholdPolicy(0.5).scheduler(OPS, 3)
    assert lens(scheduler, torch.tensor([[0.9, 0.1, 0.9], [float("nan"), 0.9, 0.9]])) == [2, 1]


def test_early_stop_uses_the_confidences_of_this_step() -> None:
    assert lens(PrefixPolicy(FALLING).scheduler(OPS, 3), CONFIDENCE) == [3, 2]
    assert lens(PrefixPolicy(STAIRS).scheduler(OPS, 3), CONFIDENCE) == [1, 1]


@pytest.mark.parametrize("lag", [1, 2, 3])
def test_global_takes_its_number_from_confidences_that_old_and_its_choice_from_current_ones(lag: int) -> None:
    scheduler = PrefixPolicy(STAIRS, "global", lag).scheduler(OPS, 3)
    hopeless = torch.full((2, 3), 0.02)
    for _ in range(lag):  # nothing is known yet: every draft counts as sure, and the best number of sure drafts is 5
        assert sum(lens(scheduler, CONFIDENCE)) == 7
    # the number 5 follows from the old confidences (its rows are [4, 3]); it is now spent by the new ones
    assert lens(scheduler, CONFIDENCE.flip(0)) == [3, 4]
    assert [sum(lens(scheduler, hopeless)) for _ in range(lag + 1)] == [7] * lag + [2]


def test_global_never_looks_at_what_it_decides_about() -> None:
    generator = torch.Generator().manual_seed(3)
    for trial in range(30):
        first, second = (torch.rand(2, 4, generator=generator) for _ in range(2))
        other = second.clone()
        position = trial % 4
        other[0, position:] = torch.rand(4 - position, generator=generator)
        outcome = []
        for current in (second, other):
            scheduler = PrefixPolicy(default_rates(), "global", lag=1).scheduler(OPS, 4)
            lens(scheduler, first)
            outcome.append(lens(scheduler, current)[0])
        # drafts up to the changed confidence are tested in both or in neither
        assert min(outcome[0], position + 1) == min(outcome[1], position + 1)


def test_a_request_that_ended_leaves_no_memory_to_the_next_with_its_number() -> None:
    scheduler = PrefixPolicy(STAIRS, "global", lag=1).scheduler(OPS, 3)
    hopeless = torch.full((1, 3), 0.01)
    lens(scheduler, hopeless, [5])
    assert lens(scheduler, CONFIDENCE[:1], [5]) == [2]  # a second row costs nothing at these rates
    lens(scheduler, hopeless, [5])
    scheduler.forget(5)
    assert lens(scheduler, CONFIDENCE[:1], [5]) == [4]


def test_rates_of_a_single_size_verify_everything_and_say_so() -> None:
    with pytest.warns(UserWarning, match="measure at least two"):
        scheduler = PrefixPolicy(MeasuredRates((8,), (100.0,))).scheduler(OPS, 3)
    assert lens(scheduler, torch.zeros(2, 3)) == [4, 4]


def test_the_default_rates_keep_likely_drafts_and_cut_hopeless_ones() -> None:
    scheduler = PrefixPolicy().scheduler(OPS, 5)
    assert lens(scheduler, torch.tensor([[0.9] * 5])) == [6]
    assert lens(scheduler, torch.tensor([[0.9, 0.02, 0.9, 0.9, 0.9]])) == [2]


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: StaticPolicy(-1), "static verify rows is -1"),
        (lambda: ThresholdPolicy(1.5), "confidence threshold is 1.5"),
        (lambda: PrefixPolicy(mode="late"), "wanted 'early_stop' or 'global'"),
        (lambda: PrefixPolicy(mode="global", lag=0), "lag is 0: wanted at least 1 step"),
        (lambda: MeasuredRates((1, 1), (1.0, 1.0)), "wanted rising sizes"),
        (lambda: MeasuredRates((1, 2), (1.0,)), "got 1 for 2"),
        (lambda: MeasuredRates((1, 2), (1.0, -1.0)), "wanted finite positive values, got -1.0"),
        (lambda: MeasuredRates((1, 2), (1.0, 1.0), "cubic"), "wanted 'floor' or 'linear'"),
    ],
)
def test_wrong_values_are_refused_when_they_are_made(make: object, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        make()


def test_floor_takes_the_size_at_or_below_and_linear_interpolates() -> None:
    sizes, rates = (2, 4, 8), (10.0, 6.0, 2.0)
    assert MeasuredRates(sizes, rates).dense(1, 9) == [10, 10, 10, 10, 6, 6, 6, 6, 2, 2]
    assert MeasuredRates(sizes, rates, "linear").dense(1, 9) == [10, 10, 10, 8, 6, 5, 4, 3, 2, 2]


def test_additive_step_times_add_requests_and_tokens() -> None:
    table = AdditiveStepTime(0.01, (1, 3), (0.0, 0.02), (1, 5), (0.0, 0.04))
    assert table.dense(2, 3) == pytest.approx([1 / 0.02, 1 / 0.02, 1 / 0.03, 1 / 0.04])
    assert table.dense(9, 9)[9] == pytest.approx(1 / 0.07)


def test_rates_are_read_from_both_forms_of_file(tmp_path: Path) -> None:
    file = tmp_path / "sps.json"
    sampled = {"sample_batch_tokens": [1, 6], "sample_steps_per_sec": [9.0, 8.0], "max_batch_tokens": 6}
    file.write_text(json.dumps(sampled))
    assert read_rates(file) == MeasuredRates((1, 6), (9.0, 8.0), "floor")
    additive = {
        "bias_seconds": 0.01,
        "bs_probes": [1],
        "alpha_seconds": [0.0],
        "m_probes": [1, 6],
        "theta_seconds": [0.0, 0.005],
    }
    file.write_text(json.dumps(additive))
    assert read_rates(file) == AdditiveStepTime(0.01, (1,), (0.0,), (1, 6), (0.0, 0.005))


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("{", "cannot read step rates"),
        ("[1]", "wanted an object, got list"),
        ('{"tokens": [1]}', "wanted the key 'sample_batch_tokens' or 'bias_seconds', got tokens"),
        ('{"sample_batch_tokens": [1, "2"], "sample_steps_per_sec": [1, 2]}', "wanted a list of numbers"),
        ('{"sample_batch_tokens": [2, 1], "sample_steps_per_sec": [1, 2]}', "wanted rising sizes"),
        (
            '{"sample_batch_tokens": [1, 9], "sample_steps_per_sec": [1, 2], "max_batch_tokens": 4}',
            "wanted at least 9",
        ),
        ('{"bias_seconds": "soon"}', "could not convert string to float: 'soon'"),
        ('{"bias_seconds": 0}', "bs_probes: wanted a list of numbers, got None"),
    ],
)
def test_a_file_that_is_no_rate_table_is_refused_with_its_path(tmp_path: Path, content: str, text: str) -> None:
    file = tmp_path / "rates.json"
    file.write_text(content)
    with pytest.raises(ConfigError, match=text) as caught:
        read_rates(file)
    assert "rates.json" in str(caught.value)


def test_confidence_temperatures_are_read_and_must_fit_the_block(tmp_path: Path) -> None:
    file = tmp_path / "sts.json"
    file.write_text(
        json.dumps({"temperatures": [1.0, 1.5], "dataset": "held-out", "num_samples": 7, "ece_before": [0.1]})
    )
    table = read_calibration(file, 2)
    assert (table.temperatures, table.dataset, table.samples, table.ece_before) == ((1.0, 1.5), "held-out", 7, (0.1,))
    with pytest.raises(ConfigError, match="wanted 5, one per draft of a block, got 2"):
        read_calibration(file, 5)


@pytest.mark.parametrize("content", ["{", "{}", '{"temperatures": 3}', '{"temperatures": [0, 1]}', "[1, 2]"])
def test_a_file_that_is_no_temperature_table_is_refused_with_its_path(tmp_path: Path, content: str) -> None:
    file = tmp_path / "sts.json"
    file.write_text(content)
    with pytest.raises(ConfigError, match=r"sts\.json"):
        read_calibration(file, 2)
