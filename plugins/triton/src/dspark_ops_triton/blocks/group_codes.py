"""Device functions of e4m3 codes and scale bytes of groups of 32 lanes, where threads hold neighbouring lanes."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def code_within_448(value):
    """Return the e4m3 codes, uint8, of float32 values: nearest, ties to even, sign of zero kept.

    Their magnitudes are at most 448, which scales of groups see to: a clamp would be two instructions per value.
    """
    return value.to(tl.float8e4nv).to(tl.uint8, bitcast=True)


@triton.jit
def store_group_bytes(place, byte, mask, PTX: tl.constexpr):
    """Store the byte, int32, of each group at `place`; the mask is a block of the same shape, or None.

    All threads of a group hold its byte. With PTX all of them store it: Triton would hand it, through shared memory, to
    the threads that it would have store a block of that shape.
    """
    if PTX:
        address = place.to(tl.int64, bitcast=True)
        if mask is None:
            tl.inline_asm_elementwise(
                "st.global.b8 [$1], $2; mov.b32 $0, 0;", "=r,l,r", [address, byte], dtype=tl.int32, is_pure=False,
                pack=1,
            )  # fmt: skip
        else:
            tl.inline_asm_elementwise(
                "{ .reg .pred p; setp.ne.b32 p, $3, 0; @p st.global.b8 [$1], $2; mov.b32 $0, 0; }", "=r,l,r,r",
                [address, byte, mask.to(tl.int32)], dtype=tl.int32, is_pure=False, pack=1,
            )  # fmt: skip
    else:
        tl.store(place, byte.to(tl.uint8), mask=mask)
