"""The compressors and the store of index keys built for every architecture that is claimed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from dspark_ops.conformance.compiled import compile_kernel
from dspark_ops_triton import compress, index_store
from dspark_ops_triton.blocks.cutting import cut_options
from dspark_ops_triton.blocks.launching import row_options
from dspark_ops_triton.kernels_base import INTERPRETED

ARCHES = [name for name, _ in INTERPRETED]
WIDE_LOAD = {"sm": r"\bLDG\.E\.(ENL2\.256|128)", "gf": r"\b(global|buffer)_load_dwordx4"}
#: Where variants of a kernel are built, of which one is built for all.
SOME = ("sm_103", "gfx942")
PAGES = dict.fromkeys(("slots", "page_shift", "page_units"), "i32")


def _with_variants(first: Any, *others: Any) -> list[tuple[str, Any]]:
    return [(arch, first) for arch in ARCHES] + [(arch, other) for arch in SOME for other in others]


@pytest.mark.parametrize("arch", ARCHES)
def test_ratio_1_holds_a_row_in_registers(arch: str) -> None:
    signature = {
        "kv": "*bf16", "weight": "*bf16", "freqs": "*fp32", "positions": "*i64", "out_loc": "*i64", "cache": "*u8",
        "latents": "*bf16", "kv_stride": "i32", **PAGES, "eps": "fp32",
    }  # fmt: skip
    tiles = replace(compress.TILES, pdl=arch.startswith("sm_"))
    constants, aligned = {"UNIT": 8, "PDL": tiles.pdl}, ("kv", "weight", "cache", "latents")
    kernel = compile_kernel(compress.compress_c1_kernel, arch, signature, constants, row_options(tiles), aligned)
    assert kernel.spilled == 0
    assert kernel.registers <= 96
    assert kernel.shared <= 128
    if arch.startswith("sm_"):
        assert kernel.count(r"\bLDG\.E\.64") >= 2, "four lanes of a row and of the weight to a thread"


@pytest.mark.parametrize(("arch", "form"), _with_variants("verify", "decode", "extend"))
def test_ratio_2_holds_both_rows_of_a_pair_in_registers(arch: str, form: str) -> None:
    signature = {
        "kv_score": "*fp32", "state": "*fp32", "weight": "*bf16", "freqs": "*fp32", "positions": "*i64",
        "requests": "*i64", "out_loc": "*i64", "cache": "*u8", "latents": "*bf16", **PAGES, "ring_size": "i32",
        "draft_len": "i32", "eps": "fp32",
    }  # fmt: skip
    tiles = replace(compress.TILES, pdl=arch.startswith("sm_"))
    constants, aligned = {"FORM": form, "PDL": tiles.pdl}, ("kv_score", "state", "weight", "cache", "latents")
    kernel = compile_kernel(compress.compress_c2_kernel, arch, signature, constants, row_options(tiles), aligned)
    assert kernel.spilled == 0
    assert kernel.registers <= 96
    assert kernel.shared <= 512
    assert kernel.count(r"\bLDG\.E\.(ENL2\.256|128)|\bglobal_load_dwordx2") >= 4


@pytest.mark.parametrize("arch", ARCHES)
def test_the_search_for_the_last_rows_does_not_spill(arch: str) -> None:
    signature = {
        "kv_score": "*fp32", "state": "*fp32", "positions": "*i64", "requests": "*i64", "out_loc": "*i64",
        "rows": "i32", "ring_size": "i32",
    }  # fmt: skip
    constants, options = {"SEARCHED": compress.SEARCHED, "PDL": False}, row_options(compress.TILES)
    kernel = compile_kernel(compress.keep_last_kernel, arch, signature, constants, options, ("kv_score", "state"))
    assert kernel.spilled == 0
    assert kernel.registers <= 128


@pytest.mark.parametrize(("arch", "split"), _with_variants(False, True))
def test_an_index_key_is_stored_by_one_warp_without_memory_to_meet_in(arch: str, split: bool) -> None:
    signature = {
        "k": "*bf16", "weight": "*bf16", "freqs": "*fp32", "positions": "*i64", "out_loc": "*i64", "cache": "*u8",
        **dict.fromkeys(("k_stride", "slots", "page_shift", "first_slot", "position_mask"), "i32"), "eps": "fp32",
    }  # fmt: skip
    if split:
        signature["scale_cache"] = "*u8"
    constants = {"UNIT": 8, "PDL": arch.startswith("sm_"), **({} if split else {"scale_cache": None})}
    options, aligned = cut_options(replace(index_store.CUT, pdl=arch.startswith("sm_"))), ("k", "weight", "cache")
    kernel = compile_kernel(index_store.index_store_kernel, arch, signature, constants, options, aligned)
    assert (kernel.spilled, kernel.shared) == (0, 0)
    assert kernel.registers <= 48
