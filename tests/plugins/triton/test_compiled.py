"""The kernels built for every architecture that is claimed: registers, spills, memory and the shape of the code."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dspark_ops.conformance.compiled import CompiledKernel, compile_kernel
from dspark_ops.errors import EvidenceError
from dspark_ops_triton import accept, mhc
from dspark_ops_triton.argmax import AMD_TILES, TILES
from dspark_ops_triton.blocks.cutting import cut_options
from dspark_ops_triton.blocks.row_argmax import Tiles, launch_constants, launch_options, row_argmax_kernel
from dspark_ops_triton.kernels_base import INTERPRETED

ARCHES = [name for name, _ in INTERPRETED]
ELEMENTS = {"fp32": 4, "bf16": 8, "fp16": 8}
VOCAB = 129280


def _argmax(arch: str, dtype: str, unit: int) -> CompiledKernel:
    aligned = ("x", "out", "state") if unit > 1 else ("out", "state")
    signature = {"x": f"*{dtype}", "out": "*i64", "state": "*i64", "row_stride": "i32"}
    tiles = _tiles(arch)
    constants = launch_constants(tiles, VOCAB, unit)
    return compile_kernel(row_argmax_kernel, arch, signature, constants, launch_options(tiles), aligned)


def _tiles(arch: str) -> Tiles:
    return TILES if arch.startswith("sm_") else AMD_TILES


def _wide_and_narrow_loads(kernel: CompiledKernel) -> tuple[int, int]:
    if kernel.arch.startswith("sm_"):
        return kernel.count(r"\bLDG\.E\.(ENL2\.256|128)"), kernel.count(r"\bLDG\.E(?!\.(ENL2\.256|128))")
    return kernel.count(r"\b(global|buffer)_load_dwordx4"), kernel.count(r"\b(global|buffer)_load_(?!dwordx4)")


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("arch", ARCHES)
def test_argmax_reads_16_bytes_at_a_time_and_keeps_everything_in_registers(arch: str, dtype: str) -> None:
    kernel = _argmax(arch, dtype, ELEMENTS[dtype])
    assert kernel.spilled == 0
    assert kernel.registers <= 128, "two programs of 256 threads must fit beside each other"
    assert kernel.shared <= 128
    wide, narrow = _wide_and_narrow_loads(kernel)
    lanes = 32 if arch.startswith("sm_") else 64
    per_thread = _tiles(arch).block // (_tiles(arch).warps * lanes)
    # At least one tile's loads: the first one, which a verify step's rows need and no more.
    assert wide >= per_thread // ELEMENTS[dtype]
    assert narrow == 0


@pytest.mark.parametrize("arch", ARCHES)
def test_programs_of_a_row_meet_by_one_maximum_one_count_and_one_exchange(arch: str) -> None:
    kernel = _argmax(arch, "fp32", 4)
    if arch.startswith("sm_"):
        counts = [kernel.count(rf"\b(REDG|ATOMG)\.E\.{what}") for what in (r"MAX\.S?64", r"ADD\.64", r"EXCH\.64")]
        assert kernel.count(r"\bMEMBAR") >= 1
    else:
        counts = [kernel.count(rf"\bglobal_atomic_{what}") for what in ("smax_x2", "add_x2", "swap_x2")]
        assert kernel.count(r"\bbuffer_wbl2") >= 1
    assert counts == [1, 1, 1]


@pytest.mark.parametrize("arch", ["sm_103", "gfx950"])
def test_argmax_of_rows_at_any_address_builds_without_spills(arch: str) -> None:
    kernel = _argmax(arch, "fp16", 1)
    assert kernel.spilled == 0
    assert _wide_and_narrow_loads(kernel)[0] == 0


@pytest.mark.parametrize("arch", ARCHES)
@pytest.mark.parametrize("pre", ["fp32", "bf16"])
def test_the_combine_holds_a_token_in_registers_and_contracts_nothing_by_itself(arch: str, pre: str) -> None:
    signature = {
        "x": "*bf16", "pre": f"*{pre}", "weight": "*bf16", "y": "*bf16",
        "tokens": "i32", "x_stride": "i32", "pre_stride": "i32", "eps": "fp32",
    }  # fmt: skip
    amd = arch.startswith("gfx")
    tiles = replace(mhc.TILES, pdl=not amd)
    constants = {**mhc.launch_constants(tiles, 4, 5120, 8, not amd, True), "q": None, "scales": None}
    kernel = compile_kernel(
        mhc.combine_norm_kernel,
        arch,
        signature,
        constants,
        mhc.launch_options(tiles, amd),
        ("x", "weight", "y"),
    )
    assert kernel.spilled == 0
    assert kernel.registers <= 128
    assert kernel.shared <= 128
    if arch.startswith("sm_"):
        long = constants["BLOCK"] * constants["BLOCKS"] // tiles.threads
        packed = kernel.assembly.count("fma.rn.f32x2")
        fused = kernel.assembly.count("fma.rn.f32 ") + 2 * packed
        short = constants["MORE"] // tiles.threads
        assert fused == 5 * long + 4 * short, "the chain over four copies, and squares: no other fused multiply-add"
        assert kernel.count(r"\bLDG\.E\.(ENL2\.256|128)") >= 4 * (4096 * 2 // 16 // tiles.threads)
        assert kernel.count(r"\bSTG\.E\.128") >= 1
    else:
        assert kernel.count(r"\b(global|buffer)_load_dwordx4") >= 4
        assert kernel.count(r"\b(global|buffer)_store_dwordx4") >= 1


@pytest.mark.parametrize("arch", ARCHES)
@pytest.mark.parametrize("prefix", ["i32", "i64"])
def test_finalize_is_small(arch: str, prefix: str) -> None:
    signature = {
        "correct_len": "*i32", "bonus": "*i64", "drafts": "*i64", "prefix_lens": f"*{prefix}", "commit_lens": "*i32",
        "new_seq_lens": f"*{prefix}", "out_tokens": "*i64", "requests": "i32", "draft_stride": "i32",
    }  # fmt: skip
    kernel = compile_kernel(
        accept.finalize_kernel, arch, signature, accept.launch_constants(accept.CUT, 5), cut_options(accept.CUT)
    )
    assert kernel.spilled == 0
    assert kernel.registers <= 64
    assert kernel.shared == 0


def test_the_widest_combine_of_the_region_does_not_spill() -> None:
    signature = {
        "x": "*bf16", "pre": "*fp32", "weight": "*bf16", "y": "*bf16",
        "tokens": "i32", "x_stride": "i32", "pre_stride": "i32", "eps": "fp32",
    }  # fmt: skip
    for arch in ARCHES:
        kernel = compile_kernel(
            mhc.combine_norm_kernel,
            arch,
            signature,
            {**mhc.launch_constants(mhc.TILES, 4, 8191, 1, arch.startswith("sm_"), True), "q": None, "scales": None},
            mhc.launch_options(mhc.TILES, arch.startswith("gfx")),
        )
        assert (arch, kernel.spilled) == (arch, 0)


def test_a_plain_function_is_no_kernel() -> None:
    with pytest.raises(EvidenceError, match=r"cannot compile .*_argmax.*TRITON_INTERPRET"):
        compile_kernel(_argmax, "sm_90", {}, {}, {})
