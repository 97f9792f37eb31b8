"""Rotated tails: order of roundings, strides, two-stage fp4, and where the packed queries lie."""

from __future__ import annotations

from fractions import Fraction
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from dspark_ops.conformance.numbers import check_numbers
from dspark_ops.contracts import get, rope
from dspark_ops.contracts.numerics import e2m1_decode, ue8m0_decode, unpack_nibbles
from dspark_ops.contracts.quantize import fp4_quantize_rows
from dspark_ops.contracts.rope_tail import (
    index_q_rope_fp4_pack,
    rope_tail_copy,
    rope_tail_fp4_fake_quant,
    rotate_plain,
)
from dspark_ops.errors import ContractError

TABLE = rope.rope_table(64, 128, 10000.0)


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def copied(q: torch.Tensor, positions: torch.Tensor | None, **options: Any) -> torch.Tensor:
    out = torch.full_like(q, float("nan"))
    rope_tail_copy(q, out, options.pop("freqs", TABLE), positions, **options)
    return out


def single(value: Fraction) -> Fraction:
    return Fraction(torch.tensor(float(value), dtype=torch.float64).float().item())


def test_every_product_and_sum_is_rounded_by_itself() -> None:
    q, positions = random(4, 2, 128).bfloat16(), torch.tensor([0, 1, 77, 127])
    got = copied(q, positions)
    assert torch.equal(got[..., :64], q[..., :64])
    for token, head, pair in torch.cartesian_prod(torch.arange(4), torch.arange(2), torch.arange(32)).tolist():
        a, b = (Fraction(q[token, head, 64 + 2 * pair + lane].item()) for lane in (0, 1))
        c, s = (Fraction(TABLE[positions[token], 2 * pair + lane].item()) for lane in (0, 1))
        even = single(single(a * c) - single(b * s))
        odd = single(single(b * c) + single(a * s))
        for lane, value in enumerate((even, odd)):
            assert got[token, head, 64 + 2 * pair + lane].item() == torch.tensor(float(value)).bfloat16().item()


def test_the_fused_rotation_gives_other_last_bits() -> None:
    lanes, cosine, sine = random(4096, 64), TABLE[77, 0::2], TABLE[77, 1::2]
    plain, fused = rotate_plain(lanes, cosine, sine), rope.rotate(lanes, cosine, sine)
    assert 0.01 < (plain != fused).float().mean() < 0.5
    assert ((plain - fused).abs() <= 2.0**-23 * lanes.abs().amax()).all()


def test_rotating_backward_undoes_rotating_forward() -> None:
    q, positions = random(5, 3, 128, seed=1).bfloat16(), torch.tensor([0, 5, 64, 100, 127])
    back = copied(copied(q, positions), positions, inverse=True)
    assert (back.float() - q.float()).abs().max() <= 2.0**-6 * q.abs().max()
    assert torch.equal(back[..., :64], q[..., :64])


def test_without_positions_row_t_of_the_table_belongs_to_token_t() -> None:
    q, positions = random(3, 2, 128, seed=2).bfloat16(), torch.tensor([7, 0, 90])
    assert torch.equal(copied(q, None, freqs=TABLE[positions]), copied(q, positions))
    assert torch.equal(copied(q, positions.int()), copied(q, positions))


def test_a_padded_buffer_keeps_its_other_heads_and_q_itself_may_be_the_buffer() -> None:
    q, positions = random(3, 2, 128, seed=3).bfloat16(), torch.tensor([7, 0, 90])
    expected = copied(q, positions)
    buffer = torch.full((3, 5, 128), 7.0).bfloat16()
    rope_tail_copy(q, buffer[:, 1:3], TABLE, positions)
    assert torch.equal(buffer[:, 1:3], expected)
    assert buffer[:, [0, 3, 4]].unique().tolist() == [7.0]
    own = q.clone()
    rope_tail_copy(own, own, TABLE, positions)
    assert torch.equal(own, expected)


def test_fake_quantisation_works_on_the_rotated_lanes_rounded_to_bfloat16() -> None:
    x, positions = (3 * random(4, 2, 128, seed=4)).bfloat16(), torch.tensor([3, 0, 64, 127])
    turned = copied(x, positions).double().view(4, 2, 4, 32)
    got = rope_tail_fp4_fake_quant(x, TABLE, positions).double().view(4, 2, 4, 32)
    scale = 2.0 ** torch.ceil(torch.log2(turned.abs().amax(-1, keepdim=True) / 6))
    steps = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6], dtype=torch.float64)
    distance = ((turned / scale).abs()[..., None] - steps).abs()
    assert torch.equal(((turned - got) / scale).abs(), distance.amin(-1))


def test_positions_outside_the_table_count_as_zero() -> None:
    x = random(4, 16, 128, seed=5).bfloat16()
    outside, zero = torch.tensor([-1, 128, 2**31 - 1, -(2**31)]), torch.zeros(4, dtype=torch.int64)
    for dtype in (torch.int32, torch.int64):
        got = rope_tail_fp4_fake_quant(x, TABLE, outside.to(dtype))
        assert torch.equal(got, rope_tail_fp4_fake_quant(x, TABLE, zero))
        packed = index_q_rope_fp4_pack(x, TABLE, outside.to(dtype))
        assert torch.equal(packed[0], index_q_rope_fp4_pack(x, TABLE, zero)[0])


