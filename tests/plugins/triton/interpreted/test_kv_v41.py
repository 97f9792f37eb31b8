"""Latent rows in the page layouts of V4.1: places, bytes and the cases of the contract."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch
import triton
import triton.language as tl

from dspark_ops import contracts
from dspark_ops.conformance.numbers import check_numbers
from dspark_ops.contracts import numerics
from dspark_ops.contracts.layouts import LAYOUTS
from dspark_ops_triton.blocks import codes
from dspark_ops_triton.blocks.kv_rows_v41 import store_rows_v41
from dspark_ops_triton.blocks.kv_v41 import FORMS, locate_v41, page_units


@pytest.mark.parametrize("name", FORMS)
def test_rows_are_stored_as_in_the_cases_of_the_contract(name: str) -> None:
    def thinned(inputs: Mapping[str, Any]) -> Mapping[str, Any] | None:
        # Layouts whose rows have the same bytes differ in their places only: exact norms are looked at in one of both.
        exact = inputs.get("eps") == 0.0 and name.endswith("_new")
        return inputs if inputs["layout"] == name and len(inputs["kv"]) != 1 and not exact else None

    assert check_numbers(contracts.get("k_norm_rope_store"), store_rows_v41, adapt=thinned) == []


@pytest.mark.parametrize("name", FORMS)
def test_pages_have_the_bytes_of_the_layout(name: str) -> None:
    form, layout = FORMS[name], LAYOUTS[name]
    assert (form.data, form.scales, form.interleaved) == (layout.data_bytes, layout.scale_bytes, layout.interleaved)
    for page_size in (1, 2, 16, 64, 256):
        assert form.page_bytes(page_size) == layout.page_bytes(page_size)
        cache = torch.zeros(1, layout.page_bytes(page_size), dtype=torch.uint8)
        assert 16 * page_units("test", name, cache, page_size) == layout.page_bytes(page_size)


@triton.jit
def _locate_kernel(
    cache, slots, data, scales, page_shift, page_units,
    COUNT: tl.constexpr, DATA: tl.constexpr, SCALES: tl.constexpr, INTERLEAVED: tl.constexpr,
):  # fmt: skip
    lane = tl.arange(0, COUNT)
    row, scale_row = locate_v41(cache, tl.load(slots + lane), page_shift, page_units, DATA, SCALES, INTERLEAVED)
    tl.store(data + lane, row.to(tl.int64) - cache.to(tl.int64))
    tl.store(scales + lane, scale_row.to(tl.int64) - cache.to(tl.int64))


@pytest.mark.parametrize("name", FORMS)
def test_slots_lie_where_the_layout_says_also_beyond_two_gigabytes(name: str) -> None:
    form, layout = FORMS[name], LAYOUTS[name]
    for page_size in (1, 4, 256):
        slots = torch.tensor([0, 1, page_size - 1, page_size, 3 * page_size + 1, 5_000_000, 2**31 - 1, 7])
        data, scales = torch.empty(8, dtype=torch.int64), torch.empty(8, dtype=torch.int64)
        cache = torch.zeros(1, layout.page_bytes(page_size), dtype=torch.uint8)
        _locate_kernel[(1,)](
            cache, slots, data, scales, page_size.bit_length() - 1, page_units("test", name, cache, page_size),
            COUNT=8, DATA=form.data, SCALES=form.scales, INTERLEAVED=form.interleaved,
        )  # fmt: skip
        assert data.tolist() == [layout.data_offset(slot, page_size) for slot in slots.tolist()]
        assert scales.tolist() == [layout.scale_offset(slot, page_size) for slot in slots.tolist()]


@triton.jit
def _code_kernel(x, byte, code, COUNT: tl.constexpr):
    lane = tl.arange(0, COUNT)
    value = tl.load(x + lane)
    tl.store(byte + lane, codes.ue8m0_v41page(tl.abs(value)).to(tl.uint8))
    tl.store(code + lane, codes.e2m1_code(codes.e2m1_round(value)).to(tl.uint8))


def test_codes_keep_minus_zero_and_scales_have_their_floor() -> None:
    x = torch.tensor([0.0, -0.0, -0.1, 0.25, 0.75, -0.75, 1.0, 1.5, -2.0, 3.0, 4.0, -6.0, 448.0, 449.0, 1e-4, 1e30])
    byte, code = torch.empty(16, dtype=torch.uint8), torch.empty(16, dtype=torch.uint8)
    _code_kernel[(1,)](x, byte, code, COUNT=16)
    assert torch.equal(byte, numerics.ue8m0_v41page(x.abs()))
    assert torch.equal(code, numerics.e2m1_encode_ties_to_even(x))
    assert code[1:3].tolist() == [8, 8]


def test_caches_that_do_not_fit_are_refused() -> None:
    cache = torch.zeros(2, 2560, dtype=torch.uint8)
    with pytest.raises(ValueError, match=r"test: wanted layout kv_v4 or one of kv_v41, .*, got 'kv_v5'"):
        page_units("test", "kv_v5", cache, 4)
    with pytest.raises(ValueError, match="a power of two, got 3"):
        page_units("test", "kv_v41", cache, 3)
    with pytest.raises(ValueError, match=r"\[pages, 1280\] for kv_v41_fp4 pages of 4 slots, got \[2, 2560\]"):
        page_units("test", "kv_v41_fp4", cache, 4)
