"""Values of e4m3 codes by shifts, for devices without the format and for codes that may be NaN."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def e4m3_value_of_any_code(code):
    """Return the float32 values of e4m3 codes, uint8: NaN of codes 0x7F and 0xFF, -0.0 of 0x80.

    The bits of a code, moved to those of a float16, are that float16's value by 2**8: its exponent has one bit more.
    """
    magnitude = code.to(tl.int16) & 0x7F
    half = ((magnitude << 7) | ((code.to(tl.int16) & 0x80) << 8)).to(tl.float16, bitcast=True)
    return tl.where(magnitude == 0x7F, float("nan"), half.to(tl.float32) * 256.0)
