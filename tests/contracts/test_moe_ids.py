"""Packed expert ids, padded rows and the hash router: bits by hand, and what must never be read."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import torch

from dspark_ops.conformance.numbers import check_numbers
from dspark_ops.contracts import get
from dspark_ops.contracts._moe_ids_cases import EDGE_WORDS, KNOWN_WORDS, guarded_table
from dspark_ops.contracts.moe import moe_gate_topk
from dspark_ops.contracts.moe_ids import (
    fill_padded_topk,
    moe_gate_hash,
    moe_gate_topk_packed,
    pack_topk_ids,
    unpack_topk_ids,
)
from dspark_ops.errors import ContractError

NAN, INF = float("nan"), float("inf")


def word(expert: int, weight: float) -> int:
    return pack_topk_ids(torch.tensor([[expert]]), torch.tensor([[weight]])).item() & 0xFFFFFFFF


@pytest.mark.parametrize("name", ["pack_topk_ids", "fill_padded_topk", "moe_gate_hash", "moe_gate_topk_packed"])
def test_the_reference_gives_every_case_its_known_values(name: str) -> None:
    assert check_numbers(get(name), get(name).reference) == []


@pytest.mark.parametrize(("expert", "weight", "wanted"), [*KNOWN_WORDS, *EDGE_WORDS])
def test_a_word_has_the_id_above_and_the_rounded_weight_below(expert: int, weight: float, wanted: int) -> None:
    assert word(expert, weight) == wanted


def test_the_words_of_o06_as_signed_integers() -> None:
    ids = torch.tensor([[5, 383, -1, -1, 5, 0, 32767]], dtype=torch.int32)
    weights = torch.tensor([[0.5, 1.0, 0.0, -0.0, -0.25, 1 / 3, 1.0]])
    packed = pack_topk_ids(ids, weights)
    assert packed.tolist() == [[343808, 25116544, -65536, -32768, 376448, 16043, 2147434368]]
    assert packed.dtype == torch.int32
    back, rounded = unpack_topk_ids(packed)
    assert torch.equal(back, ids) and back.dtype == torch.int32
    assert torch.equal(rounded.view(torch.int16), weights.bfloat16().view(torch.int16))


@pytest.mark.parametrize("wrong", [32768, -32769, 2**40])
def test_an_id_beyond_sixteen_bits_is_refused_with_its_place(wrong: int) -> None:
    ids = torch.tensor([[1, 2], [3, wrong]])
    with pytest.raises(ContractError, match=rf"ids\[1, 1\] is {wrong}: wanted -32768 to 32767"):
        pack_topk_ids(ids, torch.ones(2, 2))


def test_a_word_lies_in_memory_as_the_weight_then_the_id() -> None:
    packed = pack_topk_ids(torch.tensor([[0x0102]]), torch.tensor([[1.0]]))
    assert packed.view(torch.uint8).tolist() == [[0x80, 0x3F, 0x02, 0x01]]


def test_every_bfloat16_weight_but_nan_comes_back_with_every_bit() -> None:
    bits = torch.arange(-(2**15), 2**15).to(torch.int16).view(1, -1)
    weights = bits.view(torch.bfloat16)
    for expert in (0, 383, -1, 32767, -32768):
        ids, back = unpack_topk_ids(pack_topk_ids(torch.full(bits.shape, expert), weights.float()))
        assert (ids == expert).all()
        same = back.view(torch.int16) == bits
        assert torch.equal(same | (weights.isnan() & (back.view(torch.int16) == 0x7FC0)), torch.ones_like(same))


def test_the_gate_vector_has_its_words() -> None:
    logits, bias = torch.tensor([[0, 1, 1, -5, 25, 0.5]]), torch.tensor([0.5, 0, 0, 3, 0, 0])
    _, ids, packed = moe_gate_topk_packed(logits, bias, 4)
    assert ids.tolist() == [[4, 3, 0, 1]]
    assert packed.tolist() == [[0x00043F88, 0x00033C8F, 0x00003E35, 0x00013E79]]


def test_padded_rows_pack_to_an_id_of_minus_one_and_weight_zero() -> None:
    logits = torch.full((3, 8), NAN)
    valid = torch.tensor([0], dtype=torch.int32)
    _, _, packed = moe_gate_topk_packed(logits, torch.zeros(8), 2, num_valid=valid)
    assert (packed == -65536).all()


def test_the_packed_gate_is_the_gate_then_the_packing() -> None:
    contract = get("moe_gate_topk_packed")
    ops = SimpleNamespace(moe_gate_topk=moe_gate_topk, pack_topk_ids=pack_topk_ids)

    def composed(*arguments: object) -> tuple:
        return contract.decomposition.compose(ops, *arguments)

    assert check_numbers(contract, composed) == []
    for case in contract.cases("small", 1):
        together = moe_gate_topk_packed(**case.inputs)
        weights, ids = moe_gate_topk(**case.inputs)
        assert torch.equal(together[1], ids) and torch.equal(together[2], pack_topk_ids(ids, weights))


def test_a_gate_that_packs_another_rounding_is_found() -> None:
    def truncated(*arguments: object) -> tuple:
        weights, ids = moe_gate_topk(*arguments)
        return weights, ids, (ids << 16) | ((weights.view(torch.int32) >> 16) & 0xFFFF)

    assert any("packed" in str(failure) for failure in check_numbers(get("moe_gate_topk_packed"), truncated))


@pytest.mark.parametrize(
    ("experts", "options", "text"),
    [
        (32768, {}, "32768 experts, pad_id -1: wanted at most 32767"),
        (8, {"pad_id": 40000}, "pad_id 40000"),
        (8, {"top_k": 9}, "top_k is 9"),
    ],
)
def test_a_gate_whose_ids_do_not_fit_is_refused(experts: int, options: dict, text: str) -> None:
    with pytest.raises(ContractError, match=text):
        moe_gate_topk_packed(torch.zeros(1, experts), torch.zeros(experts), **{"top_k": 2, **options})


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize(
    ("valid", "kept"), [(-2, 0), (0, 0), (1, 1), (3, 3), (4, 4), (9, 4)], ids=lambda value: str(value)
)
@pytest.mark.parametrize("top_k", [1, 3, 6, 8])
def test_padded_rows_are_overwritten_and_no_other(valid: int, kept: int, top_k: int, dtype: torch.dtype) -> None:
    ids = torch.arange(4 * top_k, dtype=dtype).view(4, top_k)
    weights = torch.full((4, top_k), NAN)
    weights[:kept] = 0.5
    fill_padded_topk(ids, weights, torch.tensor([valid], dtype=dtype), 0 if top_k == 3 else -1)
    assert ids[:kept].tolist() == torch.arange(kept * top_k).view(kept, top_k).tolist()
    assert (ids[kept:] == (0 if top_k == 3 else -1)).all()
    assert (weights[:kept] == 0.5).all() and (weights[kept:] == 0).all()
    assert ids.dtype == dtype


def test_filling_rows_of_a_wider_buffer_leaves_the_gaps() -> None:
    ids, weights = torch.full((3, 5), 7), torch.full((3, 4), 2.0)
    fill_padded_topk(ids[:, 1:3], weights[:, :2], torch.tensor([1]))
    assert ids.tolist() == [[7] * 5, [7, -1, -1, 7, 7], [7, -1, -1, 7, 7]]
    assert weights.tolist() == [[2, 2, 2, 2], [0, 0, 2, 2], [0, 0, 2, 2]]


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_a_token_outside_the_table_is_padding_and_the_table_is_not_read_for_it(dtype: torch.dtype) -> None:
    tokens = torch.tensor([0, 15, 16, -1, 2147483647], dtype=dtype)
    logits = torch.zeros(5, 8)
    logits[2:] = NAN
    weights, ids = moe_gate_hash(logits, tokens, guarded_table())
    assert ids.tolist() == [[0, 3, 5], [7, 2, 4], [-1] * 3, [-1] * 3, [-1] * 3]
    assert ids.dtype == torch.int32
    torch.testing.assert_close(weights, torch.tensor([[1 / 3] * 3] * 2 + [[0.0] * 3] * 3))


@pytest.mark.parametrize(
    ("x", "score"),
    [(-20, 4.53999e-05), (-5, 0.08194723), (-1, 0.559698), (0, 0.83255461), (1, 1.14597630), (2, 1.458399), (25, 5.0)],
)
def test_the_hash_router_has_the_same_scores(x: float, score: float) -> None:
    table = torch.tensor([[0, 1]], dtype=torch.int32)
    weights, _ = moe_gate_hash(torch.tensor([[25.0, float(x)]]), torch.tensor([0]), table)
    whole, part = weights[0].tolist()
    assert 5 * part / whole == pytest.approx(score, rel=2e-6)
    assert whole + part == pytest.approx(1.0)


def test_a_very_low_score_keeps_its_digits() -> None:
    table = torch.tensor([[0, 1]], dtype=torch.int32)
    weights, _ = moe_gate_hash(torch.tensor([[-60.0, -62.0]]), torch.tensor([0]), table)
    first, second = weights[0].tolist()
    assert second / first == pytest.approx(math.exp(-1), rel=1e-6)


def test_hash_rows_that_are_broken_or_padded() -> None:
    table = torch.tensor([[0, 1]], dtype=torch.int32)
    logits = torch.tensor([[-INF, -INF, NAN], [NAN, 1.0, 0.0], [INF, 1.0, 0.0], [NAN, NAN, NAN]])
    valid = torch.tensor([3], dtype=torch.int32)
    weights, ids = moe_gate_hash(logits, torch.zeros(4).long(), table, pad_id=0, num_valid=valid)
    assert weights[0].tolist() == [0, 0]
    assert weights[1].isnan().all()
    assert weights[2].isnan().tolist() == [True, False]
    assert weights[3].tolist() == [0, 0] and ids[3].tolist() == [0, 0]
