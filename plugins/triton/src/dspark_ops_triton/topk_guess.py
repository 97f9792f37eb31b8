"""Wide rows chosen from by a guess: what reaches it goes to one program per row, which makes the exact choice of these.

A sample of the row tells a key that some twice as many scores reach as are chosen. Many equal scores can crowd there:
then only larger ones go on, and the last program takes what is missing from the row itself. If the sample deceives, it
searches the whole row: that takes ten times as long, and the choice is the same.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from dspark_ops_triton.blocks.dependent import begin
from dspark_ops_triton.blocks.scratch import ScratchMemory
from dspark_ops_triton.blocks.selecting import (
    ALL_TIES,
    HIDDEN,
    LOWEST_KEY,
    NAN_KEY,
    narrowed,
    score_key,
    selected_places,
    threshold_of,
    two_probes,
)

#: Scores of the sample, one of which stays out: then a count of them has 10 bits, and a word holds three.
SAMPLE = 1024
#: Columns of a row per choice at most: of the sample, 16 scores are as good as the last choice.
COLUMNS_PER_CHOICE = 64
#: Candidates of a row per choice at most, and of a row: its program holds them in registers.
LANES_PER_CHOICE = 4
MOST_LANES = 2048
#: Chosen columns that each is ranked against at a time, and comparisons at a time.
OTHERS = 16
COMPARISONS = 4096
#: Programs of a row whose numbers of candidates are loaded at a time.
TOGETHER = tl.constexpr(8)
#: A quarter of the 32-bit numbers.
QUARTER = tl.constexpr(0x40000000)


@triton.jit
def guessed_key(scores, visible, top_k, SAMPLE: tl.constexpr):
    """Return a key that more than `top_k` of a row's `visible` scores reach, and whether very many equal it.

    If the sample is fair, not many more than twice `top_k` reach it, unless very many equal it.
    """
    number = tl.arange(0, SAMPLE)
    stretch = (visible // SAMPLE).to(tl.uint32)
    # one column of each stretch, not always the same one of it: what rows hold may repeat itself
    place = number * stretch.to(tl.int32) + (((number * 40503) & 0xFFFF).to(tl.uint32) % stretch).to(tl.int32)
    # numbers from 0 on: no probe passes 32 bits
    key = (score_key(tl.load(scores + place)) - LOWEST_KEY).to(tl.uint32, bitcast=True)
    key = tl.where(number < SAMPLE - 1, key, 0)
    expected = (top_k * SAMPLE).to(tl.float32) / visible.to(tl.float32)
    wanted = (expected + 4.0 * tl.sqrt(expected) + 4.0).to(tl.int32)
    most = wanted + wanted // 8
    low = tl.full((), 0, tl.uint32)
    quarter = tl.full((), QUARTER, tl.uint32)
    count = tl.full((), SAMPLE, tl.int32)
    while (count > most) & (quarter > 0):
        second = low + quarter + quarter
        reached = tl.sum(
            (key >= low + quarter).to(tl.int32)
            + ((key >= second).to(tl.int32) << 10)
            + ((key >= second + quarter).to(tl.int32) << 20),
            axis=0,
        )
        few, some, many = reached >> 20, (reached >> 10) & 0x3FF, reached & 0x3FF
        quarters = (few >= wanted).to(tl.uint32) + (some >= wanted).to(tl.uint32) + (many >= wanted).to(tl.uint32)
        low += quarters * quarter
        count = tl.where(few >= wanted, few, tl.where(some >= wanted, some, tl.where(many >= wanted, many, count)))
        quarter = quarter >> 2
    return low.to(tl.int32, bitcast=True) + LOWEST_KEY, count > most


@triton.jit(
    do_not_specialize=["width", "score_stride", "top_k"],
    do_not_specialize_on_alignment=["scores", "lengths", "candidates", "counts", "guesses"],
)
def reach_kernel(
    scores, lengths, candidates, counts, guesses, width, score_stride, top_k,
    BLOCK: tl.constexpr, LANES: tl.constexpr, ROOM: tl.constexpr, SAMPLE: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Write those of BLOCK scores of one row that reach its guess, in the order of columns, and how many they are.

    A candidate is one int64: the key in its upper half, the column in its lower one. A program has ROOM of them. Rows
    of up to LANES visible scores are not guessed about: all are candidates. Where very many scores equal the guess, the
    candidates are those above it, the upper half of a program's count those that equal it, and `guesses` holds it.
    """
    begin(PDL)
    row = tl.program_id(0).to(tl.int64)
    split = tl.program_id(1)
    here = row * tl.num_programs(1) + split
    visible = tl.minimum(tl.load(lengths + row), width)
    scores += row * score_stride
    passed = tl.full((), 0, tl.int32)
    if split * BLOCK < visible:
        column = split * BLOCK + tl.arange(0, BLOCK)
        score = tl.load(scores + column, mask=column < visible, other=0.0)
        guess = tl.full((), LOWEST_KEY, tl.int32)
        crowded = visible < 0
        if visible > LANES:
            guess, crowded = guessed_key(scores, visible, top_k, SAMPLE)
        key = tl.where(column < visible, score_key(score), HIDDEN)
        reaches = key >= guess + crowded.to(tl.int32)
        place = tl.cumsum(reaches.to(tl.int32), axis=0)
        passed = tl.sum(reaches.to(tl.int32), axis=0)
        candidate = (key.to(tl.int64) << 32) | column.to(tl.int64)
        tl.store(candidates + here * ROOM + place - 1, candidate, mask=reaches & (place <= ROOM))
        if crowded:
            passed += tl.sum((key == guess).to(tl.int32), axis=0) << 16
            tl.store(guesses + row, guess)
    tl.store(counts + here, passed)


