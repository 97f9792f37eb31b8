"""The index-key store: two quantisations, both layouts, and which slots write nothing."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dspark_ops.conformance.numbers import check_numbers
from dspark_ops.contracts import get
from dspark_ops.contracts.index_layouts import INDEX_K_SPLIT
from dspark_ops.contracts.index_store import index_k_store
from dspark_ops.contracts.layouts import INDEX_K_PAGE68
from dspark_ops.contracts.numerics import fp4_fake_quant_ue8m0_scale, rms_norm
from dspark_ops.contracts.quantize import fp4_quantize_rows
from dspark_ops.contracts.rope import rope_table, rotate, rotations
from dspark_ops.errors import ContractError

TABLE = rope_table(64, 128, 160000.0)
WEIGHT = (1 + 0.2 * torch.randn(128, generator=torch.Generator().manual_seed(1))).bfloat16()
POSITIONS = torch.tensor([0, 3, 77])


def keys(rows: int = 3, seed: int = 0) -> torch.Tensor:
    return (2 * torch.randn(rows, 128, generator=torch.Generator().manual_seed(seed))).bfloat16()


def store(**changes: Any) -> torch.Tensor:
    """Call the operator on three keys and return the cache of three pages of eight slots."""
    arguments: dict[str, Any] = {
        "k": keys(), "freqs": TABLE, "positions": POSITIONS, "out_loc": torch.tensor([9, 1, 4]),
        "cache": torch.full((3, INDEX_K_PAGE68.page_bytes(8)), 0xAB, dtype=torch.uint8), "page_size": 8,
        "weight": WEIGHT, **changes,
    }  # fmt: skip
    index_k_store(**arguments)
    return arguments["cache"]


def split_store(**changes: Any) -> tuple[torch.Tensor, torch.Tensor]:
    buffers = [torch.full((2, width), 0xAB, dtype=torch.uint8) for width in INDEX_K_SPLIT.page_bytes]
    store(**{"cache": buffers[0], "scale_cache": buffers[1], "layout": "index_k_split", "page_size": 64, **changes})
    return buffers[0], buffers[1]


def changed_slots(cache: torch.Tensor) -> list[int]:
    return (INDEX_K_PAGE68.views(cache, 8)[0].flatten(0, 1) != 0xAB).any(-1).nonzero().flatten().tolist()


def test_a_key_is_normalised_rotated_rounded_to_fp4_and_then_packed() -> None:
    cache = store()
    normed = rms_norm(keys(), WEIGHT, 1e-20).bfloat16()
    turned = rotate(normed[:, 64:], *rotations(TABLE, POSITIONS)).bfloat16()
    once = fp4_fake_quant_ue8m0_scale(torch.cat([normed[:, :64], turned], -1)).bfloat16()
    payload, scales = fp4_quantize_rows(once)
    data, scale_rows = INDEX_K_PAGE68.views(cache, 8)
    for row, slot in enumerate((9, 1, 4)):
        assert torch.equal(data[slot // 8, slot % 8], payload[row])
        assert scale_rows[slot // 8, slot % 8].contiguous().view(torch.int32).item() == scales[row].item()
    assert changed_slots(cache) == [1, 4, 9]


def test_a_group_whose_largest_value_rounds_to_three_takes_the_next_lower_scale() -> None:
    k = torch.full((1, 128), 0.5)
    k[0, 0] = 3.25
    one = {"positions": torch.tensor([0]), "out_loc": torch.tensor([2]), "weight": None}
    data, scales = INDEX_K_PAGE68.views(store(k=k.bfloat16(), **one), 8)
    assert data[0, 2, :2].tolist() == [39, 34]
    assert scales[0, 2, 0].item() == 126
    assert fp4_quantize_rows(k)[0][0, :2].tolist() == [21, 17]


def test_an_entry_of_two_positions_is_rotated_as_the_first() -> None:
    odd, even = torch.tensor([1, 3, 77]), torch.tensor([0, 2, 76])
    assert torch.equal(store(positions=odd, ratio=2), store(positions=even))
    assert torch.equal(store(positions=even, ratio=2), store(positions=even))
    assert not torch.equal(store(positions=odd, ratio=1), store(positions=even))


def test_slots_of_zero_and_below_write_nothing_with_a_norm_and_only_negative_ones_without() -> None:
    slots = torch.tensor([0, -1, 4])
    assert changed_slots(store(out_loc=slots)) == [4]
    assert changed_slots(store(out_loc=slots, weight=None)) == [0, 4]
    assert changed_slots(store(out_loc=torch.tensor([24, 23, 100]))) == [23]


def test_minus_zero_never_appears_in_a_page() -> None:
    k = torch.full((3, 128), -1e-3)
    k[:, ::32] = 6.0
    data, _ = INDEX_K_PAGE68.views(store(k=k.bfloat16(), positions=torch.zeros(3, dtype=torch.int64), weight=None), 8)
    assert data[1, 1, :2].tolist() == [0x07, 0x00]


def test_both_index_dtypes_and_columns_of_a_wider_buffer_give_the_same_bytes() -> None:
    plain = store()
    assert torch.equal(store(positions=POSITIONS.int(), out_loc=torch.tensor([9, 1, 4]).int()), plain)
    wide = torch.full((3, 160), 1e30).bfloat16()
    wide[:, :128] = keys()
    assert torch.equal(store(k=wide[:, :128]), plain)


def test_the_split_layout_holds_the_bytes_of_the_page_at_its_own_places() -> None:
    slots = torch.tensor([1, 127, 81])
    payload, scales = split_store(out_loc=slots)
    page = torch.full((16, INDEX_K_PAGE68.page_bytes(8)), 0xAB, dtype=torch.uint8)
    store(cache=page, out_loc=slots)
    data, scale_rows = INDEX_K_PAGE68.views(page, 8)
    for slot in slots.tolist():
        for byte in range(64):
            assert payload.flatten()[INDEX_K_SPLIT.payload_index(slot, byte)] == data[slot // 8, slot % 8, byte]
        for chunk in range(4):
            assert scales.flatten()[INDEX_K_SPLIT.scale_index(slot, chunk)] == scale_rows[slot // 8, slot % 8, chunk]
    assert int((scales != 0xAB).sum()) == 12
    assert int((payload != 0xAB).sum()) <= 3 * 64


@pytest.mark.parametrize(("slot", "place"), [(0, 0), (16, 1), (32, 2), (48, 3), (1, 4), (63, 63), (64, 256)])
def test_split_scales_of_slots_sixteen_apart_are_neighbours(slot: int, place: int) -> None:
    assert INDEX_K_SPLIT.scale_index(slot, 0) == place
    assert INDEX_K_SPLIT.scale_index(slot, 3) == place + 192


@pytest.mark.parametrize(
    ("slot", "byte", "place"), [(0, 15, 15), (0, 16, 1024), (1, 0, 16), (63, 63, 4095), (64, 0, 4096)]
)
def test_split_payload_lies_by_chunk_then_slot(slot: int, byte: int, place: int) -> None:
    assert INDEX_K_SPLIT.payload_index(slot, byte) == place


@given(slots=st.lists(st.integers(0, 127), min_size=1, max_size=9, unique=True), seed=st.integers(0, 99))
def test_split_rows_come_back_in_any_order_of_slots_and_lie_at_their_addresses(slots: list[int], seed: int) -> None:
    rows = INDEX_K_SPLIT.unpack(*INDEX_K_SPLIT.pack(keys(len(slots), seed).float()))
    buffers = [torch.full((2, width), 0xAB, dtype=torch.uint8) for width in INDEX_K_SPLIT.page_bytes]
    INDEX_K_SPLIT.store(buffers[0], buffers[1], torch.tensor(slots), rows)
    assert torch.equal(INDEX_K_SPLIT.load(buffers[0], buffers[1], torch.tensor(slots)), rows)
    expected = [torch.full_like(buffer, 0xAB).flatten() for buffer in buffers]
    payload, scales = INDEX_K_SPLIT.pack(rows)
    for row, slot in enumerate(slots):
        for byte in range(64):
            expected[0][INDEX_K_SPLIT.payload_index(slot, byte)] = payload[row, byte]
        for chunk in range(4):
            expected[1][INDEX_K_SPLIT.scale_index(slot, chunk)] = scales[row, chunk]
    assert all(torch.equal(a.flatten(), b) for a, b in zip(buffers, expected, strict=True))


def test_a_negative_slot_does_not_reach_the_page_before_the_split_buffers() -> None:
    pools = [torch.full((3, width), 0xAB, dtype=torch.uint8) for width in INDEX_K_SPLIT.page_bytes]
    split_store(out_loc=torch.tensor([-1, -5, 128]), cache=pools[0][1:], scale_cache=pools[1][1:], weight=None)
    assert all(pool.unique().tolist() == [0xAB] for pool in pools)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"layout": "index_k_pag68"}, "did you mean 'index_k_page68'"),
        ({"layout": "index_k_split"}, "wanted a scale_cache for index_k_split, got none"),
        ({"scale_cache": torch.zeros(3, 256, dtype=torch.uint8)}, "wanted no scale_cache for index_k_page68, got one"),
        ({"ratio": 4}, "wanted ratio 1 or 2, got 4"),
        ({"k": keys()[:, :64]}, "wanted keys of 128 lanes, got 64"),
        ({"page_size": 4}, "wanted a cache of uint8"),
        (
            {"layout": "index_k_split", "scale_cache": torch.zeros(3, 256, dtype=torch.uint8)},
            "wanted pages of 64 for index_k_split, got 8",
        ),
        (
            {"layout": "index_k_split", "scale_cache": torch.zeros(3, 256, dtype=torch.uint8), "page_size": 64},
            r"wanted payload of uint8 \[3, 4096\]",
        ),
    ],
)
def test_calls_outside_the_contract_are_refused_before_anything_is_written(changes: dict[str, Any], text: str) -> None:
    cache = torch.full((3, INDEX_K_PAGE68.page_bytes(8)), 0xAB, dtype=torch.uint8)
    with pytest.raises(ContractError, match=text):
        store(**{"cache": cache, **changes})
    assert cache.unique().tolist() == [0xAB]


def test_the_reference_meets_every_small_case() -> None:
    contract = get("index_k_store")
    assert check_numbers(contract, contract.reference) == []
