"""The hyper-connection kernels built for every architecture that is claimed."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from dspark_ops.conformance.compiled import CompiledKernel, compile_kernel
from dspark_ops_triton import mhc, mhc_mix, mhc_post, mhc_post_combine
from dspark_ops_triton.blocks import combine_norm
from dspark_ops_triton.blocks.copy_tiles import Tiles, shared_options
from dspark_ops_triton.kernels_base import INTERPRETED

ARCHES = [name for name, _ in INTERPRETED]
WIDE_LOAD = {"sm": r"\bLDG\.E\.(ENL2\.256|128)", "gf": r"\b(global|buffer)_load_dwordx4"}
WIDE_STORE = {"sm": r"\bSTG\.E\.128", "gf": r"\b(global|buffer)_store_dwordx4"}


def _fused(kernel: CompiledKernel) -> int:
    return kernel.assembly.count("fma.rn.f32 ") + 2 * kernel.assembly.count("fma.rn.f32x2")


@pytest.mark.parametrize("arch", ARCHES)
def test_the_combine_loads_and_stores_16_bytes_at_a_time(arch: str) -> None:
    signature = {"x": "*bf16", "pre": "*fp32", "out": "*bf16", "x_stride": "i32", "pre_stride": "i32"}
    amd = arch.startswith("gfx")
    tiles = replace(mhc.PLAIN_TILES, pdl=not amd)
    constants, options = mhc.column_constants(tiles, 4, 5120, 8, not amd), mhc.launch_options(tiles, amd)
    kernel = compile_kernel(mhc.combine_kernel, arch, signature, constants, options, ("x", "out"))
    assert (kernel.spilled, kernel.shared) == (0, 0)
    assert kernel.registers <= 64
    assert kernel.count(WIDE_LOAD[arch[:2]]) == 4
    assert kernel.count(WIDE_STORE[arch[:2]]) == 1
    if arch.startswith("sm_"):
        assert _fused(kernel) == 4 * tiles.block // tiles.threads, "the chain over four copies, and no other"


@pytest.mark.parametrize("arch", ARCHES)
def test_the_update_reads_each_copy_once_and_fuses_what_the_contract_fuses(arch: str) -> None:
    signature = {"x": "*bf16", "residual": "*bf16", "post": "*fp32", "comb": "*fp32", "out": "*bf16"}
    amd = arch.startswith("gfx")
    tiles = replace(mhc_post.TILES, pdl=not amd)
    constants, options = mhc_post.launch_constants(tiles, 4, 5120), mhc_post.launch_options(tiles, amd)
    kernel = compile_kernel(mhc_post.post_kernel, arch, signature, constants, options, ("x", "residual", "out"))
    assert (kernel.spilled, kernel.shared) == (0, 0)
    assert kernel.registers <= 96
    assert kernel.count(WIDE_LOAD[arch[:2]]) == 5
    assert kernel.count(WIDE_STORE[arch[:2]]) == 4
    if arch.startswith("sm_"):
        assert _fused(kernel) == 4 * 4 * mhc_post.TILES.block // mhc_post.TILES.threads


@pytest.mark.parametrize("group", [4, 8, 16])
@pytest.mark.parametrize("arch", ARCHES)
def test_the_mix_projects_on_matrix_units_and_normalises_in_registers(arch: str, group: int) -> None:
    signature = {
        "x": "*bf16", "fn": "*fp32", "scale": "*fp32", "base": "*fp32", "partial": "*fp32", "state": "*i64",
        "pre": "*fp32", "post": "*fp32", "comb": "*fp32", "tokens": "i32", "rms_eps": "fp32", "hc_eps": "fp32",
        "iterations": "i32",
    }  # fmt: skip
    nvidia = arch.startswith("sm_")
    tiles = replace(mhc_mix.TILES if nvidia else mhc_mix.AMD_TILES, pdl=nvidia)
    constants, options = mhc_mix.launch_constants(tiles, 4 * 5120, group, nvidia), mhc_mix.launch_options(tiles)
    aligned = ("x", "fn", "partial", "state", "pre", "post", "comb")
    kernel = compile_kernel(mhc_mix.mix_kernel, arch, signature, constants, options, aligned)
    assert kernel.spilled == 0
    # 168 let three programs onto a multiprocessor: 64 tokens are 320 programs.
    assert kernel.registers <= ((168 if group == 16 else 192) if nvidia else 512)
    assert kernel.shared <= 32768
    assert kernel.count(r"\bHMMA|\bv_mfma") >= 3 * tiles.span // 16
    assert kernel.count(WIDE_LOAD[arch[:2]]) >= (24 if nvidia else 8)
    if nvidia:
        assert kernel.count(r"\bATOMG\.E\.ADD\.64") == 1
        assert kernel.count(r"\bMEMBAR") >= 1
    else:
        assert kernel.count(r"\bglobal_atomic_add_x2") == 1
        assert kernel.count(r"\bbuffer_wbl2") >= 1


@pytest.mark.parametrize("hidden", [5120, 8192])
@pytest.mark.parametrize("arch", ARCHES)
def test_the_norm_with_its_mxfp8_keeps_a_token_in_registers(arch: str, hidden: int) -> None:
    signature = {
        "x": "*bf16", "pre": "*fp32", "weight": "*bf16", "y": "*bf16", "q": "*u8", "scales": "*u8", "tokens": "i32",
        "x_stride": "i32", "pre_stride": "i32", "eps": "fp32",
    }  # fmt: skip
    amd = arch.startswith("gfx")
    tiles = replace(mhc.TILES, pdl=not amd)
    constants, options = mhc.launch_constants(tiles, 4, hidden, 8, not amd, True), mhc.launch_options(tiles, amd)
    aligned = ("x", "weight", "y", "q", "scales")
    kernel = compile_kernel(combine_norm.combine_norm_kernel, arch, signature, constants, options, aligned)
    assert kernel.spilled == 0
    assert kernel.registers <= 128
    assert kernel.shared <= 32768
    assert kernel.count(WIDE_LOAD[arch[:2]]) >= 4 * constants["BLOCK"] // 8 // tiles.threads


@pytest.mark.parametrize("arch", ARCHES)
def test_the_update_with_the_sum_reads_each_copy_once(arch: str) -> None:
    signature = {
        "x": "*bf16", "residual": "*bf16", "post": "*fp32", "comb": "*fp32", "pre": "*fp32", "new_residual": "*bf16",
        "combined": "*bf16",
    }  # fmt: skip
    amd = arch.startswith("gfx")
    tiles = replace(mhc_post_combine.TILES, pdl=not amd)
    constants, options = mhc_post_combine.column_constants(tiles, 4, 5120, not amd), mhc.launch_options(tiles, amd)
    aligned = ("x", "residual", "new_residual", "combined")
    kernel = compile_kernel(mhc_post_combine.post_combine_kernel, arch, signature, constants, options, aligned)
    assert (kernel.spilled, kernel.shared) == (0, 0)
    assert kernel.registers <= 96
    assert kernel.count(WIDE_LOAD[arch[:2]]) == 5
    if arch.startswith("sm_"):
        assert _fused(kernel) == 4 * 4 * 8, "those of the update: the sum has none"


@pytest.mark.parametrize("hidden", [5120, 8192])
@pytest.mark.parametrize("arch", ARCHES)
def test_the_update_with_the_norm_keeps_a_token_in_registers(arch: str, hidden: int) -> None:
    signature = {
        "x": "*bf16", "residual": "*bf16", "post": "*fp32", "comb": "*fp32", "pre": "*fp32", "weight": "*bf16",
        "new_residual": "*bf16", "combined": "*bf16", "normed": "*bf16", "eps": "fp32",
    }  # fmt: skip
    amd = arch.startswith("gfx")
    tiles = replace(mhc_post_combine.NORM_TILES, pdl=not amd)
    constants = {**mhc_post_combine.launch_constants(tiles, 4, hidden, not amd, True), "grid": None}
    options = mhc.launch_options(tiles, amd)
    aligned = ("x", "residual", "weight", "new_residual", "combined", "normed")
    kernel = compile_kernel(mhc_post_combine.post_combine_norm_kernel, arch, signature, constants, options, aligned)
    assert kernel.spilled == 0
    assert kernel.registers <= (128 if arch.startswith("sm_") else 256)
    assert kernel.shared <= 128
    assert kernel.count(WIDE_LOAD[arch[:2]]) >= 6 * constants["BLOCK"] // 4096, (
        "the shorter block has 4 bytes to a thread"
    )


POINTERS = ("x", "residual", "weight", "y", "q", "scales", "new_residual", "combined", "normed", "grid")


@pytest.mark.parametrize("arch", ["sm_90", "sm_100"])
@pytest.mark.parametrize(("threads", "programs"), [(128, 4), (64, 8), (256, 1)])
@pytest.mark.parametrize("fused", [True, False])
def test_warps_that_share_a_row_leave_their_sums_once_and_nothing_else_in_shared_memory(
    arch: str, threads: int, programs: int, fused: bool
) -> None:
    tiles = Tiles(threads, pdl=True, programs=programs)
    rows = dict.fromkeys(("tokens", "x_stride", "pre_stride"), "i32")
    signature = {name: "*bf16" for name in POINTERS} | {"q": "*u8", "scales": "*u8", "eps": "fp32", **rows}
    signature |= dict.fromkeys(("pre", "post", "comb"), "*fp32")
    for kernel, constants, extra in (
        (combine_norm.combine_norm_kernel, mhc.launch_constants(tiles, 4, 5120, 8, True, True), ("q", "scales")),
        (
            mhc_post_combine.post_combine_norm_kernel,
            mhc_post_combine.launch_constants(tiles, 4, 5120, True, True), ("grid",),
        ),
    ):  # fmt: skip
        assert constants["PROGRAMS"] == programs
        given = {**constants, **({} if fused else dict.fromkeys(extra))}
        named = [name for name in kernel.arg_names if name not in given]
        types = {name: signature[name] for name in named}
        aligned = tuple(name for name in named if name in POINTERS)
        built = compile_kernel(kernel, arch, types, given, shared_options(tiles, False, programs), aligned)
        assert (built.spilled, built.shared) == (0, 0), "Triton hands nothing from one thread to another"
        assert built.assembly.count("st.async.") == (programs > 1)
        assert built.assembly.count("mbarrier.try_wait.") == (programs > 1)
        assert built.assembly.count("st.shared") == (programs == 1)
        assert built.assembly.count("bar.sync") == (programs == 1)
        assert built.count(r"\bF2F\.") == 0, "values are rounded two at a time, and nothing is compared as float64"
        first = [line for line in built.machine_code.splitlines() if re.search(r"\b(LDG|FFMA)\b", line)]
        loads = [index for index, line in enumerate(first) if "LDG" in line]
        assert loads == list(range(len(loads))), "all loads are under way before the first use of one"
