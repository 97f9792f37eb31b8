"""Device functions of MXFP8: codes and scale bytes of groups of 32, and where scale bytes lie (N12)."""

from __future__ import annotations

import triton
import triton.language as tl

from dspark_ops_triton.blocks.codes import e4m3_code, pow2ceil_byte, power_of_two

#: Rows and groups of a tile of scale bytes in the layout sf_128x4.
TILE_ROWS, TILE_GROUPS = 128, 4


@triton.jit
def mxfp8_groups(groups):
    """Return the e4m3 codes, uint8 [G, 32], and the scale bytes, int32 [G], of float32 groups [G, 32].

    A group whose largest magnitude is 448 * 2**-127 or less has byte 0 and codes of zeros, with their signs.
    """
    product = tl.max(tl.abs(groups), axis=1) * 0.00223214295692741870880126953125  # 1/448 as float32
    byte = tl.where(product <= 2.0**-127, 0, tl.minimum(pow2ceil_byte(product), 254))
    inverse = tl.where(byte == 0, 0.0, power_of_two(254 - byte))
    return e4m3_code(groups * inverse[:, None]), byte


@triton.jit
def sf_128x4_place(row, group, GROUPS: tl.constexpr):
    """Return the byte, int64, at which the scale of (row, group) lies in the layout sf_128x4, with GROUPS to a row."""
    padded: tl.constexpr = (GROUPS + 3) // 4 * 4
    tile = (row // 128).to(tl.int64) * (128 * padded) + group // 4 * 512
    return tile + row % 32 * 16 + row % 128 // 32 * 4 + group % 4


def scale_rows(rows: int) -> int:
    """Return the rows of scale bytes that are stored in the layout sf_128x4."""
    return triton.cdiv(rows, TILE_ROWS) * TILE_ROWS
