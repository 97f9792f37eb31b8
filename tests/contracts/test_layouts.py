"""Page layouts: sizes, addresses, round trips, and bytes that a store must not touch."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dspark_ops.contracts.layouts import (
    INDEX_K_PAGE68,
    KV_V4,
    KV_V41,
    KV_V41_FP4,
    KV_V41_FP4_NEW,
    KV_V41_NEW,
    LAYOUTS,
    Lanes,
    PageLayout,
    page_layout,
)
from dspark_ops.errors import ContractError

PLAIN = PageLayout("plain", (Lanes(8, "bfloat16"),), scale_bytes=0, page_multiple=1, source="test")
SCALED = Lanes(64, "e4m3", group=32, scale="ue8m0_v4page")
TOGETHER = PageLayout("together", (SCALED,), scale_bytes=2, page_multiple=1, source="test", interleaved=True)
EVERY = (*LAYOUTS.values(), PLAIN, TOGETHER)


def random_rows(count: int, width: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(count, width, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(("page_size", "size"), [(256, 149760), (128, 74880), (64, 37440), (288, 168192)])
def test_kv_v4_pages_have_the_stated_bytes(page_size: int, size: int) -> None:
    assert KV_V4.page_bytes(page_size) == size


def test_kv_v4_slot_is_576_data_and_8_scale_bytes_of_which_7_are_scales() -> None:
    assert (KV_V4.width, KV_V4.data_bytes, KV_V4.scale_bytes, KV_V4.scales) == (512, 576, 8, 7)


def test_kv_v4_addresses_of_a_slot_in_the_second_page() -> None:
    assert KV_V4.data_offset(67, 64) == 37440 + 3 * 576
    assert KV_V4.scale_offset(67, 64) == 37440 + 64 * 576 + 3 * 8


@given(
    layout=st.sampled_from(EVERY),
    log_size=st.integers(0, 5),
    pages=st.integers(1, 4),
    data=st.data(),
    seed=st.integers(0, 99),
)
def test_a_stored_row_lies_at_its_address_and_nothing_else_changes(
    layout: PageLayout, log_size: int, pages: int, data: st.DataObject, seed: int
) -> None:
    page_size = 2**log_size
    slot = data.draw(st.integers(0, pages * page_size - 1))
    cache = torch.full((pages, layout.page_bytes(page_size)), 0xAB, dtype=torch.uint8)
    row = random_rows(1, layout.width, seed)
    expected = cache.flatten().clone()
    codes, scales = layout.pack(row)
    begin = layout.data_offset(slot, page_size)
    expected[begin : begin + layout.data_bytes] = codes[0]
    begin = layout.scale_offset(slot, page_size)
    expected[begin : begin + layout.scales] = scales[0]
    layout.store(cache, torch.tensor([slot]), row, page_size)
    assert torch.equal(cache.flatten(), expected)


# Scales of e4m3 are rounded: among their subnormals a group may saturate on a second trip, above 448 on the first one.
FP4_EXPONENTS = st.integers(-4, 9)


@given(layout=st.sampled_from(EVERY), seed=st.integers(0, 999), data=st.data())
def test_what_a_page_holds_survives_a_second_trip_unchanged(layout: PageLayout, seed: int, data: st.DataObject) -> None:
    fp4_scale = any(run.scale == "e4m3_fp4" for run in layout.lanes)
    exponent = data.draw(FP4_EXPONENTS if fp4_scale else st.integers(-30, 20))
    rows = random_rows(3, layout.width, seed) * 2.0**exponent
    once = layout.unpack(*layout.pack(rows))
    twice = layout.unpack(*layout.pack(once))
    assert torch.equal(once, twice)
    fp4 = any(run.format.startswith("e2m1") for run in layout.lanes)
    # half the widest step over the largest value; and half the smallest step where the scale has a floor
    bound = (0.2 if fp4 else 2.0**-4) * rows.abs().max() + 2.0 ** (-15 if fp4 else -23)
    assert (once - rows).abs().max() <= bound


@pytest.mark.parametrize(
    ("layout", "data", "scales", "pages"),
    [
        (KV_V41, 512, 16, {256: 135168, 64: 33792, 1: 1024}),
        (KV_V41_FP4, 256, 32, {256: 73728, 64: 18432, 1: 512}),
        (KV_V41_NEW, 512, 16, {256: 135168, 64: 33792, 1: 528}),
        (KV_V41_FP4_NEW, 256, 32, {256: 73728, 64: 18432, 1: 288}),
        (INDEX_K_PAGE68, 64, 4, {256: 17408, 64: 4352, 1: 68}),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_slots_and_pages_have_the_stated_bytes(
    layout: PageLayout, data: int, scales: int, pages: dict[int, int]
) -> None:
    assert (layout.data_bytes, layout.scale_bytes, layout.scales) == (data, scales, scales)
    assert {size: layout.page_bytes(size) for size in pages} == pages


def test_interleaved_pages_hold_the_same_bytes_at_other_places() -> None:
    rows = random_rows(4, 512, 3)
    for plain, together in ((KV_V41, KV_V41_NEW), (KV_V41_FP4, KV_V41_FP4_NEW)):
        assert all(torch.equal(a, b) for a, b in zip(plain.pack(rows), together.pack(rows), strict=True))
        pitch = plain.data_bytes + plain.scale_bytes
        assert together.data_offset(5, 4) == together.page_bytes(4) + pitch
        assert together.scale_offset(5, 4) == together.page_bytes(4) + pitch + plain.data_bytes
        assert plain.scale_offset(5, 4) == plain.page_bytes(4) + 4 * plain.data_bytes + plain.scale_bytes


def test_kv_v41_bytes_of_a_known_row() -> None:
    row = torch.zeros(1, 512)
    row[0, :3] = torch.tensor([448.0, -1.0, -0.0])
    row[0, 32] = 2.0**-12
    row[0, 511] = 449.0
    codes, scales = KV_V41.pack(row)
    assert scales[0].tolist() == [127, 114, *[114] * 13, 128]
    assert codes[0, [0, 1, 2, 32, 511]].tolist() == [0x7E, 0xB8, 0x80, 0x40, 0x76]


def test_kv_v41_fp4_bytes_of_a_known_row_keep_minus_zero() -> None:
    row = torch.zeros(1, 512)
    row[0, :6] = torch.tensor([6.0, -3.0, -0.0, -0.1, 0.25, 0.75])
    row[0, 16:18] = torch.tensor([6 * 1.0625, -5.0])
    codes, scales = KV_V41_FP4.pack(row)
    # 1.0625 lies in the middle between the e4m3 values 1 and 1.125 and goes to the even one
    assert scales[0, :3].tolist() == [0x38, 0x38, 0x01]
    assert codes[0, :3].tolist() == [0xD7, 0x88, 0x20]
    assert codes[0, 8].item() == 0xE7


def test_index_k_bytes_of_a_known_row_drop_minus_zero() -> None:
    row = torch.zeros(1, 128)
    row[0, :4] = torch.tensor([6.0, -3.0, -0.0, -0.1])
    row[0, 127] = 6.03125
    codes, scales = INDEX_K_PAGE68.pack(row)
    assert scales[0].tolist() == [127, 114, 114, 128]
    assert codes[0, :2].tolist() == [0xD7, 0x00]
    assert codes[0, 63].item() == 0x50


@given(slots=st.lists(st.integers(0, 31), min_size=1, max_size=8, unique=True), seed=st.integers(0, 99))
def test_loading_returns_what_was_stored_in_any_order_of_slots(slots: list[int], seed: int) -> None:
    cache = torch.zeros(4, KV_V4.page_bytes(8), dtype=torch.uint8)
    rows = KV_V4.unpack(*KV_V4.pack(random_rows(len(slots), 512, seed)))
    KV_V4.store(cache, torch.tensor(slots, dtype=torch.int32), rows, 8)
    assert torch.equal(KV_V4.load(cache, torch.tensor(slots), 8), rows)


def test_kv_v4_bytes_of_a_known_row() -> None:
    row = torch.zeros(1, 512)
    row[0, :4] = torch.tensor([448.0, -448.0, 1.0, -0.0])
    row[0, 64] = 449.0
    row[0, 448:450] = torch.tensor([1.0, -2.0])
    codes, scales = KV_V4.pack(row)
    assert scales[0].tolist() == [127, 128, 105, 105, 105, 105, 105]
    assert codes[0, :4].tolist() == [0x7E, 0xFE, 0x38, 0x80]
    assert codes[0, 64].item() == 0x76  # 224.5 lies between 224 and 240
    assert codes[0, 448:452].tolist() == [0x80, 0x3F, 0x00, 0xC0]


def test_kv_v4_scale_is_a_power_of_two_and_codes_stay_within_half_a_step() -> None:
    rows = random_rows(16, 512, 5) * 7
    codes, scales = KV_V4.pack(rows)
    back = KV_V4.unpack(codes, scales)
    error = (back - rows)[:, :448].abs().reshape(16, 7, 64)
    step = 2.0 ** (scales.int() - 127) * 32 / 2
    assert (error <= step[..., None]).all()
    assert torch.equal(back[:, 448:], rows[:, 448:].bfloat16().float())


def test_store_through_a_page_table_with_holes_changes_only_the_two_valid_slots_between_guard_pages() -> None:
    page_size, pages = 4, 3
    pool = torch.full((pages + 2, PLAIN.page_bytes(page_size)), 0xAB, dtype=torch.uint8)
    cache = pool[1:-1]
    table = torch.tensor([[2, -1], [0, 1], [3, 0]])
    request, position = torch.tensor([0, 0, 1, 2]), torch.tensor([3, 4, 5, 0])
    page = table[request, position // page_size]
    slots = torch.where(page < 0, -1, page * page_size + position % page_size)
    PLAIN.store(cache, torch.cat([slots, torch.tensor([-1])]), torch.ones(5, 8), page_size)
    changed = (pool.view(-1, 16) != 0xAB).any(-1).nonzero().flatten() - page_size
    assert changed.tolist() == [5, 11]


def test_rows_that_are_not_kept_are_dropped() -> None:
    cache = torch.zeros(1, PLAIN.page_bytes(4), dtype=torch.uint8)
    PLAIN.store(cache, torch.tensor([0, 1]), torch.ones(2, 8), 4, keep=torch.tensor([False, True]))
    assert PLAIN.load(cache, torch.tensor([0, 1]), 4)[:, 0].tolist() == [0.0, 1.0]


def test_a_cache_of_another_size_or_dtype_is_refused_with_both_sizes() -> None:
    with pytest.raises(ContractError, match=r"\[pages, 37440\] for 64 slots a page.*got torch.uint8 \[2, 37376\]"):
        KV_V4.views(torch.zeros(2, 37376, dtype=torch.uint8), 64)
    with pytest.raises(ContractError, match=r"got torch\.int8"):
        KV_V4.views(torch.zeros(2, 37440, dtype=torch.int8), 64)


@pytest.mark.parametrize("page_size", [0, -4, 3, 288])
def test_page_sizes_that_are_no_power_of_two_are_refused(page_size: int) -> None:
    with pytest.raises(ContractError, match=f"power of two, got {page_size}"):
        KV_V4.views(torch.zeros(1, 576, dtype=torch.uint8), page_size)


def test_an_unknown_layout_is_refused_with_the_nearest_name() -> None:
    assert page_layout("kv_v4") is KV_V4
    with pytest.raises(ContractError, match="did you mean 'kv_v4'"):
        page_layout("kv_v5")
