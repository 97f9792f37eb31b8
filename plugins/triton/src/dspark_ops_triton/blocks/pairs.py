"""Device functions for raw projections of the ratio-2 compressor: rows of 512 float32 values and their 512 scores."""

from __future__ import annotations

import triton
import triton.language as tl

from dspark_ops_triton.blocks.kv_v4 import LANES, load_groups, store_groups


@triton.jit
def pool_pair(old, new):
    """Return the values of two rows of 512 values and 512 scores pooled per lane: a softmax over the two scores (N8.3).

    `old` and `new` point to the rows; the result is float32 groups [8, 64].
    """
    difference = load_groups(old + LANES) - load_groups(new + LANES)
    lesser = tl.exp(-tl.abs(difference))
    old_weight = tl.where(difference > 0, 1.0, lesser)
    new_weight = tl.where(difference > 0, lesser, 1.0)
    return tl.div_rn(load_groups(old) * old_weight + load_groups(new) * new_weight, 1.0 + lesser)


@triton.jit
def copy_row(source, target):
    """Copy a row of 512 values and 512 scores."""
    store_groups(target, load_groups(source))
    store_groups(target + LANES, load_groups(source + LANES))
