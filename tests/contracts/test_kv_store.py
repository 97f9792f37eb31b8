"""The KV store: bytes of rows with an exact norm, order of norm, rotation and quantisation, and skipped rows."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from dspark_ops.contracts import get
from dspark_ops.contracts.kv_store import k_norm_rope_store
from dspark_ops.contracts.layouts import KV_LAYOUTS, KV_V4, KV_V41, page_layout
from dspark_ops.contracts.rope import rope_table, rotate, rotations
from dspark_ops.errors import ContractError

TABLE = rope_table(64, 64, 10000.0)


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def call(**changes: Any) -> torch.Tensor:
    """Call the operator on three random rows and return the cache of two pages of eight slots."""
    pages = page_layout(changes.get("layout", "kv_v4"))
    arguments: dict[str, Any] = {
        "kv": random(3, 512).bfloat16(),
        "weight": (1 + 0.2 * random(512, seed=1)).bfloat16(),
        "freqs": TABLE,
        "positions": torch.tensor([0, 5, 63]),
        "out_loc": torch.tensor([7, 8, 2], dtype=torch.int32),
        "cache": torch.full((2, pages.page_bytes(8)), 0xAB, dtype=torch.uint8),
        "page_size": 8,
    }
    arguments.update(changes)
    k_norm_rope_store(**arguments)
    return arguments["cache"]


def test_an_exact_norm_stores_the_weight_with_the_signs_of_the_row() -> None:
    signs = torch.where(random(1, 512) > 0, 1.0, -1.0)
    weight = random(512, seed=2).bfloat16()
    cache = call(
        kv=(signs * 0.5).bfloat16(), weight=weight, positions=torch.tensor([0]), out_loc=torch.tensor([9]), eps=0.0
    )
    expected = torch.full_like(cache, 0xAB)
    KV_V4.store(expected, torch.tensor([9]), signs * weight.float(), 8)
    assert torch.equal(cache, expected)


def test_the_norm_is_not_rounded_to_bfloat16_before_quantisation() -> None:
    kv = random(4, 512, seed=3).bfloat16()
    cache = call(kv=kv, positions=torch.zeros(4, dtype=torch.int64), out_loc=torch.arange(4))
    exact = kv.double() * (kv.double().square().mean(-1, keepdim=True)).rsqrt()
    normed = exact.float() * (1 + 0.2 * random(512, seed=1)).bfloat16().float()
    rounded_first = KV_V4.unpack(*KV_V4.pack(normed.bfloat16()))
    stored = KV_V4.load(cache, torch.arange(4), 8)
    # The normalised value itself lands on the right code wherever it is not within float32 noise of a middle.
    assert (stored != KV_V4.unpack(*KV_V4.pack(normed))).float().mean() < 1e-3
    assert (stored != rounded_first).any()


@pytest.mark.parametrize("layout", KV_LAYOUTS[1:])
def test_the_v41_layouts_quantise_the_norm_and_the_rotated_lanes_as_bfloat16(layout: str) -> None:
    kv, positions = random(4, 512, seed=3).bfloat16(), torch.tensor([0, 5, 17, 63])
    cache = call(kv=kv, positions=positions, out_loc=torch.arange(4), layout=layout)
    exact = kv.double() * (kv.double().square().mean(-1, keepdim=True)).rsqrt()
    rows = (exact.float() * (1 + 0.2 * random(512, seed=1)).bfloat16().float()).bfloat16().float()
    rows[:, 448:] = rotate(rows[:, 448:], *rotations(TABLE, positions)).bfloat16().float()
    expected = torch.full_like(cache, 0xAB)
    page_layout(layout).store(expected, torch.arange(4), rows, 8)
    assert torch.equal(cache, expected)


def test_a_v41_page_differs_from_one_that_is_fed_with_unrounded_rows() -> None:
    kv = random(64, 512, seed=3).bfloat16()
    arguments = {"kv": kv, "positions": torch.zeros(64, dtype=torch.int64), "out_loc": torch.arange(64)}
    cache = torch.zeros(8, KV_V41.page_bytes(8), dtype=torch.uint8)
    call(**arguments, cache=cache, layout="kv_v41")
    exact = kv.double() * (kv.double().square().mean(-1, keepdim=True)).rsqrt()
    unrounded = torch.zeros_like(cache)
    KV_V41.store(unrounded, torch.arange(64), exact.float() * (1 + 0.2 * random(512, seed=1)).bfloat16().float(), 8)
    assert 0.001 < (cache != unrounded).float().mean() < 0.2


def test_the_rotated_lanes_are_rounded_once_to_bfloat16() -> None:
    kv, ones = random(1, 512).bfloat16(), torch.ones(512).bfloat16()
    cache = call(kv=kv, weight=ones, positions=torch.tensor([5]), out_loc=torch.tensor([0]))
    pairs = (kv.double() * kv.double().square().mean().rsqrt())[0, 448:].view(32, 2)
    turned = torch.view_as_complex(pairs) * torch.view_as_complex(TABLE[5].double().view(32, 2))
    stored = KV_V4.load(cache, torch.tensor([0]), 8)[0, 448:].double()
    torch.testing.assert_close(stored, torch.view_as_real(turned).flatten(), rtol=2**-8, atol=1e-6)


def test_a_negative_slot_and_one_beyond_the_pool_write_nothing_and_guard_pages_stay() -> None:
    pool = torch.full((4, KV_V4.page_bytes(8)), 0xAB, dtype=torch.uint8)
    call(cache=pool[1:-1], out_loc=torch.tensor([-1, 3, 16], dtype=torch.int32))
    expected = torch.full_like(pool, 0xAB)
    call(cache=expected[1:-1], out_loc=torch.tensor([-1, 3, -1], dtype=torch.int32))
    assert torch.equal(pool, expected)
    data, scales = KV_V4.views(pool[1:-1], 8)
    assert (data != 0xAB).any(-1).nonzero().tolist() == [[0, 3]]
    assert scales[0, 3, 7].item() == 0xAB
    assert pool[[0, 3]].unique().tolist() == [0xAB]


def test_columns_of_a_wider_buffer_and_both_position_dtypes_give_the_same_bytes() -> None:
    wide = torch.full((3, 1792), 1e30).bfloat16()
    wide[:, 1280:] = random(3, 512).bfloat16()
    plain = call()
    assert torch.equal(call(kv=wide[:, 1280:]), plain)
    assert torch.equal(call(positions=torch.tensor([0, 5, 63], dtype=torch.int32)), plain)


def test_the_bytes_of_a_row_are_the_same_alone_and_in_a_batch() -> None:
    kv, positions = random(15, 512, seed=4).bfloat16(), torch.arange(15)
    together = call(kv=kv, positions=positions, out_loc=torch.arange(15))
    alone = torch.full_like(together, 0xAB)
    for row in range(15):
        call(kv=kv[row : row + 1], positions=positions[row : row + 1], out_loc=torch.tensor([row]), cache=alone)
    assert torch.equal(together, alone)


def test_a_call_without_rows_leaves_the_cache_alone() -> None:
    none = torch.empty(0, dtype=torch.int64)
    assert call(kv=torch.empty(0, 512).bfloat16(), positions=none, out_loc=none.int()).unique().tolist() == [0xAB]


def test_rows_of_another_width_are_refused_by_name_of_the_layout() -> None:
    with pytest.raises(ContractError, match="wanted rows of 512 lanes for kv_v4, got 256"):
        call(kv=torch.zeros(3, 256).bfloat16(), weight=torch.ones(256).bfloat16())


def test_every_small_case_runs_and_meets_its_golden_bytes() -> None:
    contract = get("k_norm_rope_store")
    for case in contract.cases("small", 0):
        contract.reference(**case.inputs)
        for key, value in case.expected.items():
            assert torch.equal(case.inputs[key], value), case.name
