"""Operators that take rows apart for gfx950: portable bodies, cut for waves of 64 lanes and 256 compute units."""

from __future__ import annotations

from functools import partial

from dspark_ops_triton.blocks import clamped_silu, fp4_packing, fp4_rounding, table_gather, turned_copy
from dspark_ops_triton.blocks.cutting import Cut, prepared

#: 24 tokens of 32 heads are 768 rows: 192 programs of one wave. From 4096 rows on, as a prefill brings them, the
#: block of 32 rows and 8 waves of the source change.
PACK = ((4096, Cut(items=32, warps=8)), (1024, Cut(items=8, warps=2)), (0, Cut(items=4, warps=1)))
#: One wave for four heads of 128 lanes, 16 bytes a lane: 24 tokens of 32 heads are 192 programs.
ROUND = Cut(items=4, warps=1)
#: One wave for one head of 512 lanes, 16 bytes a lane: 8 rows of 16 heads, the step of one request, are 128 programs.
TURN = Cut(items=1, warps=1)
#: One wave and 16 bytes of the table a lane, four rows of 256: 576 ids are 144 programs.
GATHER = Cut(items=1024, warps=1)
#: One wave and 16 bytes a lane.
ACTIVATE = Cut(items=512, warps=1)

#: ``fp4_quantize_rows`` (A1) as the contract has it. Launches: 1.
fp4_quantize_rows = partial(fp4_packing.fp4_quantize_rows, PACK)
prepare_fp4_quantize_rows = partial(prepared, fp4_quantize_rows, partial(fp4_packing.compile_fp4_quantize_rows, PACK))

#: ``rope_tail_fp4_fake_quant`` (A2) as the contract has it. Launches: 1.
rope_tail_fp4_fake_quant = partial(fp4_rounding.rope_tail_fp4_fake_quant, ROUND)
prepare_rope_tail_fp4_fake_quant = partial(
    prepared, rope_tail_fp4_fake_quant, fp4_rounding.compile_rope_tail_fp4_fake_quant
)

#: ``rope_tail_copy`` (A14) as the contract has it. Launches: 1.
rope_tail_copy = partial(turned_copy.rope_tail_copy, TURN)
prepare_rope_tail_copy = partial(prepared, rope_tail_copy, turned_copy.compile_rope_tail_copy)

#: ``engram_gather`` (A16) as the contract has it: ids of any strides, no copy of them. Launches: 1.
engram_gather = partial(table_gather.engram_gather, GATHER)
prepare_engram_gather = partial(prepared, engram_gather, table_gather.compile_engram_gather)

#: ``silu_mul_clamp`` (A9, plain) as the contract has it. Launches: 1.
silu_mul_clamp = partial(clamped_silu.silu_mul_clamp, ACTIVATE)
prepare_silu_mul_clamp = partial(prepared, silu_mul_clamp, clamped_silu.compile_silu_mul_clamp)
