"""Compression: pooling, the stored entry, padded rows, and verify equal to decoding one position after the other."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from dspark_ops.contracts import get
from dspark_ops.contracts.compress import compress_c1, compress_c2, pool_pair
from dspark_ops.contracts.layouts import KV_LAYOUTS, KV_V4, page_layout
from dspark_ops.contracts.numerics import fp4_fake_quant_e4m3_scale
from dspark_ops.contracts.rope import YarnScaling, rope_table, rotate, rotations
from dspark_ops.errors import ContractError

TABLE = rope_table(64, 128, 160000.0, YarnScaling(16.0, 65536))
PAGE, RING, GAMMA_PLUS_ONE = 8, 8, 6


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


WEIGHT = (1 + 0.2 * random(512, seed=1)).bfloat16()


def new_cache() -> torch.Tensor:
    return torch.full((20, KV_V4.page_bytes(PAGE)), 0xAB, dtype=torch.uint8)


def c1(**changes: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Call compress_c1 on three random rows; return the latent and the cache."""
    arguments: dict[str, Any] = {
        "kv": (2 * random(3, 512)).bfloat16(), "weight": WEIGHT, "freqs": TABLE, "positions": torch.tensor([0, 3, 77]),
        "out_loc": torch.tensor([9, 1, 4]), "cache": new_cache(), "page_size": PAGE, **changes,
    }  # fmt: skip
    return compress_c1(**arguments), arguments["cache"]


def block(starts: tuple[int, ...], length: int, seed: int = 2) -> dict[str, torch.Tensor]:
    """Rows of consecutive positions, request by request; slots 2 + 64 * request + position."""
    requests = torch.arange(len(starts)).repeat_interleave(length)
    positions = torch.cat([torch.arange(start, start + length) for start in starts])
    return {
        "kv_score": random(len(requests), 1024, seed=seed), "positions": positions, "requests": requests,
        "out_loc": 2 + 64 * requests + positions,
    }  # fmt: skip


