"""Device functions of sparse latent attention over ``kv_v4`` pages: gathered entries, and the softmax of one part."""

from __future__ import annotations

import triton
import triton.language as tl

from dspark_ops_triton.blocks.codes import e4m3_value, e4m3_value_by_fnuz
from dspark_ops_triton.blocks.kv_v4 import GROUP, PLAIN

NOTHING = tl.constexpr(float("-inf"))


@triton.jit
def load_codes(data, group, valid):
    """Return the 64 codes, uint8, of one group of the entries whose data rows begin at `data` [ENTRIES]."""
    return tl.load(data[:, None] + (group * GROUP + tl.arange(0, GROUP)[None, :]), mask=valid[:, None], other=0)


@triton.jit
def load_rotated(data, valid):
    """Return the 64 rotated lanes, bfloat16, of the entries whose data rows begin at `data` [ENTRIES]."""
    lanes = (data + PLAIN).to(tl.pointer_type(tl.bfloat16))[:, None] + tl.arange(0, GROUP)[None, :]
    return tl.load(lanes, mask=valid[:, None], other=0.0)


@triton.jit
def decode(codes, scales, group, valid, FNUZ: tl.constexpr):
    """Return the values of one group's codes as bfloat16, which holds them exactly: they have four significant bits.

    `scales` points to the entries' scale rows. FNUZ: the device converts e4m3fnuz, not e4m3.
    """
    byte = tl.load(scales + group, mask=valid, other=127).to(tl.int32)
    scale = (byte << 23).to(tl.float32, bitcast=True)[:, None]
    return ((e4m3_value_by_fnuz(codes) if FNUZ else e4m3_value(codes)) * scale).to(tl.bfloat16)


@triton.jit
def softmax_part(scores, valid):
    """Return (weights, largest score, total of the weights) per row of `scores` [HEADS, ENTRIES], in units of log 2.

    Weights are relative to the largest score. Without a valid entry it is -inf, and the weights are 0.
    """
    scores = tl.where(valid[None, :], scores, NOTHING)
    largest = tl.max(scores, axis=1)
    weights = tl.exp2(scores - tl.where(largest == NOTHING, 0.0, largest)[:, None])
    return weights, largest, tl.sum(weights, axis=1)
