"""Device functions for rotary embeddings: adjacent pairs of a tile's lanes, turned with the roundings written out.

The products that are rounded before an addition stay apart only where the launch sets enable_fp_fusion=False. They are
negated by a product with -1: Triton 3.6 computes ``-x`` as ``0 - x``, which loses the sign of a zero.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def split_pairs(tile, ROWS: tl.constexpr, LANES: tl.constexpr):
    """Return the even and the odd lanes, [ROWS, LANES / 2] each, of a tile [ROWS, LANES]."""
    return tl.split(tl.reshape(tile, (ROWS, LANES // 2, 2)))


@triton.jit
def join_pairs(even, odd, ROWS: tl.constexpr, LANES: tl.constexpr):
    """Return the tile [ROWS, LANES] whose even and odd lanes these are."""
    return tl.reshape(tl.join(even, odd), (ROWS, LANES))


@triton.jit
def load_turns(turns, wanted, ROWS: tl.constexpr, LANES: tl.constexpr):
    """Return the cosines and the sines, [ROWS, LANES / 2] each, of the pairs of a tile [ROWS, LANES]; 0 if not wanted.

    `turns` points, lane by lane, into interleaved table rows: a pair's cosine and sine lie as its even and odd lanes
    do. So each thread loads what its own lanes need, and none waits for another's.
    """
    return split_pairs(tl.load(turns, mask=wanted, other=0.0), ROWS, LANES)


@triton.jit
def turn(even, odd, cosine, sine):
    """Return float32 pairs rotated forward: fma(even, cos, -(odd * sin)) and fma(even, sin, odd * cos) (N6)."""
    return tl.fma(even, cosine, (odd * sine) * -1.0), tl.fma(even, sine, odd * cosine)


@triton.jit
def turn_back(even, odd, cosine, sine):
    """Return float32 pairs rotated backward: fma(even, cos, odd * sin) and fma(odd, cos, -(even * sin)) (N5)."""
    return tl.fma(even, cosine, odd * sine), tl.fma(odd, cosine, (even * sine) * -1.0)


@triton.jit
def turn_plain(even, odd, cosine, sine):
    """Return float32 pairs rotated forward with every product and sum rounded (A14)."""
    return even * cosine - odd * sine, odd * cosine + even * sine
