"""Device functions for the words that hold an expert's id and weight."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def expert_word(id, weight):
    """Return int32 words: ids in the high 16 bits, weights as bfloat16 in the low ones, a NaN as 0x7FC0 (N2)."""
    bits = weight.to(tl.bfloat16).to(tl.int16, bitcast=True).to(tl.int32) & 0xFFFF
    return (id << 16) | tl.where(weight != weight, 0x7FC0, bits)
