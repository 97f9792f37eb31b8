"""Sums over the programs of a launch, in one order for groups of any number of tokens."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def add_splits(
    sums, live,
    SPLITS: tl.constexpr, ROWS: tl.constexpr, GROUP: tl.constexpr, COLUMNS: tl.constexpr, LOOP: tl.constexpr,
):  # fmt: skip
    """Return the sums [GROUP, COLUMNS] of what SPLITS programs stored, in an order that GROUP does not change.

    It is that of four quarters: ``(first + third) + (second + fourth)``. Small groups have the quarters side by side,
    in threads that would be idle: then fewer loads follow each other.

    Args:
        sums: pointer to [SPLITS, GROUP, COLUMNS] float32.
        live: [GROUP], which tokens there are; the others are not read, and 0.
        SPLITS: how many programs, 1 or more.
        ROWS: columns up to the one of this number are read, and three more.
        GROUP: 4, 8 or 16 tokens.
        COLUMNS: a power of two.
        LOOP: whether half of the loads of 16 tokens wait for the other half. They need half of the registers then,
            which lets a third program onto an NVIDIA multiprocessor; on AMD the loop spills scalar registers.
    """
    BESIDE: tl.constexpr = 16 // GROUP
    QUARTER: tl.constexpr = (SPLITS + 3) // 4
    SIZE: tl.constexpr = GROUP * COLUMNS
    # A line holds the columns of a token in all quarters that lie side by side.
    place = tl.arange(0, BESIDE * COLUMNS)[None, :]
    first, column = place // COLUMNS * QUARTER, place % COLUMNS
    cells = sums + first * SIZE + tl.arange(0, GROUP)[:, None] * COLUMNS + column
    wanted = live[:, None] & (column < ROWS + 4)
    if BESIDE == 4:
        total = add_quarter(cells, wanted, first, SPLITS, SIZE)
    elif BESIDE == 2:
        total = add_two_quarters(cells, wanted, first, SPLITS, SIZE)
    elif LOOP:
        total = tl.zeros((GROUP, COLUMNS), tl.float32)
        for quarter in range(2):
            total += add_two_quarters(cells, wanted, first + quarter * QUARTER, SPLITS, SIZE)
            cells += QUARTER * SIZE
    else:
        total = add_two_quarters(cells, wanted, first, SPLITS, SIZE)
        total += add_two_quarters(cells + QUARTER * SIZE, wanted, first + QUARTER, SPLITS, SIZE)
    # Two by two: of more than two, a reduction may choose the order.
    if BESIDE == 4:
        total = tl.sum(tl.reshape(total, (GROUP, 2, 2 * COLUMNS)), axis=1)
    if BESIDE > 1:
        total = tl.sum(tl.reshape(total, (GROUP, 2, COLUMNS)), axis=1)
    return total


@triton.jit
def add_two_quarters(cells, wanted, first, SPLITS: tl.constexpr, SIZE: tl.constexpr):
    """Return the sum of the quarter of the programs that begins at `cells`, and of the next but one."""
    NEXT: tl.constexpr = (SPLITS + 3) // 4 * 2
    quarter = add_quarter(cells, wanted, first, SPLITS, SIZE)
    return quarter + add_quarter(cells + NEXT * SIZE, wanted, first + NEXT, SPLITS, SIZE)


@triton.jit
def add_quarter(cells, wanted, first, SPLITS: tl.constexpr, SIZE: tl.constexpr):
    """Return the sum of a quarter of the programs; the one at `cells` has the number `first`."""
    # All loads come before the first sum: they are under way together.
    loaded = ()
    for part in tl.static_range((SPLITS + 3) // 4):
        there = wanted if SPLITS % 4 == 0 else wanted & (first + part < SPLITS)
        loaded = loaded + (tl.load(cells + part * SIZE, mask=there, other=0.0),)  # noqa: RUF005
    total = loaded[0]
    for part in tl.static_range(1, (SPLITS + 3) // 4):
        total += loaded[part]
    return total
