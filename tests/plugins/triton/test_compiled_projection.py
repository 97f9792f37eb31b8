"""The output projection, by slices of K or by slabs of heads, built for every architecture that is claimed."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from dspark_ops.conformance.compiled import CompiledKernel, compile_kernel
from dspark_ops_triton.blocks import head_slabs, head_slices
from dspark_ops_triton.kernels_base import INTERPRETED
from dspark_ops_triton.rope_wo_a import SMALL_TILES, TILES, table_of

ARCHES = [name for name, _ in INTERPRETED]
MATRIX = {"sm": r"\bHMMA\.16816\.F32\.BF16", "gf": r"\bv_mfma_f32_16x16x\d+_bf16"}
ANY_MATRIX = r"\bHMMA|\bHGMMA|\bUTC\w*MMA|\bv_mfma"
WIDE_LOAD = r"\bLDG\.E\.(ENL2\.256|128)"


def _built(
    arch: str, table: Sequence[Any], tokens: int, rank: int, mx: bool, lanes: int = 4096, head_dim: int = 512
) -> CompiledKernel:
    """Return what a table's line for a number of tokens is compiled to, launched early where devices can."""
    tiles = replace(head_slabs.tiles_of(table, tokens), pdl=arch.startswith("sm_"))
    sliced = isinstance(tiles, head_slices.Slices)
    block, kernel = (
        (head_slices, head_slices.head_slice_kernel) if sliced else (head_slabs, head_slabs.head_slab_kernel)
    )
    aligned = {"o": "*bf16", "weight": "*bf16", "y": "*bf16", "q": "*u8" if mx else "*bf16", "scales": "*u8"}
    aligned |= {} if sliced else {"parts": "*fp32", "state": "*i64"}
    signature = {**aligned, "freqs": "*fp32", "positions": "*i64"}
    signature |= dict.fromkeys(("tokens", "o_row", "o_group"), "i32")
    constants = block.launch_constants(tiles, lanes, head_dim, min(64, head_dim), 8, rank, 2048, mx)
    return compile_kernel(kernel, arch, signature, constants, block.launch_options(tiles), tuple(aligned))


#: Tokens and columns of a group of the weight; V4.1 has 1024 on one of four ranks.
@pytest.mark.parametrize(
    ("arch", "tokens", "rank", "mx"),
    [(arch, tokens, 1024, True) for arch in ARCHES for tokens in (6, 64)]
    + [(arch, *rest) for arch in ("sm_90", "gfx950") for rest in ((24, 1024, False), (6, 16, True))],
)
def test_the_projection_sums_by_one_instruction_at_every_number_of_tokens(
    arch: str, tokens: int, rank: int, mx: bool
) -> None:
    kernel = _built(arch, table_of(arch), tokens, rank, mx)
    assert kernel.spilled == 0
    assert kernel.registers <= 248
    assert kernel.shared <= (65536 if arch.startswith("gfx") else 163840)
    # The same shape for every tile: the order in which products of K are added does not depend on the tokens.
    assert kernel.count(MATRIX[arch[:2]]) == kernel.count(ANY_MATRIX) > 0
    if arch.startswith("sm_") and rank == 1024:
        assert kernel.count(r"\bLDGSTS\.E\..*128") >= 80, "most of both operands does not go through registers"
        wait = kernel.machine_code.index("ACQBULK")
        early = len(re.findall(WIDE_LOAD, kernel.machine_code[:wait]))
        assert early >= (4 if tokens <= 32 else 0), "the weight of the last lanes of heads, before the wait"


@pytest.mark.parametrize("tokens", [6, 64])
def test_slabs_of_the_weight_are_read_before_the_wait_where_shared_memory_is_small(tokens: int) -> None:
    kernel = _built("sm_90", SMALL_TILES, tokens, 1024, True)
    assert kernel.spilled == 0
    assert kernel.registers <= 192
    assert kernel.shared <= 49152
    wait = kernel.machine_code.index("ACQBULK")
    assert len(re.findall(WIDE_LOAD, kernel.machine_code[:wait])) >= 8


@pytest.mark.parametrize(("lanes", "head_dim"), [(1536, 512), (4096, 64), (512, 16)])
def test_slices_of_other_heads_meet_no_local_memory(lanes: int, head_dim: int) -> None:
    assert [_built("sm_90", TILES, tokens, 1024, True, lanes, head_dim).spilled for tokens in (6, 24, 64)] == [0, 0, 0]
