"""The order of launches: pairs of neighbours, balanced against drift, with an A/A control between them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from random import Random

from dspark_ops.errors import ConfigError

__all__ = ["ORDERS", "Arm", "Slot", "schedule"]

ORDERS = ("abba", "random")


class Arm(str, Enum):
    """What a launch runs.

    A and B are compared; CONTROL runs the very same as A, in the place of B, so that its difference to A is the noise.
    """

    A = "A"
    B = "B"
    CONTROL = "A'"


@dataclass(frozen=True, slots=True)
class Slot:
    """One launch of a schedule.

    Attributes:
        number: its place in time, from 0.
        arm: what runs.
        pair: number of its pair; the two launches of a pair are neighbours in time.
        control: whether the pair belongs to the A/A control.
    """

    number: int
    arm: Arm
    pair: int
    control: bool


def schedule(pairs: int, control_pairs: int, order: str = "abba", seed: int = 0) -> tuple[Slot, ...]:
    """Return the launches in the order in which they run.

    ``abba`` repeats the blocks A B B A and B A A B, so that each arm comes first equally often and a linear drift of
    the machine cancels; ``random`` draws who comes first in each pair. Pairs of the control are spread evenly between
    those of the comparison. All launches of one arm before all of the other, which would confound the arm with the
    hour, cannot be asked for.

    Args:
        pairs: pairs of A and B; 2 or more, for an interval. Four and more are asked of a comparison (R4.1).
        control_pairs: pairs of A and the control; 0 for none, else 2 or more.
        order: ``abba`` or ``random``.
        seed: of the random order.

    Raises:
        ConfigError: a count or the order is none of these.

    Source: C4.4 (R4.1, R4.2).
    """
    if pairs < 2:
        raise ConfigError(f"pairs: wanted 2 or more, since one pair has no interval, got {pairs}")
    if control_pairs < 0 or control_pairs == 1:
        raise ConfigError(f"control pairs: wanted 0 or 2 or more, got {control_pairs}")
    if order not in ORDERS:
        raise ConfigError(f"order: wanted {' or '.join(ORDERS)}, got {order!r}")
    random = Random(seed)
    slots: list[Slot] = []
    turn = {False: 0, True: 0}
    for pair, control in enumerate(_kinds(pairs, control_pairs)):
        second = Arm.CONTROL if control else Arm.B
        first_leads = random.random() < 0.5 if order == "random" else turn[control] % 4 in (0, 3)
        turn[control] += 1
        for arm in (Arm.A, second) if first_leads else (second, Arm.A):
            slots.append(Slot(len(slots), arm, pair, control))
    return tuple(slots)


def _kinds(pairs: int, control_pairs: int) -> Iterator[bool]:
    """Yield for each pair whether it is a control, the controls spread evenly, two by two so that they stay ABBA."""
    waiting = [control_pairs // 2 * 2, control_pairs % 2]
    done = 0
    for pair in range(1, pairs + 1):
        yield False
        if pair % 2 and pair != pairs:
            continue
        while waiting[0] and done * pairs < pair * control_pairs:
            yield from (True, True)
            waiting[0] -= 2
            done += 2
    yield from [True] * (sum(waiting))
