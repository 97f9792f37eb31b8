"""Device functions for hyper-connection combines and RMS norms, with their roundings written out."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def combine_copies(x, pre, lanes, mask, COPIES: tl.constexpr, HIDDEN: tl.constexpr):
    """Return the weighted sum of one token's copies as float32 lanes: a chain of fused multiply-adds from 0 (N3.3).

    `x` points to the token's COPIES * HIDDEN values, `pre` to its COPIES weights.
    """
    total = tl.zeros(lanes.shape, tl.float32)
    for copy in tl.static_range(COPIES):
        value = tl.load(x + copy * HIDDEN + lanes, mask=mask, other=0.0).to(tl.float32)
        weight = tl.load(pre + copy).to(tl.float32)
        total = tl.fma(value, weight.broadcast_to(lanes.shape), total)
    return total


@triton.jit
def round_bf16(value):
    """Return float32 values rounded to bfloat16. Only a barrier where the launch sets enable_fp_fusion=False."""
    return value.to(tl.bfloat16).to(tl.float32)


@triton.jit
def inverse_rms(value, COUNT: tl.constexpr, eps):
    """Return 1 / sqrt(mean of squares + eps) over COUNT values; lanes beyond them must hold 0."""
    return 1.0 / tl.sqrt_rn(tl.sum(value * value, axis=0) / COUNT + eps)
