"""The order of launches: neighbours, balanced, never one arm before the other."""

from __future__ import annotations

import pytest

from dspark_ops.bench.design import Arm, Slot, schedule
from dspark_ops.errors import ConfigError


def letters(slots: tuple[Slot, ...]) -> str:
    return " ".join(slot.arm.value for slot in slots)


def test_four_pairs_are_abba_baab_with_the_control_between_them() -> None:
    assert letters(schedule(4, 0)) == "A B B A B A A B"
    assert letters(schedule(4, 4)) == "A B B A A A' A' A B A A B A' A A A'"


@pytest.mark.parametrize("order", ["abba", "random"])
@pytest.mark.parametrize(("pairs", "control"), [(2, 0), (2, 2), (3, 6), (4, 4), (5, 3), (8, 2), (16, 16)])
def test_pairs_are_neighbours_and_all_of_them_are_there(pairs: int, control: int, order: str) -> None:
    slots = schedule(pairs, control, order, seed=3)
    assert [slot.number for slot in slots] == list(range(2 * (pairs + control)))
    couples = [slots[start : start + 2] for start in range(0, len(slots), 2)]
    for left, right in couples:
        assert (left.pair, left.control) == (right.pair, right.control)
        assert {left.arm, right.arm} == {Arm.A, Arm.CONTROL if left.control else Arm.B}
    assert sum(not left.control for left, _ in couples) == pairs
    assert len({left.pair for left, _ in couples}) == pairs + control


@pytest.mark.parametrize("pairs", [2, 4, 8, 12])
def test_each_arm_leads_equally_often_and_a_linear_drift_cancels(pairs: int) -> None:
    slots = schedule(pairs, pairs)
    for control in (False, True):
        drift = {arm: 0 for arm in Arm}
        for slot in slots:
            if slot.control == control:
                drift[slot.arm] += slot.number
        assert drift[Arm.A] == drift[Arm.CONTROL if control else Arm.B]


def test_a_random_order_follows_its_seed() -> None:
    assert schedule(8, 2, "random", 1) == schedule(8, 2, "random", 1)
    assert schedule(8, 2, "random", 1) != schedule(8, 2, "random", 2)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [((1, 0), "pairs: wanted 2 or more"), ((4, 1), "control pairs: wanted 0 or 2"), ((4, 4, "aabb"), "abba or random")],
)
def test_a_design_without_an_interval_is_refused(arguments: tuple[int, int], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        schedule(*arguments)