def test_the_sign_survives_rounding_to_zero_in_values_and_not_in_packed_codes() -> None:
    x = torch.full((1, 16, 128), -0.1)
    x[..., ::32] = 6.0
    still = torch.tensor([0])
    values = rope_tail_fp4_fake_quant(x.bfloat16(), TABLE, still)
    assert values[0, 0, 1].item() == 0 and values[0, 0, 1].signbit()
    assert index_q_rope_fp4_pack(x.bfloat16(), TABLE, still)[0][0, 0].tolist() == ([0x07] + [0] * 15) * 4


def test_scales_of_sixteen_lanes_are_e4m3_numbers() -> None:
    x = torch.zeros(1, 1, 128)
    x[..., :3] = torch.tensor([6 * 1.1875, 2.0, -0.01])
    got = rope_tail_fp4_fake_quant(x.bfloat16(), TABLE, torch.tensor([0]), scale="e4m3_16")
    # 1.1875 lies in the middle between the e4m3 values 1.125 and 1.25 and goes to the even one
    assert got[0, 0, :2].tolist() == [7.5, 1.875]
    assert got[0, 0, 2].signbit()


def test_packing_at_once_gives_other_bytes_for_a_largest_value_that_rounds_to_three() -> None:
    row = torch.full((1, 16, 128), 0.5).bfloat16()
    row[..., 0] = 3.25
    q_fp4, q_scale, _ = index_q_rope_fp4_pack(row, TABLE, torch.tensor([0]))
    assert q_fp4[0, 0, :2].tolist() == [39, 34] and q_scale[0, 0, 0, 0, 0].item() == 126
    payload, words = fp4_quantize_rows(row[0, :1])
    assert payload[0, :2].tolist() == [21, 17] and words.item() & 255 == 127


def test_one_group_in_eight_of_normal_values_is_packed_otherwise_at_once() -> None:
    x = random(4096, 1, 128, seed=6).bfloat16()
    still = torch.zeros(4096, dtype=torch.int64)
    twice = fp4_quantize_rows(rope_tail_fp4_fake_quant(x, TABLE, still).flatten(0, 1))[1]
    once = fp4_quantize_rows(x.flatten(0, 1))[1]
    differ = sum(((twice >> 8 * group & 255) != (once >> 8 * group & 255)).float().mean() for group in range(4)) / 4
    assert 0.11 < differ < 0.14


def test_packed_queries_decode_to_the_fake_quantised_values() -> None:
    q, positions = (3 * random(5, 48, 128, seed=7)).bfloat16(), torch.tensor([3, 0, 64, 127, 1])
    q_fp4, q_scale, weights = index_q_rope_fp4_pack(q, TABLE, positions)
    assert weights is None
    assert q_scale.shape == (5, 1, 4, 16, 4) and q_scale[..., 3].unique().tolist() == [0]
    values = e2m1_decode(unpack_nibbles(q_fp4))
    for head in range(48):
        scale = ue8m0_decode(q_scale[:, 0, :, head % 16, head // 16]).repeat_interleave(32, 1)
        assert torch.equal(
            values[:, head] * scale, rope_tail_fp4_fake_quant(q, TABLE, positions)[:, head].float() + 0.0
        )


def test_head_weights_are_rounded_before_and_after_the_factor() -> None:
    q = torch.zeros(2, 16, 128).bfloat16()
    partials = torch.zeros(3, 2, 16)
    partials[:, 0, 0] = torch.tensor([2.0**24, 1.0, -(2.0**24)])  # in this order the 1 is lost
    partials[:, 1, 3] = torch.tensor([1.0, 2.0**-8, 2.0**-20])  # just above the middle of two bfloat16 values
    weights = index_q_rope_fp4_pack(q, TABLE, torch.tensor([0, 0]), partials, 0.015625 * 1.01)[2]
    assert weights is not None and weights[0, 0].item() == 0
    assert weights[1, 3].item() == torch.tensor((1 + 2.0**-7) * 0.015625 * 1.01).bfloat16().item()


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: copied(torch.zeros(1, 2, 128).bfloat16(), torch.tensor([0.0])), "int32 or int64"),
        (
            lambda: rope_tail_copy(torch.zeros(1, 2, 128), torch.zeros(1, 3, 128), TABLE, None),
            r"wanted out of shape \[1, 2, 128\], got \[1, 3, 128\]",
        ),
        (lambda: rope_tail_fp4_fake_quant(torch.zeros(1, 2, 128), TABLE, None, scale="e4m3"), "got 'e4m3'"),
        (lambda: rope_tail_fp4_fake_quant(torch.zeros(1, 2, 80), TABLE[:1]), "groups of 32 lanes, got 80"),
        (lambda: index_q_rope_fp4_pack(torch.zeros(1, 24, 128), TABLE, torch.tensor([0])), "48 or 64 heads, got 24"),
        (lambda: index_q_rope_fp4_pack(torch.zeros(1, 80, 128), TABLE, torch.tensor([0])), "48 or 64 heads, got 80"),
    ],
)
def test_calls_outside_the_contract_are_refused(call: Any, text: str) -> None:
    with pytest.raises(ContractError, match=text):
        call()


@pytest.mark.parametrize("name", ["rope_tail_copy", "rope_tail_fp4_fake_quant", "index_q_rope_fp4_pack"])
def test_the_reference_meets_every_small_case(name: str) -> None:
    contract = get(name)
    assert check_numbers(contract, contract.reference) == []


def test_the_packed_queries_composed_of_their_parts_are_the_same() -> None:
    contract = get("index_q_rope_fp4_pack")
    assert contract.decomposition is not None
    ops = SimpleNamespace(**{part: get(part).reference for part in contract.decomposition.parts})

    def composed(*arguments: Any) -> Any:
        return contract.decomposition.compose(ops, *arguments)  # type: ignore[union-attr]

    assert check_numbers(contract, composed) == []