def c2(rows: dict[str, torch.Tensor], **changes: Any) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Call compress_c2; return the latent, the ring and the cache."""
    arguments: dict[str, Any] = {
        "state": random(2 * RING, 1024, seed=3), "weight": WEIGHT, "freqs": TABLE, "cache": new_cache(),
        "page_size": PAGE, "ring_size": RING, **rows, **changes,
    }  # fmt: skip
    latent = compress_c2(**arguments)
    return latent, arguments["state"], arguments["cache"]


def changed_slots(cache: torch.Tensor) -> list[int]:
    return (KV_V4.views(cache, PAGE)[0].flatten(0, 1) != 0xAB).any(-1).nonzero().flatten().tolist()


def test_the_latent_is_the_weighted_norm_before_rotation() -> None:
    kv = (2 * random(3, 512)).bfloat16()
    latent, _ = c1()
    exact = kv.double() * kv.double().square().mean(-1, keepdim=True).rsqrt() * WEIGHT.double()
    torch.testing.assert_close(latent.double(), exact, rtol=2**-8, atol=0)


def test_the_entry_is_rotated_rounded_to_fp4_per_16_and_then_stored_as_the_page_does() -> None:
    latent, cache = c1()
    cosine, sine = rotations(TABLE, torch.tensor([0, 3, 77]))
    turned = rotate(latent[:, 448:], cosine, sine).bfloat16().float()
    grid = fp4_fake_quant_e4m3_scale(torch.cat([latent[:, :448].float(), turned], -1))
    expected = new_cache()
    KV_V4.store(expected, torch.tensor([9, 1, 4]), grid, PAGE)
    assert torch.equal(cache, expected)
    stored = KV_V4.load(cache, torch.tensor([9, 1, 4]), PAGE)
    assert torch.equal(stored[:, 448:], grid[:, 448:])
    assert (stored[:, :448] != grid[:, :448]).any()


@pytest.mark.parametrize("layout", KV_LAYOUTS)
def test_each_layout_stores_the_fp4_grid_of_the_entry_and_fp4_pages_its_codes(layout: str) -> None:
    pages = page_layout(layout)
    latent, cache = c1(layout=layout, cache=torch.full((3, pages.page_bytes(PAGE)), 0xAB, dtype=torch.uint8))
    cosine, sine = rotations(TABLE, torch.tensor([0, 3, 77]))
    entry = torch.cat([latent[:, :448], rotate(latent[:, 448:], cosine, sine).bfloat16()], -1).float()
    grid = fp4_fake_quant_e4m3_scale(entry)
    slots = torch.tensor([9, 1, 4])
    expected = torch.full_like(cache, 0xAB)
    pages.store(expected, slots, entry if "fp4" in layout else grid, PAGE)
    assert torch.equal(cache, expected)
    if "fp4" in layout:
        assert torch.equal(pages.load(cache, slots, PAGE), grid)


def test_an_fp4_page_rounds_the_entry_once() -> None:
    pages = page_layout("kv_v41_fp4")
    # 4.5 * 2**-9 over 6 is 1.5 steps of the smallest scales: the grid's 4 * 2**-8 asks for another scale.
    kv, ones = torch.full((1, 512), 1.0), torch.full((512,), 9 * 2.0**-9).bfloat16()
    _, cache = c1(
        kv=kv.bfloat16(), weight=ones, positions=torch.tensor([0]), out_loc=torch.tensor([1]), layout="kv_v41_fp4",
        cache=torch.zeros(1, pages.page_bytes(PAGE), dtype=torch.uint8),
    )  # fmt: skip
    data, scales = pages.views(cache, PAGE)
    assert scales[0, 1].unique().tolist() == [2]
    assert data[0, 1].unique().tolist() == [0x66]


def test_a_small_negative_lane_is_stored_as_minus_zero_and_an_exact_minus_zero_as_plus_zero() -> None:
    kv = torch.full((1, 512), 1.0)
    kv[0, 1], kv[0, 2] = -1e-3, -0.0
    ones, position = torch.ones(512).bfloat16(), torch.tensor([0])
    _, cache = c1(kv=kv.bfloat16(), weight=ones, positions=position, out_loc=torch.tensor([3]))
    assert KV_V4.views(cache, PAGE)[0][0, 3, 1:3].tolist() == [0x80, 0x00]


def test_rows_with_slot_zero_or_below_return_their_latent_and_store_nothing() -> None:
    latent, cache = c1(out_loc=torch.tensor([0, -1, 4]))
    assert torch.equal(latent, c1()[0])
    assert changed_slots(cache) == [4]


def test_c1_gives_the_same_bits_for_both_index_dtypes_and_alone_or_in_a_batch() -> None:
    latent, cache = c1()
    narrow = c1(positions=torch.tensor([0, 3, 77]).int(), out_loc=torch.tensor([9, 1, 4]).int())
    assert torch.equal(narrow[0], latent) and torch.equal(narrow[1], cache)
    alone = new_cache()
    for row, (position, slot) in enumerate(((0, 9), (3, 1), (77, 4))):
        kv = (2 * random(3, 512)).bfloat16()[row : row + 1]
        got, _ = c1(kv=kv, positions=torch.tensor([position]), out_loc=torch.tensor([slot]), cache=alone)
        assert torch.equal(got[0], latent[row])
    assert torch.equal(alone, cache)


def test_the_golden_pair_is_pooled_to_minus_two_tanh_of_one() -> None:
    pooled = pool_pair(torch.tensor([[2.0, 1.0]]), torch.tensor([[-2.0, 3.0]]))
    assert math.isclose(pooled.item(), -1.5231883, abs_tol=5e-8)
    assert math.isclose(pooled.item(), -2 * math.tanh(1), rel_tol=1e-15)


@pytest.mark.parametrize(("old", "new", "pooled"), [(900.0, -900.0, 2.0), (-900.0, 900.0, -2.0), (5.0, 5.0, 0.0)])
def test_scores_far_apart_choose_one_row_and_equal_ones_average(old: float, new: float, pooled: float) -> None:
    assert pool_pair(torch.tensor([[2.0, old]]), torch.tensor([[-2.0, new]])).item() == pooled


def test_each_lane_is_pooled_by_its_own_scores_rounded_to_bfloat16_and_rotated_as_the_even_position() -> None:
    rows = block((30,), 2)
    latent, _, cache = c2(rows, form="extend")
    kv, score = rows["kv_score"].double()[:, :512], rows["kv_score"].double()[:, 512:]
    pooled = (score.softmax(0) * kv).sum(0).float().bfloat16()
    expected, expected_cache = c1(kv=pooled[None], positions=torch.tensor([30]), out_loc=torch.tensor([(2 + 31) >> 1]))
    assert torch.equal(latent[1], expected[0])
    assert torch.equal(cache, expected_cache)


def test_decode_stores_even_rows_in_the_ring_and_completes_odd_ones_from_it() -> None:
    rows = {**block((30, 41), 1)}
    before = random(2 * RING, 1024, seed=3)
    latent, state, cache = c2(rows)
    assert latent[0].abs().max().item() == 0
    assert torch.equal(state[30 % RING], rows["kv_score"][0])
    before[30 % RING] = rows["kv_score"][0]
    assert torch.equal(state, before)
    assert changed_slots(cache) == [(2 + 64 + 41) >> 1]
    pooled = pool_pair(state[RING + 40 % RING][None], rows["kv_score"][1:]).float().bfloat16()
    assert torch.equal(latent[1], c1(kv=pooled, positions=torch.tensor([0]), out_loc=torch.tensor([0]))[0][0])


@pytest.mark.parametrize("starts", [(31, 32), (32, 31), (0, 7)])
@pytest.mark.parametrize("padded", [0, 1, 4])
def test_verify_equals_decoding_the_block_one_position_after_the_other(starts: tuple[int, int], padded: int) -> None:
    rows = block(starts, GAMMA_PLUS_ONE)
    tail = torch.arange(2 * GAMMA_PLUS_ONE) % GAMMA_PLUS_ONE >= GAMMA_PLUS_ONE - padded
    rows["out_loc"] = torch.where(tail, 0, rows["out_loc"])
    latent, state, cache = c2(rows, form="verify", draft_len=GAMMA_PLUS_ONE)
    one_state, one_cache = random(2 * RING, 1024, seed=3), new_cache()
    for step in range(GAMMA_PLUS_ONE):
        at = torch.tensor([step, GAMMA_PLUS_ONE + step])
        now = {name: value[at] for name, value in rows.items()}
        one, _, _ = c2(now, state=one_state, cache=one_cache)
        assert torch.equal(one, latent[at])
    assert torch.equal(one_state, state)
    assert torch.equal(one_cache, cache)


@pytest.mark.parametrize("accepted", range(1, 7))
def test_rejected_rows_of_a_verify_block_need_no_rollback(accepted: int) -> None:
    first, second = block((31,), 6), block((31 + accepted,), 6, seed=9)
    state, cache = random(2 * RING, 1024, seed=3), new_cache()
    c2(first, state=state, cache=cache, form="verify", draft_len=6)
    latent, _, _ = c2(second, state=state, cache=cache, form="verify", draft_len=6)
    kept = {name: torch.cat([first[name][:accepted], second[name]]) for name in first}
    clean, clean_cache = random(2 * RING, 1024, seed=3), new_cache()
    for row in range(accepted + 6):
        one, _, _ = c2({name: value[row : row + 1] for name, value in kept.items()}, state=clean, cache=clean_cache)
        if row >= accepted:
            assert torch.equal(one[0], latent[row - accepted])
    slots = torch.arange((2 + 32) >> 1, (2 + 31 + accepted + 6) >> 1)
    assert torch.equal(KV_V4.load(cache, slots, PAGE), KV_V4.load(clean_cache, slots, PAGE))


@pytest.mark.parametrize("starts", [(0, 5), (7, 0), (2, 3)])
@pytest.mark.parametrize("length", [1, 2, 11])
def test_extend_completes_the_same_pairs_as_decoding_and_keeps_the_last_ring_rows(
    starts: tuple[int, int], length: int
) -> None:
    rows = block(starts, length)
    latent, state, cache = c2(rows, form="extend")
    one_state, one_cache = random(2 * RING, 1024, seed=3), new_cache()
    for step in range(length):
        at = torch.tensor([step, length + step])
        one, _, _ = c2({name: value[at] for name, value in rows.items()}, state=one_state, cache=one_cache)
        assert torch.equal(one, latent[at])
    assert torch.equal(one_cache, cache)
    expected = random(2 * RING, 1024, seed=3)
    for request, start in enumerate(starts):
        for position in range(start, start + length):
            expected[request * RING + position % RING] = rows["kv_score"][request * length + position - start]
    assert torch.equal(state, expected)


@pytest.mark.parametrize("form", ["decode", "verify", "extend"])
def test_padded_rows_write_nothing_and_their_latent_is_zero(form: str) -> None:
    rows = block((30, 31), 1)
    rows["out_loc"] = torch.zeros(2, dtype=torch.int64)
    latent, state, cache = c2(rows, form=form)
    assert latent.abs().max().item() == 0
    assert torch.equal(state, random(2 * RING, 1024, seed=3))
    assert changed_slots(cache) == []


def test_a_garbage_ring_row_does_not_reach_rows_that_complete_nothing() -> None:
    state = torch.full((2 * RING, 1024), torch.nan)
    latent, _, _ = c2(block((30,), 2), form="verify", draft_len=2, state=state)
    assert latent.isfinite().all() and latent[0].abs().max().item() == 0


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"form": "prefill"}, "wanted form decode, verify, extend, got 'prefill'"),
        ({"form": "verify", "draft_len": 5}, "draft_len 5 rows, got 12 rows"),
        ({"form": "verify", "draft_len": 6, "ring_size": 6}, "ring_size above draft_len 6, got 6"),
        ({"page_size": 6}, "power of two, got 6"),
        ({"layout": "kv_v5"}, "did you mean 'kv_v4'"),
        ({"kv_score": torch.zeros(12, 512)}, "wanted rows of 512 lanes for kv_v4, got 256"),
    ],
)
def test_calls_outside_the_contract_are_refused_before_anything_is_written(changes: dict[str, Any], text: str) -> None:
    state, cache = random(2 * RING, 1024, seed=3), new_cache()
    with pytest.raises(ContractError, match=text):
        c2(block((0, 1), 6), **{"state": state, "cache": cache, **changes})
    assert torch.equal(state, random(2 * RING, 1024, seed=3))
    assert changed_slots(cache) == []


@pytest.mark.parametrize("name", ["compress_c1", "compress_c2"])
def test_every_small_case_runs_and_its_cache_follows_from_its_latent(name: str) -> None:
    contract = get(name)
    for case in contract.cases("small", 0):
        before = {**case.inputs, "cache": case.inputs["cache"].clone()}
        latent = contract.reference(**case.inputs)
        assert latent.isfinite().all(), case.name
        assert torch.equal(case.inputs["cache"], contract.rules["cache"](before, {"latent": latent})), case.name
        for key, value in case.expected.items():
            assert torch.equal(case.inputs[key], value), case.name
