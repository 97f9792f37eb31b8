"""The uniform verify width over many steps: its counts lag by a fixed number of steps, and nothing else is kept."""

from __future__ import annotations

from random import Random

import pytest

from dspark_ops.decode.sps import MeasuredRates, packaged_rates
from dspark_ops.decode.verify_width import VerifyWidthPolicy, WidthFeed, WidthHistogram

FLAT = MeasuredRates((1, 1000), (50.0, 50.0), "linear")


def test_the_first_update_comes_at_step_64_with_the_counts_of_steps_1_to_32() -> None:
    policy = VerifyWidthPolicy(FLAT, 3, (2,))
    histogram, feed = WidthHistogram(policy.widths), WidthFeed(policy)
    for step in range(1, 129):
        histogram.record(3, [2] if step <= 32 else [0] if step <= 64 else [1])
        feed.observed(histogram.snapshot)
        if step < 64:
            assert policy.hazards() == [0.0, 0.0]
        elif step < 96:
            assert policy.hazards() == [1.0, 1.0]
        elif step < 128:  # 32 requests with no draft right came to 0.9 of the first 32
            assert policy.hazards() == [0.9 * 32 / (0.9 * 32 + 32), 1.0]
    assert policy.hazards()[0] == pytest.approx((0.9 * 0.9 * 32 + 32) / (0.9 * (0.9 * 32 + 32) + 32))


def test_a_snapshot_is_taken_every_32_steps_and_read_32_steps_later() -> None:
    policy = VerifyWidthPolicy(FLAT, 3, (2,))
    feed = WidthFeed(policy)
    events: list[str] = []
    step = 0

    class Snapshot:
        def __init__(self) -> None:
            self.taken = step
            events.append(f"taken at {step}")

        def counts(self) -> list[list[int]]:
            events.append(f"read at {step}, taken at {self.taken}")
            return [[0, 0, 0], [0, 0, self.taken]]

    for step in range(1, 100):  # noqa: B007
        feed.observed(Snapshot)
    assert events == [
        "taken at 32", "read at 64, taken at 32", "taken at 64", "read at 96, taken at 64", "taken at 96"
    ]  # fmt: skip


def test_accepted_drafts_beyond_the_width_count_as_all() -> None:
    histogram = WidthHistogram((2, 3))
    histogram.record(3, [0, 2, 7])
    histogram.record(2, [1])
    assert histogram.snapshot().counts() == ((0, 1, 0), (1, 0, 2))


class Naive:
    """The policy again, from the whole record of what was seen: nothing is kept but the record."""

    def __init__(self, rates: MeasuredRates, widths: tuple[int, ...]) -> None:
        self.rates, self.widths = rates, widths
        self.full, self.current, self.asked = widths[-1], widths[-1], 0
        self.steps: list[tuple[int, list[int]]] = []

    def state(self) -> tuple[list[float], list[float]]:
        reached, correct = [0.0] * (self.full - 1), [0.0] * (self.full - 1)
        for interval in range(max(len(self.steps) // 32 - 1, 0)):
            steps = self.steps[32 * interval : 32 * interval + 32]
            for draft in range(self.full - 1):
                here = [k for width, lens in steps if width > draft + 1 for k in lens if k >= draft]
                if here:
                    reached[draft] = 0.9 * reached[draft] + len(here)
                    correct[draft] = 0.9 * correct[draft] + sum(k > draft for k in here)
        return reached, correct

    def choose(self, requests: int) -> int:
        self.asked += 1
        reached, correct = self.state()
        if any(count <= 0 for count in reached) or self.asked % 64 == 0:
            return self.full
        scores = {}
        for width in self.widths:
            chance, tokens = 1.0, 1.0
            for draft in range(width - 1):
                chance *= correct[draft] / reached[draft]
                tokens += chance
            scores[width] = requests * tokens * self.rates.interpolated(requests * width)
        best = min(self.widths, key=lambda width: (-scores[width], width))
        if scores[best] > scores[self.current] * 1.02:
            self.current = best
        return self.current


@pytest.mark.parametrize(("extra", "seed"), [((2, 3), 0), ((2, 3, 4), 1), ((), 2)])
def test_decisions_equal_those_of_a_policy_that_keeps_only_the_record(extra: tuple, seed: int) -> None:
    rates = packaged_rates("deepseek-v4.1-flash_mi355x_tp4")
    policy, twin = (VerifyWidthPolicy(rates, 6, extra) for _ in range(2))
    naive = Naive(rates, policy.widths)
    histogram, feed, other_feed = WidthHistogram(policy.widths), WidthFeed(policy), WidthFeed(twin)
    random = Random(seed)
    chosen = []
    for step in range(400):
        requests = random.choice((1, 8, 32, 48))
        width = policy.choose(requests)
        assert width == naive.choose(requests) == twin.choose(requests)
        chosen.append(width)
        chance = 0.4 + 0.5 * (step // 100 % 2)
        lens = []
        for _ in range(requests):
            accepted = 0
            while accepted < width - 1 and random.random() < chance:
                accepted += 1
            lens.append(accepted)
        histogram.record(width, lens)
        feed.observed(histogram.snapshot)
        other_feed.observed(histogram.snapshot)
        naive.steps.append((width, lens))
    assert set(chosen) == set(policy.widths)
