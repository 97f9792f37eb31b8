"""The kernels that put values on the fp8 and fp4 grids, as values and as codes."""

from __future__ import annotations

from dataclasses import replace

from dspark_ops.api import Kernel, RankClass, Traits, any_gpu, axis, contiguous, dtype, option, unit_last_stride
from dspark_ops_triton.kernels_base import INTERPRETED, TRITON

_ROW_BY_ROW = Traits(graph_safe=True, batch_invariant=True, pdl=True)

_FP8_GRID_QUANTIZE = Kernel(
    "fp8_grid_quantize",
    variant="group_blocks",
    target="dspark_ops_triton.fp8_grid:fp8_grid_quantize",
    prepare="dspark_ops_triton.fp8_grid:prepare_fp8_grid_quantize",
    arch=any_gpu(),
    region=[
        dtype("x", "bfloat16"),
        contiguous("x"),
        axis("K").multiple_of(32),
        axis("K").between(32, 2**20),
        axis("M").at_most(2**20),
    ],
    rank=RankClass.PORTABLE,
    traits=_ROW_BY_ROW,
    evidence=INTERPRETED,
    packages=(TRITON,),
    note="1 launch, a program per 32 groups; 3 bytes per value; 64-bit offsets",
)

_FP8_GRID_ROUND = replace(
    _FP8_GRID_QUANTIZE,
    op="fp8_grid_round",
    target="dspark_ops_triton.fp8_grid:fp8_grid_round",
    prepare="dspark_ops_triton.fp8_grid:prepare_fp8_grid_round",
    note="1 launch, a program per 32 groups; 4 bytes per value; no 8-bit conversion; 64-bit offsets",
)

_FP4_ROWS = Kernel(
    "fp4_quantize_rows",
    variant="row_blocks",
    target="dspark_ops_triton.fp4_rows:fp4_quantize_rows",
    prepare="dspark_ops_triton.fp4_rows:prepare_fp4_quantize_rows",
    arch=any_gpu(),
    region=[
        dtype("x", "bfloat16", "float16", "float32"),
        contiguous("x"),
        axis("D").one_of(32, 64, 96, 128),
        axis("R").at_most(2**31 - 1),
    ],
    rank=RankClass.PORTABLE,
    traits=_ROW_BY_ROW,
    evidence=INTERPRETED,
    packages=(TRITON,),
    note="1 launch of blocks of 8 rows, of 32 from 4096 rows on; 2.5*D + 4 bytes per row of bfloat16; 64-bit offsets",
)

_FAKE_QUANT = Kernel(
    "rope_tail_fp4_fake_quant",
    variant="head_groups",
    target="dspark_ops_triton.fake_quant:rope_tail_fp4_fake_quant",
    prepare="dspark_ops_triton.fake_quant:prepare_rope_tail_fp4_fake_quant",
    arch=any_gpu(),
    region=[
        dtype("x", "bfloat16"),
        dtype("freqs", "float32"),
        unit_last_stride("x"),
        contiguous("freqs"),
        option("scale").one_of("ue8m0_32", "e4m3_16"),
        axis("A").between(1, 2**16),
        axis("D").one_of(128, 256, 512),
        axis("P").between(2, 128),
        axis("P").multiple_of(2),
        axis("T").at_most(2**31 - 1),
    ],
    rank=RankClass.PORTABLE,
    traits=_ROW_BY_ROW,
    evidence=INTERPRETED,
    packages=(TRITON,),
    note="1 launch; 4*A*D + 4*P bytes per token; bit for bit; 64-bit offsets",
)

KERNELS = (_FP8_GRID_QUANTIZE, _FP8_GRID_ROUND, _FP4_ROWS, _FAKE_QUANT)
