"""The kernels of the index, the draft's heads, the n-gram table and the stream: rows that are taken apart."""

from __future__ import annotations

from dspark_ops.api import axis, contiguous, dtype, elements, layout, option, unit_last_stride
from dspark_ops_amd_gfx950.kernels_base import gfx950_kernel

_POSITIONS = dtype("positions", "int64", "int32")

_PACK = gfx950_kernel(
    "fp4_quantize_rows", "row_blocks", "rows",
    [
        dtype("x", "bfloat16", "float16", "float32"),
        contiguous("x"),
        axis("D").one_of(32, 64, 96, 128),
        axis("R").at_most(2**31 - 1),
    ],
    "1 launch; the portable body with blocks of 4, 8 or 32 rows from 0, 1024 and 4096 rows on, in 1, 2 or 8 waves; "
    "2.5*D + 4 bytes per row of bfloat16; 64-bit offsets",
)  # fmt: skip

_ROUND = gfx950_kernel(
    "rope_tail_fp4_fake_quant", "four_heads_per_wave", "rows",
    [
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
    "1 launch; the portable body with four heads a wave; 4*A*D + 4*P bytes per token; bit for bit; 64-bit offsets",
)  # fmt: skip

_QUERY = gfx950_kernel(
    "index_q_rope_fp4_pack", "four_heads_per_wave", "index_query",
    [
        dtype("q", "bfloat16"),
        dtype("freqs", "float32"),
        _POSITIONS,
        dtype("partials", "float32"),
        unit_last_stride("q"),
        contiguous("freqs", "positions", "partials"),
        axis("A").one_of(16, 32, 48, 64),
        axis("D").one_of(32, 64, 128),
        axis("P").between(2, 128),
        axis("P").multiple_of(2),
        axis("T").at_most(2**31 - 1),
    ],
    "1 launch instead of 2 and the reordering of scale bytes; own body, one wave for four heads 16 apart, whose scale "
    "bytes lie side by side, head weights in the same launch; 2.5*A*D + 2*D + 4*P bytes per token; 64-bit offsets",
)  # fmt: skip

_TURN = gfx950_kernel(
    "rope_tail_copy", "head_per_wave", "rows",
    [
        dtype("q", "bfloat16"),
        dtype("freqs", "float32"),
        _POSITIONS,
        contiguous("freqs", "positions"),
        axis("A").between(1, 2**16),
        axis("D").between(64, 1024),
        axis("D").multiple_of(2),
        axis("P").between(2, 64),
        axis("P").multiple_of(2),
        axis("T").at_most(2**31 - 1),
    ],
    "1 launch; the portable body with one head a wave; 4*A*D + 4*P bytes per token; any strides; 64-bit offsets",
)  # fmt: skip

_GATHER = gfx950_kernel(
    "engram_gather", "rows_per_wave", "rows",
    [
        dtype("ids", "int64", "int32"),
        dtype("table", "float8_e4m3fn"),
        contiguous("table", "scales"),
        axis("D").between(32, 1024),
        axis("D").power_of_two(),
        axis("I").between(1, 4096),
    ],
    "1 launch; the portable body with 1024 bytes of the table a wave; D + D / 32 bytes per id held, 2*D out; any "
    "strides of the ids; 64-bit offsets",
)  # fmt: skip

_STREAM = gfx950_kernel(
    "mhc_post", "column_waves", "stream",
    [
        dtype("x", "bfloat16"),
        dtype("residual", "bfloat16"),
        dtype("post", "float32"),
        dtype("comb", "float32"),
        contiguous("x", "residual", "post", "comb"),
        axis("N").one_of(4),
        axis("H").between(1, 2**24),
        axis("T").at_most(2**31 - 1),
    ],
    "1 launch; the portable body with one wave per 512 columns, two per 1024 from 64 tokens on; 2*H + 4*N*H bytes per "
    "token; 64-bit offsets",
)  # fmt: skip

_STREAM_GRID = gfx950_kernel(
    "mhc_post_combine_norm_fp8_grid", "row_program", "stream",
    [
        *(dtype(name, "bfloat16") for name in ("x", "residual", "weight")),
        *(dtype(name, "float32") for name in ("post", "comb", "pre")),
        contiguous("x", "residual", "post", "comb", "pre", "weight"),
        axis("N").one_of(4),
        # A token is held in registers: 8192 lanes is what is built, and tested to need no spills.
        axis("H").between(32, 8192),
        axis("H").multiple_of(32),
        axis("T").at_most(2**31 - 1),
    ],
    "1 launch instead of 2; the portable body with 16 waves per token; 8*H + 4*N*H bytes per token; 64-bit offsets",
)  # fmt: skip

_LOGITS = gfx950_kernel(
    "paged_mqa_logits_fp4", "page_codes", "paged_logits",
    [
        contiguous("q", "q_scale", "kv", "kv_scale", "block_tables", "weights", "context_lens"),
        dtype("weights", "bfloat16"),
        layout("kv", "index_k_split"),
        layout("kv_scale", "index_k_split"),
        axis("H").between(16, 128),
        axis("H").multiple_of(16),
        # A query row is a program of the grid's second dimension, which has 16 bits.
        elements("B*N", 2**16),
    ],
    "1 launch, one program per query row and tile of keys; codes go to the matrix unit as stored; no work list; 64-bit "
    "offsets",
)  # fmt: skip

_PROJECTION = gfx950_kernel(
    "main_projection", "split_codes", "projection",
    [
        dtype("x", "bfloat16"),
        dtype("weight", "float8_e4m3fn"),
        contiguous("x", "weight", "scales"),
        axis("N").between(32, 2**20),
        axis("N").multiple_of(32),
        axis("K").between(128, 2**20),
        axis("K").multiple_of(128),
        # 64 rows are a program of the grid's last dimension, which has 16 bits.
        axis("M").at_most(2**21),
    ],
    "3 launches: rows on the grid, parts of K, their sum in one order; the weight once per 64 rows, its codes and rows "
    "as stored; 4.5*K and 64*N bytes per row through scratch memory",
)  # fmt: skip

KERNELS = (_PACK, _ROUND, _QUERY, _TURN, _GATHER, _STREAM, _STREAM_GRID, _LOGITS, _PROJECTION)
