"""What may be said of two arms that took turns; nothing is timed here."""

from __future__ import annotations

import pytest

from dspark_ops.bench.timing import alternate, comparison, spread


class Clock:
    """Stands for a graph: gives its times one after the other, and notes its turns."""

    def __init__(self, name, times, turns, span_us=100.0):
        self.name, self.times, self.turns, self.span_us = name, iter(times), turns, span_us

    def run(self):
        self.turns.append(self.name)
        return next(self.times)


def rounds(values):
    return dict(enumerate(values))


def test_a_spread_is_the_median_with_the_deciles():
    found = spread(range(1, 12))
    assert (found.median, found.p10, found.p90, found.rounds) == (6, 2, 10, 11)


def test_one_round_has_no_spread():
    with pytest.raises(ValueError, match="at least two rounds, got 1"):
        spread([1.0])


def test_a_ratio_is_of_the_same_round_so_that_a_drift_of_the_clock_cancels():
    drift = [1.0, 1.5, 2.0, 3.0, 4.0]
    found = comparison(rounds(drift), rounds([2 * value for value in drift]))
    assert (found.ratio, found.told, found.text) == (2.0, True, "2.00x")


def test_no_ratio_is_given_where_the_rounds_contradict_each_other():
    found = comparison(rounds([1.0, 1.0, 1.0, 1.0]), rounds([0.8, 1.3, 0.9, 1.2]))
    assert not found.told
    assert found.text.startswith("not told apart (0.8")
    assert found.to_json()["ratio"] is None


def test_arms_take_turns_forward_and_backward():
    turns = []
    graphs = {name: Clock(name, [1.0] * 4, turns) for name in "ab"}
    samples = alternate(graphs, 4)
    assert "".join(turns) == "abbaabba"
    assert {name: len(values) for name, values in samples.items()} == {"a": 4, "b": 4}


def test_an_arm_of_milliseconds_is_timed_in_each_fourth_round_and_compared_in_those():
    turns = []
    graphs = {"own": Clock("own", [1.0] * 9, turns), "slow": Clock("slow", [9.0] * 9, turns, span_us=20_000)}
    samples = alternate(graphs, 9)
    assert sorted(samples["slow"]) == [0, 1, 4, 8]
    assert comparison(samples["own"], samples["slow"]).ratio == 9.0