@triton.jit
def row_keys(scores, column, visible):
    """Return the keys of some columns of a row, HIDDEN beyond the visible ones."""
    return tl.where(column < visible, score_key(tl.load(scores + column, mask=column < visible, other=0.0)), HIDDEN)


@triton.jit
def row_threshold(scores, visible, wanted, LANES: tl.constexpr):
    """Return what `threshold_of` does for a row of more scores than `wanted`, which is read for each count."""
    low = tl.full((), LOWEST_KEY, tl.int32)
    high = tl.full((), NAN_KEY, tl.int32)
    above = tl.full((), 0, tl.int32)
    count = visible
    while (count > wanted) & (low < high):
        lower, upper = two_probes(low, high)
        from_lower = tl.zeros((LANES,), tl.int32)
        from_upper = tl.zeros((LANES,), tl.int32)
        for first in range(0, visible, LANES):
            key = row_keys(scores, first + tl.arange(0, LANES), visible)
            from_lower += (key >= lower).to(tl.int32)
            from_upper += (key >= upper).to(tl.int32)
        low, high, above, count = narrowed(
            low, high, above, count, lower, upper, tl.sum(from_lower, axis=0), tl.sum(from_upper, axis=0), wanted
        )
    return low, tl.where(count > wanted, wanted - above, ALL_TIES)


@triton.jit
def store_chosen(ids, best, key, column, place, RANKED: tl.constexpr):
    """Write the chosen columns, or if they are to be ranked their candidates, to their places; none where it is -1."""
    if RANKED:
        tl.store(best + place, (key.to(tl.int64) << 32) | column.to(tl.int64), mask=place >= 0)
    else:
        tl.store(ids + place, column, mask=place >= 0)


