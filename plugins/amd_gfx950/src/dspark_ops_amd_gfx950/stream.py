"""The update of the stream for gfx950, by itself and with the fp8 grid: portable bodies, cut for waves of 64 lanes."""

from __future__ import annotations

from functools import partial

from dspark_ops_triton.blocks import copy_update
from dspark_ops_triton.blocks.copy_tiles import Tiles, prepare_columns
from dspark_ops_triton.blocks.cutting import prepared
from dspark_ops_triton.blocks.post_combine import compile_mhc_post_combine_norm
from dspark_ops_triton.blocks.stream_grid import post_combine_norm_grid

#: One wave for 512 columns, 16 bytes of each copy a lane: 24 tokens of 5120 are 240 programs. From 64 tokens on, two
#: waves for 1024 halve the programs, of which there are more than units then.
TILES = copy_update.Tiles(block=512, threads=64, doubled_from=64)
#: 16 waves share a token, four to each SIMD of a unit, five values of each copy a lane: a step has few tokens, so what
#: counts is how long one takes.
NORM_TILES = Tiles(threads=1024)

#: ``mhc_post`` (N3.5) as the contract has it. Launches: 1; 2*H + 4*N*H bytes per token.
mhc_post = partial(copy_update.mhc_post, TILES)
prepare_mhc_post = partial(prepare_columns, copy_update.mhc_post, TILES, mhc_post, copy_update.compile_mhc_post)

#: ``mhc_post_combine_norm_fp8_grid`` (A8, A0.2) as the contract has it. Launches: 1; 8*H + 4*N*H bytes per token.
mhc_post_combine_norm_fp8_grid = partial(post_combine_norm_grid, NORM_TILES)
prepare_mhc_post_combine_norm_fp8_grid = partial(
    prepared, mhc_post_combine_norm_fp8_grid, compile_mhc_post_combine_norm
)
