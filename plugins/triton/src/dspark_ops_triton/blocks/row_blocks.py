"""How the lanes of a row lie in a program, or in the programs of a cluster that share it, as groups of 32."""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents

#: Lanes of the shortest block: the scale bytes of four groups lie side by side.
LEAST = 128


def row_blocks(lanes: int, threads: int, programs: int = 1) -> dict[str, int]:
    """Return the constants BLOCK, BLOCKS and MORE: a program's lanes lie in BLOCKS blocks of BLOCK and one of MORE.

    Lengths are powers of two, MORE may be 0. A thread has eight lanes of a long block, 16 bytes of 16-bit values, and
    at least two of any: 5120 lanes of 256 threads are two blocks of 2048 and one of 1024.

    Args:
        lanes: of the row.
        threads: of a program.
        programs: programs that share the row, each with the same number of lanes.
    """
    lanes, least = triton.cdiv(lanes, programs), max(LEAST, 2 * threads)
    block = max(least, 8 * threads)
    while block > least and block > lanes:
        block //= 2
    blocks, left = divmod(lanes, block)
    more = max(least, triton.next_power_of_2(left)) if left else 0
    return {"BLOCK": block, "BLOCKS": blocks, "MORE": more} if more < block else {
        "BLOCK": block, "BLOCKS": blocks + 1, "MORE": 0
    }  # fmt: skip


def programs_of(wanted: int, lanes: int, threads: int, aligned: bool) -> int:
    """Return how many programs share a row: `wanted`, or 1 where they cannot.

    They can where blocks fill their shares and all rows begin on 16 bytes: then each warp holds neighbouring lanes.

    Args:
        wanted: programs of a cluster.
        lanes: of the row.
        threads: of a program.
        aligned: rows begin on 16 bytes.
    """
    found = row_blocks(lanes, threads, wanted)
    whole = lanes % wanted == 0 and found["BLOCK"] * found["BLOCKS"] + found["MORE"] == lanes // wanted
    return wanted if aligned and whole else 1


@triton.jit
def block_lanes(
    INDEX: tl.constexpr, ROW: tl.constexpr, PROGRAMS: tl.constexpr, BLOCK: tl.constexpr, BLOCKS: tl.constexpr,
    MORE: tl.constexpr,
):  # fmt: skip
    """Return the lanes of the row that block INDEX of each program holds, int32, one program's after the other's.

    In one dimension a cluster can cut them in one way only: each of its programs holds its own.
    """
    size: tl.constexpr = BLOCK if INDEX < BLOCKS else MORE
    lane = tl.arange(0, PROGRAMS * size)
    return lane // size * (ROW // PROGRAMS) + (INDEX * BLOCK + lane % size)


@triton.jit
def load_lanes(
    start, lane, INDEX: tl.constexpr, ROW: tl.constexpr, BLOCK: tl.constexpr, BLOCKS: tl.constexpr, MORE: tl.constexpr
):
    """Return what lies at the lanes of block INDEX of a row that begins at `start`, and 0 beyond its ROW lanes."""
    end: tl.constexpr = INDEX * BLOCK + (BLOCK if INDEX < BLOCKS else MORE)
    if end <= ROW:
        return tl.load(start + lane)
    return tl.load(start + lane, mask=lane < ROW, other=0.0)


@triton.jit
def store_lanes(
    start, lane, value, INDEX: tl.constexpr, ROW: tl.constexpr, BLOCK: tl.constexpr, BLOCKS: tl.constexpr,
    MORE: tl.constexpr,
):  # fmt: skip
    """Store values at the lanes of block INDEX of a row, none beyond its ROW lanes."""
    end: tl.constexpr = INDEX * BLOCK + (BLOCK if INDEX < BLOCKS else MORE)
    if end <= ROW:
        tl.store(start + lane, value)
    else:
        tl.store(start + lane, value, mask=lane < ROW)


@triton.jit
def loads_stay_before(PDL: tl.constexpr):
    """Keep the loads in front of it from being moved behind it, down to their first use, by NVIDIA's assembler.

    Then all of them are under way together. The next kernel may be set up already: to say so again does nothing else.
    """
    if PDL:
        gdc_launch_dependents()