@triton.jit(
    do_not_specialize=["width", "score_stride", "splits", "top_k"],
    do_not_specialize_on_alignment=["scores", "lengths", "candidates", "counts", "guesses", "best", "ids"],
)
def choose_kernel(
    scores, lengths, candidates, counts, guesses, best, ids, width, score_stride, splits, top_k,
    LANES: tl.constexpr, ROOM: tl.constexpr, SLOTS: tl.constexpr, OTHERS: tl.constexpr, RANKED: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """Write the choice of one row, and -1 behind it. `best` holds SLOTS candidates of the row for a while if RANKED."""
    begin(PDL)
    row = tl.program_id(0).to(tl.int64)
    visible = tl.minimum(tl.load(lengths + row), width)
    found = tl.minimum(visible, top_k)
    scores += row * score_stride
    counts += row * splits
    best += row * SLOTS
    ids += row * top_k
    lane = tl.arange(0, LANES)
    # where each candidate lies
    offset = lane
    total = tl.full((), 0, tl.int32)
    ties = tl.full((), 0, tl.int32)
    for first in range(0, splits, TOGETHER):
        for each in tl.static_range(TOGETHER):
            count = tl.load(counts + first + each, mask=first + each < splits, other=0)
            passed = count & 0xFFFF
            total += passed
            ties += count >> 16
            offset += tl.where(lane >= total, ROOM - passed, 0)
    if (total >= found) & (total <= LANES):
        candidate = tl.load(candidates + row * splits * ROOM + offset, mask=lane < total, other=0)
        key = tl.where(lane < total, (candidate >> 32).to(tl.int32), HIDDEN)
        low, room = threshold_of(key, total, top_k)
        store_chosen(ids, best, key, candidate.to(tl.int32), selected_places(key, low, room), RANKED)
    else:
        if (total < found) & (total + ties >= found):
            low = tl.load(guesses + row)
            room = found - total
        else:
            low, room = row_threshold(scores, visible, top_k, LANES)
        taken = tl.full((), 0, tl.int32)
        for first in range(0, visible, LANES):
            key = row_keys(scores, first + lane, visible)
            place = selected_places(key, low, room)
            store_chosen(ids, best, key, first + lane, tl.where(place >= 0, taken + place, -1), RANKED)
            taken += tl.sum((place >= 0).to(tl.int32), axis=0)
            room = tl.maximum(room - tl.sum((key == low).to(tl.int32), axis=0), 0)
    slot = tl.arange(0, SLOTS)
    tl.store(ids + slot, tl.full((SLOTS,), -1, tl.int32), mask=(slot >= found) & (slot < top_k))
    if RANKED:
        tl.debug_barrier()  # other threads read them below
        mine = tl.load(best + slot, mask=slot < found, other=0)
        rank = ranks(best, mine, found, SLOTS, OTHERS)
        tl.store(ids + rank, mine.to(tl.int32), mask=slot < found)


@triton.jit
def ranks(best, mine, found, SLOTS: tl.constexpr, OTHERS: tl.constexpr):
    """Return how many of `found` candidates come before each of `mine`, which lie at `best` in the order of columns."""
    key = mine >> 32
    slot = tl.arange(0, SLOTS)
    rank = tl.zeros((SLOTS,), tl.int32)
    for first in range(0, found, OTHERS):
        other = first + tl.arange(0, OTHERS)
        theirs = tl.load(best + other, mask=other < found, other=0) >> 32
        inside = (other < found)[:, None]
        tied = (theirs[:, None] == key[None, :]) & (other[:, None] < slot[None, :])
        # the others along the first axis: their sum then stays within a thread
        rank += tl.sum((inside & ((theirs[:, None] > key[None, :]) | tied)).to(tl.int32), axis=0)
    return rank


def slots_of(top_k: int) -> int:
    """Return the places of one row's choices."""
    return max(16, triton.next_power_of_2(top_k))


def others_of(slots: int) -> int:
    """Return how many choices all of a row's are ranked against at a time."""
    return min(OTHERS, COMPARISONS // slots)


def guess_constants(tiles: Any, top_k: int, ranked: bool) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the compile-time arguments of both launches, for tiles of `topk.Tiles`."""
    slots = slots_of(top_k)
    lanes = LANES_PER_CHOICE * slots
    common = {"LANES": lanes, "ROOM": min(tiles.block, lanes), "PDL": tiles.pdl}
    last = {"SLOTS": slots, "OTHERS": others_of(slots), "RANKED": ranked}
    return {**common, "BLOCK": tiles.block, "SAMPLE": tiles.sample}, {**common, **last}


def choose_after_a_guess(
    constants: tuple[dict[str, Any], dict[str, Any]], options: dict[str, Any], scratch: ScratchMemory, scores: Tensor,
    lengths: Tensor, ids: Tensor,
) -> None:  # fmt: skip
    """Write the choice of each row to `ids`, in two launches.

    Args:
        constants: from `guess_constants`.
        options: of both launches.
        scratch: where candidates go.
        scores: [R, W] float32, last stride 1.
        lengths: [R] int32, visible columns.
        ids: [R, top_k] int32, contiguous, written.
    """
    first, last = constants
    (rows, width), top_k = scores.shape, ids.shape[1]
    splits = triton.cdiv(width, first["BLOCK"])
    words = [2 * rows * splits * first["ROOM"], 2 * rows * last["SLOTS"], rows * splits, rows]
    memory = scratch.take(sum(words), scores)[: sum(words)].view(torch.int32)
    candidates, best, counts, guesses = memory.split(words)
    candidates, best = candidates.view(torch.int64), best.view(torch.int64)
    stride = scores.stride(0)
    reach_kernel[(rows, splits)](
        scores, lengths, candidates, counts, guesses, width, stride, top_k, **first, **options,
    )  # fmt: skip
    choose_kernel[(rows,)](
        scores, lengths, candidates, counts, guesses, best, ids, width, stride, splits, top_k, **last, **options,
    )  # fmt: skip
