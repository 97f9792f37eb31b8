"""Device functions of MXFP8: codes and scale bytes of groups of 32, and where scale bytes lie (N12)."""

from __future__ import annotations

import triton
import triton.language as tl

from dspark_ops_triton.blocks.codes import pow2ceil_byte, power_of_two
from dspark_ops_triton.blocks.group_codes import code_within_448, store_group_bytes

#: Rows and groups of a tile of scale bytes in the layout sf_128x4.
TILE_ROWS, TILE_GROUPS = 128, 4


@triton.jit
def mxfp8_codes(groups):
    """Return the e4m3 codes, uint8, and the scale bytes, int32, of float32 groups [n, 32].

    The bytes are [n, 1]. A group whose largest magnitude is 448 * 2**-127 or less has byte 0 and
    codes of zeros, with their signs.
    """
    largest = tl.max(tl.abs(groups), axis=1, keep_dims=True)
    bits = (largest * 0.00223214295692741870880126953125).to(tl.int32, bitcast=True)  # 1/448 as float32
    # Compared as integers: 2**-127 is no normal float32, and would make the comparison one of float64.
    none = bits <= 0x00400000
    byte = tl.where(none, 0, tl.minimum((bits + 0x7FFFFF) >> 23, 254))
    inverse = tl.where(none, 0.0, power_of_two(254 - byte))
    return code_within_448(groups * inverse), byte


@triton.jit
def mxfp8_groups(groups):
    """Return what `mxfp8_codes` does of float32 groups [G, 32], the scale bytes as [G]."""
    product = tl.max(tl.abs(groups), axis=1) * 0.00223214295692741870880126953125  # 1/448 as float32
    bits = product.to(tl.int32, bitcast=True)
    none = bits <= 0x00400000
    byte = tl.where(none, 0, tl.minimum(pow2ceil_byte(product), 254))
    inverse = tl.where(none, 0.0, power_of_two(254 - byte))
    return code_within_448(groups * inverse[:, None]), byte


@triton.jit
def store_row_bytes(
    scales, byte, INDEX: tl.constexpr, ROW: tl.constexpr, PROGRAMS: tl.constexpr, BLOCK: tl.constexpr,
    BLOCKS: tl.constexpr, MORE: tl.constexpr, PTX: tl.constexpr,
):  # fmt: skip
    """Store the scale bytes [PROGRAMS * groups, 1] of block INDEX of a row, in the layout sf_128x4.

    `scales` points to the first byte of the row. Blocks are those of `dspark_ops_triton.blocks.row_blocks`.
    """
    groups: tl.constexpr = (BLOCK if INDEX < BLOCKS else MORE) // 32
    index = tl.arange(0, PROGRAMS * groups)[:, None]
    group = index % groups
    # 128 lanes are a tile of 512 bytes.
    start = index // groups * (ROW // PROGRAMS * 4) + INDEX * BLOCK * 4
    place = scales + (start + group // 4 * 512 + group % 4)
    if INDEX * BLOCK + groups * 32 <= (ROW + 127) // 128 * 128:
        store_group_bytes(place, byte, None, PTX)
    else:
        store_group_bytes(place, byte, INDEX * BLOCK // 32 + group < (ROW // 32 + 3) // 4 * 4, PTX)


@triton.jit
def clear_padding(scales, program, programs, rows, GROUPS: tl.constexpr, LANES: tl.constexpr):
    """Store 0 to this program's share of the scale bytes that pad `rows` to 128, in the layout sf_128x4.

    The programs, or clusters, that call it number 0 to `programs` - 1. They store LANES words at a time.
    """
    words: tl.constexpr = (GROUPS + 3) // 4 * 128
    first = (rows - 1) // 128 * 128
    last_rows = scales.to(tl.pointer_type(tl.int32)) + (first // 128).to(tl.int64) * words
    for start in range(program * LANES, words, programs * LANES):
        word = start + tl.arange(0, LANES)
        row = first + word % 128 // 4 + word % 4 * 32
        tl.store(last_rows + word, tl.zeros((LANES,), tl.int32), mask=(word < words) & (row >= rows))


@triton.jit
def sf_128x4_place(row, group, GROUPS: tl.constexpr):
    """Return the byte, int64, at which the scale of (row, group) lies in the layout sf_128x4, with GROUPS to a row."""
    padded: tl.constexpr = (GROUPS + 3) // 4 * 4
    tile = (row // 128).to(tl.int64) * (128 * padded) + group // 4 * 512
    return tile + row % 32 * 16 + row % 128 // 32 * 4 + group % 4


def scale_rows(rows: int) -> int:
    """Return the rows of scale bytes that are stored in the layout sf_128x4."""
    return triton.cdiv(rows, TILE_ROWS) * TILE_ROWS
