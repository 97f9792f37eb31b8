"""Laws of drawn acceptance: their means in exact numbers, their refusals, and what a run reports."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest

from dspark_ops.decode.forced import ForcedAcceptance, law_mean, normal_clamped, per_position, two_point
from dspark_ops.errors import ConfigError

GRID = [(part + 0.5) / 20000 for part in range(20000)]


@pytest.mark.parametrize(
    ("mean", "rates"),
    [
        (3.51, [1, 1, 0.51, 0, 0]), (5.5, [1, 1, 1, 1, 0.5]), (1.0, [0, 0, 0, 0, 0]), (6.0, [1, 1, 1, 1, 1]),
        (1.25, [0.25, 0, 0, 0, 0]),
    ],
)  # fmt: skip
def test_the_rates_by_position_are_ones_a_fraction_and_zeros(mean: float, rates: list[float]) -> None:
    got = per_position(mean, 5)
    assert got == pytest.approx(rates)
    assert 1 + math.fsum(got) == pytest.approx(mean, abs=1e-12)
    assert all(first >= second for first, second in pairwise(got))


@pytest.mark.parametrize("mean", [1.0, 1.5, 2.75, 3.51, 5.5, 6.0])
def test_two_points_have_exactly_the_mean(mean: float) -> None:
    lengths = [two_point(mean, 5, coin) for coin in GRID]
    assert set(lengths) <= {math.floor(mean), min(math.floor(mean) + 1, 6)}
    assert sum(lengths) / len(lengths) == pytest.approx(mean, abs=1e-4)
    assert law_mean("two_point", mean, 5) == law_mean("per_position", mean, 5) == mean


def test_the_coin_decides_between_the_two_points_strictly() -> None:
    assert two_point(3.5, 5, 0.4999) == 4
    assert two_point(3.5, 5, 0.5) == 3
    assert two_point(6.0, 5, 1e-12) == 6
    assert two_point(1.0, 5, 1e-12) == 1


@pytest.mark.parametrize(("mean", "biased"), [(5.5, 5.32), (1.5, 1.68), (3.5, 3.5)])
def test_the_clamp_moves_the_mean_of_the_normal_law(mean: float, biased: float) -> None:
    lengths = [normal_clamped(mean, 5, coin) for coin in GRID]
    assert set(lengths) <= set(range(1, 7))
    assert law_mean("normal_clamped", mean, 5) == pytest.approx(biased, abs=0.005)
    assert sum(lengths) / len(lengths) == pytest.approx(law_mean("normal_clamped", mean, 5), abs=1e-3)


@pytest.mark.parametrize("mean", [0.99, 0.0, -1.0, 6.01, 100.0, math.nan, math.inf])
@pytest.mark.parametrize("law", ["two_point", "per_position", "normal_clamped"])
def test_a_mean_outside_the_range_is_refused_with_the_range(mean: float, law: str) -> None:
    with pytest.raises(ConfigError, match="wanted 1 to 6, the final token and up to 5 drafts"):
        ForcedAcceptance(mean, law).start(5)
    with pytest.raises(ConfigError):
        law_mean(law, mean, 5)


def test_a_mean_outside_is_clamped_only_where_that_was_asked_for() -> None:
    assert ForcedAcceptance(0.2, clamp=True).start(5).draw(range(3)) == [1, 1, 1]
    assert ForcedAcceptance(9.0, clamp=True).start(5).draw(range(3)) == [6, 6, 6]
    with pytest.raises(ConfigError):
        ForcedAcceptance(math.nan, clamp=True).start(5)


@pytest.mark.parametrize(("options", "text"), [({"law": "poisson"}, "law .* 'poisson'"), ({"scope": "all"}, "'all'")])
def test_unknown_names_are_refused(options: dict, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        ForcedAcceptance(2.0, **options)


@pytest.mark.parametrize("law", ["two_point", "per_position", "normal_clamped"])
def test_a_long_run_has_the_mean_of_its_law_because_every_step_draws_again(law: str) -> None:
    lengths = ForcedAcceptance(3.51, law, seed=11).start(5)
    for _ in range(2000):
        drawn = lengths.draw(range(8))
        lengths.note(drawn, drawn)
    spread = 0.5 if law != "normal_clamped" else 1.1
    assert abs(lengths.realised_mean - law_mean(law, 3.51, 5)) < 5 * spread / math.sqrt(16000)


def test_requests_of_a_step_differ_unless_one_length_per_step_was_asked_for() -> None:
    each = ForcedAcceptance(3.5, seed=1).start(5)
    assert any(len(set(each.draw(range(16)))) > 1 for _ in range(4))
    whole = ForcedAcceptance(3.5, scope="per_step", seed=1).start(5)
    steps = [whole.draw(range(16)) for _ in range(50)]
    assert all(len(set(step)) == 1 for step in steps)
    assert len({step[0] for step in steps}) == 2


def test_one_seed_gives_one_sequence_and_another_seed_another() -> None:
    def run(seed: int) -> list[list[int]]:
        lengths = ForcedAcceptance(3.5, seed=seed).start(5)
        return [lengths.draw(range(4)) for _ in range(20)]

    assert run(5) == run(5)
    assert run(5) != run(6)


def test_a_request_draws_the_same_lengths_whoever_runs_beside_it_and_in_whatever_order() -> None:
    alone, among = (ForcedAcceptance(3.5, "normal_clamped", seed=5).start(5) for _ in range(2))
    wanted = [alone.draw([7])[0] for _ in range(30)]
    steps = [(7, 1), (2, 7), (7,), (3, 2, 7)] * 7 + [(7,), (1, 7)]
    assert [among.draw(step)[step.index(7)] for step in steps] == wanted
    among.forget(7)
    assert [among.draw([7])[0] for _ in range(30)] == wanted


def test_two_positions_laws_draw_the_same_lengths() -> None:
    one, other = (ForcedAcceptance(3.51, law, seed=2).start(5) for law in ("two_point", "per_position"))
    assert [one.draw(range(3)) for _ in range(200)] == [other.draw(range(3)) for _ in range(200)]


def test_a_report_says_that_it_is_simulated_and_what_was_drawn() -> None:
    lengths = ForcedAcceptance(5.5, "normal_clamped", "per_step", seed=3).start(5)
    drawn = []
    for _ in range(100):
        step = lengths.draw(range(2))
        lengths.note(step, [min(length, 4) for length in step])  # as if only four rows were verified
        drawn += step
    kept = [min(length, 4) for length in drawn]
    report = lengths.report()
    assert report["simulated"] is True
    assert report["histogram"] == {length: kept.count(length) for length in range(1, 7)}
    assert report["realised_mean"] == pytest.approx(sum(kept) / 200)
    assert report["drawn_mean"] == pytest.approx(sum(drawn) / 200) and drawn != kept
    assert (report["mean"], round(report["law_mean"], 2)) == (5.5, 5.32)
    assert any("equally many" in text for text in report["differences"])


def test_nothing_drawn_has_no_mean() -> None:
    lengths = ForcedAcceptance(2.0).start(5)
    assert lengths.draw([]) == [] and math.isnan(lengths.realised_mean) and math.isnan(lengths.drawn_mean)
