"""The second launch of the ratio-2 compressor over rows of any number: the ring keeps the last ones of each request."""

from __future__ import annotations

import triton
import triton.language as tl

from dspark_ops_triton.blocks.dependent import begin
from dspark_ops_triton.blocks.kv_v4 import LANES
from dspark_ops_triton.blocks.pairs import copy_row

#: Rows that one step of the search for a request's last row looks at.
SEARCHED = 256


@triton.jit(
    do_not_specialize=["rows", "ring_size"],
    do_not_specialize_on_alignment=["positions", "requests", "out_loc"],
)
def keep_last_kernel(
    kv_score, state, positions, requests, out_loc, rows, ring_size, SEARCHED: tl.constexpr, PDL: tl.constexpr
):
    """Put one row into the ring if it is among the last `ring_size` live ones of its request."""
    begin(PDL)
    row = tl.program_id(0).to(tl.int64)
    if tl.load(out_loc + row) != 0:
        place = tl.load(positions + row).to(tl.int64)
        request = tl.load(requests + row)
        last = place
        for first in range(0, rows, SEARCHED):
            other = first + tl.arange(0, SEARCHED)
            mask = other < rows
            same = (tl.load(requests + other, mask=mask, other=-1) == request) & (
                tl.load(out_loc + other, mask=mask, other=0) != 0
            )
            theirs = tl.load(positions + other, mask=mask, other=0).to(tl.int64)
            last = tl.maximum(last, tl.max(tl.where(same, theirs, -1), axis=0))
        if place > last - ring_size:
            ring = request * ring_size + place % ring_size
            copy_row(kv_score + row * (2 * LANES), state + ring * (2 * LANES))
