"""A part of the product of rows on the fp8 grid and an MXFP8 weight for Hopper: codes decoded by words, large tiles.

Its matrix instruction takes 64 columns and 16 or more rows, and adds up in one order whatever the number of rows.
"""

from __future__ import annotations

import triton
import triton.language as tl

from dspark_ops_triton.blocks.codes import e4m3_value, ue8m0_value
from dspark_ops_triton.blocks.dependent import begin


@triton.jit
def values_by_words(code, byte, COLUMNS: tl.constexpr, DEPTH: tl.constexpr):
    """Return bfloat16 [COLUMNS, DEPTH] for e4m3 codes and their scale bytes, one per 32x32, by four codes at a time.

    A code's sign and its other bits, these at the lower end of a bfloat16's exponent, are its value times 2**-120.
    """
    byte = byte.to(tl.int32)
    scale = tl.where(byte == 255, 0x7FC0, tl.maximum(byte << 7, 0x40)) * 0x10001
    code, scale = tl.broadcast(tl.reshape(code, (COLUMNS // 32, 32, DEPTH // 32, 32)), scale[:, None, :, None])
    value = tl.inline_asm_elementwise(
        """{
        .reg .b32 a, b, c, d, unbiased;
        mov.b32 unbiased, 0x7b807b80;
        prmt.b32 a, $2, 0, 0x1404;
        prmt.b32 b, $2, 0, 0x3424;
        shr.u32 c, a, 4;
        shr.u32 d, b, 4;
        and.b32 a, a, 0x80008000;
        and.b32 b, b, 0x80008000;
        and.b32 c, c, 0x07f007f0;
        and.b32 d, d, 0x07f007f0;
        or.b32 a, a, c;
        or.b32 b, b, d;
        mul.rn.bf16x2 a, a, unbiased;
        mul.rn.bf16x2 b, b, unbiased;
        mul.rn.bf16x2 $0, a, $3;
        mul.rn.bf16x2 $1, b, $3;
        }""",
        "=r,=r,r,r,r,r,r", [code, scale], dtype=tl.bfloat16, is_pure=True, pack=4,
    )  # fmt: skip
    return tl.reshape(value, (COLUMNS, DEPTH))


@triton.jit(do_not_specialize=["rows", "columns"])
def word_parts_kernel(
    x, weight, scales, parts, rows, columns,
    LANES: tl.constexpr, SPLITS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr,
    PTX: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Multiply ROWS bfloat16 rows on the grid by COLUMNS rows of the weight, decoded by words, over one part of K.

    Without PTX, where an interpreter runs it, values are decoded one by one.
    """
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    strip = tl.program_id(0) * (COLUMNS // 32) + tl.arange(0, COLUMNS // 32)
    # Rows of the weight beyond the last one are those of column 0: their products are not stored.
    wanted = column < columns
    column = tl.where(wanted, column, 0).to(tl.int64)
    strip = tl.where(strip * 32 < columns, strip, 0).to(tl.int64)
    TILES: tl.constexpr = LANES // DEPTH // SPLITS
    first = tl.program_id(1) * (TILES * DEPTH)
    factor = weight + column[:, None] * LANES + first + tl.arange(0, DEPTH)[None, :]
    byte = scales + strip[:, None] * (LANES // 32) + first // 32 + tl.arange(0, DEPTH // 32)[None, :]
    begin(PDL)
    coming = tl.load(byte)
    row = (tl.program_id(2) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    here = row < rows
    source = x + row[:, None] * LANES + first + tl.arange(0, DEPTH)[None, :]
    total = tl.zeros((COLUMNS, ROWS), tl.float32)
    for tile in range(TILES):
        code, scale = tl.load(factor + tile * DEPTH), coming
        # A tile ahead: single bytes are too small to be copied into shared memory beside the codes.
        coming = tl.load(byte + tl.minimum(tile + 1, TILES - 1) * (DEPTH // 32))
        if PTX:
            value = values_by_words(code, scale, COLUMNS, DEPTH)
        else:
            value = tl.reshape(e4m3_value(code), (COLUMNS // 32, 32, DEPTH // 32, 32))
            value = value * ue8m0_value(scale.to(tl.int32))[:, None, :, None]
            value = tl.reshape(value.to(tl.bfloat16), (COLUMNS, DEPTH))
        given = tl.load(source + tile * DEPTH, mask=here[:, None], other=0.0)
        total = tl.dot(value, tl.trans(given), total)
    place = (tl.program_id(1) * rows.to(tl.int64) + row) * columns
    tl.store(parts + place[None, :] + column[:, None], total, mask=here[None, :] & wanted[:, None])


__all__ = ["values_by_words", "word_parts_kernel"]
