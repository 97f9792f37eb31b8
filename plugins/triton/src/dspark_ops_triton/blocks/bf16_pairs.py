"""Bfloat16 values to float32 and back, two to a register: half the instructions of one at a time on NVIDIA GPUs.

There one conversion per value leaves the assembler with two instructions to widen an upper half, and with a slow unit
to round a value that is used again. With PTX false, as for AMD and the interpreter, Triton converts. Bits are the same.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def widened(value, PTX: tl.constexpr):
    """Return bfloat16 values as float32; a thread holds two of them side by side, or an even number."""
    if PTX:
        bits = tl.inline_asm_elementwise(
            "shl.b32 $0, $2, 16; and.b32 $1, $2, 0xffff0000;",
            "=r,=r,r",
            [value],
            dtype=tl.int32,
            is_pure=True,
            pack=2,
        )
        return bits.to(tl.float32, bitcast=True)
    return value.to(tl.float32)


@triton.jit
def rounded(value, PTX: tl.constexpr):
    """Return float32 values as bfloat16: nearest, ties to even."""
    if PTX:
        return tl.inline_asm_elementwise(
            "cvt.rn.bf16x2.f32 $0, $2, $1;", "=r,f,f", [value], dtype=tl.bfloat16, is_pure=True, pack=2
        )
    return value.to(tl.bfloat16)
