"""Fitting the temperatures of the confidences: against a direct search, on known laws, and what must not matter."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from random import Random
from statistics import fmean

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dspark_ops.decode.calibration import Calibration, read_calibration, write_calibration
from dspark_ops.decode.sts_fit import TEMPERATURES, calibration_error, fit_sts
from dspark_ops.errors import ConfigError, ContractError

GRID = (0.25, 0.5, 1.0, 2.0, 4.0)


@st.composite
def blocks(draw: st.DrawFn) -> tuple[list[list[float]], list[int], list[int]]:
    """Logits of up to 12 blocks of one length, what was accepted of each, and what is known of it."""
    gamma = draw(st.integers(1, 4))
    count = draw(st.integers(1, 12))
    logit = st.floats(-6, 6, allow_subnormal=False)
    logits = draw(st.lists(st.lists(logit, min_size=gamma, max_size=gamma), min_size=count, max_size=count))
    counts = st.lists(st.integers(0, gamma), min_size=count, max_size=count)
    return logits, draw(counts), draw(counts)


def confidence(logit: float) -> float:
    return 1 / (1 + math.exp(-logit)) if logit >= 0 else math.exp(logit) / (1 + math.exp(logit))


def direct_error(blocks: tuple, temperatures: Sequence[float]) -> float:
    """The calibration error of the last of some positions by the definition: bin means against shares, by weight."""
    bins: dict[int, list[tuple[float, bool]]] = {}
    position = len(temperatures) - 1
    for scores, accepted, known in zip(*blocks, strict=True):
        if known > position:
            product = 1.0
            for score, temperature in zip(scores, temperatures, strict=False):
                product *= confidence(score / temperature)
            bins.setdefault(min(int(product * 20), 19), []).append((product, accepted > position))
    total = sum(map(len, bins.values()))
    return sum(
        abs(fmean(p for p, _ in held) - fmean(right for _, right in held)) * len(held) / total for held in bins.values()
    )


@settings(max_examples=150, deadline=None)
@given(blocks())
def test_each_position_has_the_best_temperature_with_those_before_it_fixed(given_blocks: tuple) -> None:
    table = fit_sts(*given_blocks, grid=GRID)
    for position, error in enumerate(table.ece_after):
        fixed = table.temperatures[:position]
        assert error == pytest.approx(direct_error(given_blocks, table.temperatures[: position + 1]), abs=1e-7)
        assert error <= min(direct_error(given_blocks, [*fixed, value]) for value in GRID) + 1e-7
        assert table.ece_before[position] == pytest.approx(direct_error(given_blocks, [1.0] * (position + 1)), abs=1e-7)


@settings(max_examples=100, deadline=None)
@given(blocks(), st.randoms(use_true_random=False))
def test_neither_the_order_of_blocks_nor_what_is_not_known_changes_a_bit(given_blocks: tuple, random: Random) -> None:
    table = fit_sts(*given_blocks, grid=GRID)
    rows = list(zip(*given_blocks, strict=True))
    random.shuffle(rows)
    other = [[*scores[:known], *(-score for score in scores[known:])] for scores, _, known in rows]
    assert fit_sts(other, [row[1] for row in rows], [row[2] for row in rows], grid=GRID) == table


@settings(max_examples=60, deadline=None)
@given(blocks())
def test_later_drafts_do_not_change_the_temperatures_of_earlier_ones(given_blocks: tuple) -> None:
    logits, accepted, known = given_blocks
    whole = fit_sts(logits, accepted, known, grid=GRID)
    for gamma in range(1, len(logits[0])):
        cut = fit_sts(
            [row[:gamma] for row in logits], *([min(k, gamma) for k in x] for x in (accepted, known)), grid=GRID
        )
        assert cut.temperatures == whole.temperatures[:gamma] and cut.ece_after == whole.ece_after[:gamma]


def test_the_temperatures_behind_the_outcomes_are_found_and_the_error_falls() -> None:
    random, behind = Random(7), (2.0, 0.5, 1.0)
    logits, accepted = [], []
    for _ in range(4000):
        row = [random.uniform(-1, 4) for _ in behind]
        right = [random.random() < 1 / (1 + math.exp(-z / value)) for z, value in zip(row, behind, strict=True)]
        logits.append(row)
        accepted.append([*right, False].index(False))
    table = fit_sts(logits, accepted, dataset="drawn")
    for value, wanted in zip(table.temperatures, behind, strict=True):
        assert wanted / 1.3 < value < wanted * 1.3
    assert all(after < before for after, before in zip(table.ece_after, table.ece_before, strict=True))
    assert max(table.ece_after) < 0.025
    assert (table.dataset, table.samples) == ("drawn", 4000)


def test_positions_behind_an_accepted_end_of_text_count_for_nothing() -> None:
    """Two blocks end with draft 1: of draft 2 only the third one speaks, and it was right: the sharper, the better."""
    logits, accepted = [[0.0, 5.0], [0.0, 5.0], [0.0, 0.5]], [1, 1, 2]
    assert fit_sts(logits, accepted, [1, 1, 2]).temperatures[1] == 0.125
    assert fit_sts(logits, accepted).temperatures[1] > 0.2  # the other two as drafts that were wrong


def test_of_equal_errors_the_temperature_nearest_to_one_wins() -> None:
    assert fit_sts([[0.0, 0.0]] * 4, [0, 1, 2, 2]).temperatures == (1.0, 1.0)
    assert fit_sts([[0.0]], [1], grid=(8.0, 2.0, 0.5, 0.125)).temperatures == (0.5,)


def test_a_position_of_which_nothing_is_known_keeps_one() -> None:
    table = fit_sts([[3.0, 1.0]], [0], [1], grid=(2.0, 4.0))
    assert table.temperatures == (4.0, 1.0)
    assert table.ece_before[1] == table.ece_after[1] == 0.0


def test_the_error_is_the_weighted_distance_of_means_and_shares() -> None:
    # bins 0.5 to 0.55 (three, one right) and the last one (one, right)
    assert calibration_error([0.5, 0.52, 0.54, 1.0], [True, False, False, True]) == pytest.approx(
        (abs(1.56 - 1) + 1e-8) / 4, abs=1e-12
    )
    assert calibration_error([], []) == 0.0
    assert calibration_error([0.0, 0.0], [False, True]) == pytest.approx(0.5, abs=1e-7)


def test_the_grid_reaches_from_an_eighth_to_eight_in_equal_factors_around_one() -> None:
    assert len(TEMPERATURES) == 49 and (TEMPERATURES[0], TEMPERATURES[24], TEMPERATURES[48]) == (0.125, 1.0, 8.0)
    ratios = [TEMPERATURES[step + 1] / TEMPERATURES[step] for step in range(48)]
    assert ratios == pytest.approx([2 ** (1 / 8)] * 48)


@pytest.mark.parametrize(
    ("logits", "accepted", "options", "text"),
    [
        ([], [], {}, "at least one block"),
        ([[0.0], [0.0, 1.0]], [0, 0], {}, r"logits\[1\]: wanted 1 finite"),
        ([[0.0], [math.nan]], [0, 0], {}, r"logits\[1\]: wanted 1 finite"),
        ([[0.0]], [0, 0], {}, "wanted accepted of 1 blocks, got 2"),
        ([[0.0]], [2], {}, r"accepted\[0\]: wanted 0 to 1, got 2"),
        ([[0.0]], [0], {"known": [-1]}, r"known\[0\]: wanted 0 to 1, got -1"),
        ([[0.0]], [0], {"grid": (1.0, 0.0)}, "wanted positive temperatures"),
        ([[0.0]], [0], {"bins": 0}, "1 bin or more"),
    ],
)
def test_what_cannot_be_fitted_is_refused(logits: list, accepted: list, options: dict, text: str) -> None:
    with pytest.raises(ContractError, match=text):
        fit_sts(logits, accepted, **options)


def test_a_written_table_is_read_back_and_has_the_keys_of_the_format(tmp_path: Path) -> None:
    file = tmp_path / "sts.json"
    table = Calibration((1.0, 2.0 ** (1 / 8)), "held-out", 12, (0.25, 0.125), (0.1, 0.05))
    write_calibration(file, table)
    assert read_calibration(file, 2) == table
    assert list(json.loads(file.read_text())) == ["temperatures", "dataset", "num_samples", "ece_before", "ece_after"]
    with pytest.raises(ConfigError, match="cannot write confidence temperatures"):
        write_calibration(tmp_path / "nowhere" / "sts.json", table)
