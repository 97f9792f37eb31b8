"""Rotary embedding: the table, both directions, the roundings, and what must stay untouched."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
import torch

from dspark_ops.contracts import get, rope
from dspark_ops.errors import ContractError

YARN = rope.YarnScaling(factor=16, original_positions=65536)


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def test_table_is_interleaved_cosine_and_sine_in_float32() -> None:
    table = rope.rope_table(64, 32, 10000.0)
    assert table.shape == (32, 64) and table.dtype == torch.float32
    assert table[0].tolist() == [1.0, 0.0] * 32
    for position, pair in ((1, 0), (7, 3), (31, 31)):
        angle = position * 10000.0 ** (-2 * pair / 64)
        assert math.isclose(table[position, 2 * pair].item(), math.cos(angle), abs_tol=2e-6)
        assert math.isclose(table[position, 2 * pair + 1].item(), math.sin(angle), abs_tol=2e-6)


def test_yarn_ramp_of_the_compressed_layers_runs_from_pair_15_to_pair_25() -> None:
    assert rope.yarn_bounds(64, 160000.0, YARN) == (15, 25)


def test_yarn_keeps_fast_pairs_divides_slow_ones_and_blends_between() -> None:
    plain, scaled = rope.rope_table(64, 2, 160000.0), rope.rope_table(64, 2, 160000.0, YARN)
    angle, scaled_angle = plain[1, 1::2].double().asin(), scaled[1, 1::2].double().asin()
    ratio = angle[1:] / scaled_angle[1:]  # pair 0 turns past the range of asin
    assert torch.allclose(ratio[:15], torch.ones(15).double(), rtol=1e-5)
    assert torch.allclose(ratio[24:], torch.full((7,), 16.0).double(), rtol=1e-5)
    assert torch.allclose(ratio[19], torch.tensor(1 / (0.5 / 16 + 0.5)).double(), rtol=1e-5)


def test_yarn_is_read_from_the_keys_of_a_config() -> None:
    keys = {"type": "yarn", "factor": 16, "original_max_position_embeddings": 65536, "beta_fast": 32, "beta_slow": 1}
    assert rope.YarnScaling.from_config(keys) == YARN


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_adjacent_pairs_are_rotated_forward_and_backward_by_the_golden_angles(dtype: torch.dtype) -> None:
    cosine, sine = rope.rotations(rope.rope_table(4, 16, 10000.0), torch.tensor([0, 1], dtype=dtype))
    lanes = torch.tensor([1.0, 2.0, 3.0, 4.0]).expand(2, 4)
    forward, backward = rope.rotate(lanes, cosine, sine), rope.rotate_inverse(lanes, cosine, sine)
    assert torch.equal(forward[0], lanes[0]) and torch.equal(backward[0], lanes[0])
    expected = torch.tensor([-1.142640, 1.922076, 2.959851, 4.029800])
    torch.testing.assert_close(forward[1], expected, rtol=0, atol=1e-6)
    expected = torch.tensor([2.223244, 0.239134, 3.039849, 3.969801])
    torch.testing.assert_close(backward[1], expected, rtol=0, atol=1e-6)
    torch.testing.assert_close(rope.rotate_inverse(forward, cosine, sine), lanes, rtol=0, atol=1e-6)


def test_query_store_copies_plain_lanes_bit_for_bit_and_leaves_padding_heads_and_input_alone() -> None:
    head = torch.tensor([9.0, 8, 7, 6, 1, 2, 3, 4]).bfloat16()
    q = head.repeat(2, 1, 1)
    before, out = q.clone(), torch.full((2, 3, 8), 7.0).bfloat16()
    rope.q_rope_store(q, out, rope.rope_table(4, 16, 10000.0), torch.tensor([5, 9]))
    assert torch.equal(out[:, 0, :4], q[:, 0, :4])
    assert torch.equal(out[:, 1:], torch.full((2, 2, 8), 7.0).bfloat16())
    assert torch.equal(q, before)
    first = complex(1, 2) * complex(math.cos(5), math.sin(5))
    torch.testing.assert_close(out[0, 0, 4:6].float(), torch.tensor([first.real, first.imag]), rtol=2**-8, atol=0)


def test_both_position_dtypes_give_the_same_bits() -> None:
    q, positions, table = random(2, 3, 64).bfloat16(), torch.tensor([5, 9]), rope.rope_table(16, 16, 10000.0)
    wide, narrow = torch.zeros(2, 3, 64).bfloat16(), torch.zeros(2, 3, 64).bfloat16()
    rope.q_rope_store(q, wide, table, positions)
    rope.q_rope_store(q, narrow, table, positions.int())
    assert torch.equal(wide, narrow)


@pytest.mark.parametrize("dtype", [torch.int16, torch.float32, torch.uint8])
def test_positions_of_another_dtype_are_refused(dtype: torch.dtype) -> None:
    q, table = torch.zeros(1, 1, 8).bfloat16(), rope.rope_table(4, 4, 10000.0)
    with pytest.raises(ContractError, match="wanted positions of int32 or int64"):
        rope.q_rope_store(q, q.clone(), table, torch.zeros(1, dtype=dtype))
    with pytest.raises(ContractError, match="wanted positions of int32 or int64"):
        rope.rope_wo_a(q, torch.zeros(1, 2, 8).bfloat16(), table, torch.zeros(1, dtype=dtype), 8)


def test_a_buffer_with_fewer_heads_is_refused_before_it_is_written() -> None:
    out = torch.full((1, 1, 8), 7.0).bfloat16()
    with pytest.raises(ContractError, match="at least 2 heads, got 1"):
        rope.q_rope_store(torch.zeros(1, 2, 8).bfloat16(), out, rope.rope_table(4, 4, 10000.0), torch.tensor([0]))
    assert out.unique().item() == 7.0


def _single(value: Fraction) -> Fraction:
    return Fraction(torch.tensor(float(value), dtype=torch.float64).float().item())


def test_the_inner_product_of_each_rotation_is_rounded_first() -> None:
    lanes, angle = random(200, 2).bfloat16().float(), random(200, seed=1)
    cosine, sine = angle.cos()[:, None], angle.sin()[:, None]
    forward, backward = rope.rotate(lanes, cosine, sine).tolist(), rope.rotate_inverse(lanes, cosine, sine).tolist()
    for row in range(200):
        a, b = (Fraction(value) for value in lanes[row].tolist())
        c, s = Fraction(cosine[row].item()), Fraction(sine[row].item())
        turned = [_single(a * c - _single(b * s)), _single(a * s + _single(b * c))]
        assert [Fraction(value) for value in forward[row]] == turned
        turned = [_single(a * c + _single(b * s)), _single(b * c - _single(a * s))]
        assert [Fraction(value) for value in backward[row]] == turned


def test_wo_a_rounds_the_unrotated_lanes_before_the_product_and_keeps_groups_apart() -> None:
    table, positions = rope.rope_table(8, 64, 10000.0), torch.tensor([3, 40, 63])
    o, weight = random(3, 2, 64).bfloat16(), random(2, 5, 64, seed=1).bfloat16()
    got = rope.rope_wo_a(o, weight, table, positions, head_dim=32)
    heads = o.reshape(3, 4, 32).clone()
    cosine, sine = rope.rotations(table, positions)
    heads[..., 24:] = rope.rotate_inverse(heads[..., 24:], cosine[:, None], sine[:, None]).bfloat16()
    exact = torch.cat([heads.reshape(3, 2, 64)[:, g].double() @ weight[g].double().t() for g in range(2)], 1)
    assert got.shape == (3, 10)
    assert torch.equal(got, exact.float().bfloat16())


def test_wo_a_undoes_the_rotation_of_the_query_store() -> None:
    table, positions = rope.rope_table(8, 64, 10000.0), torch.tensor([11, 50])
    q, rotated = random(2, 1, 32).bfloat16(), torch.zeros(2, 1, 32).bfloat16()
    rope.q_rope_store(q, rotated, table, positions)
    got = rope.rope_wo_a(rotated, torch.eye(32).bfloat16()[None], table, positions, head_dim=32)
    torch.testing.assert_close(got.float(), q[:, 0].float(), rtol=2**-6, atol=2**-6)


def test_wo_a_of_a_row_is_the_same_alone_and_in_a_batch() -> None:
    table, positions = rope.rope_table(64, 128, 10000.0), torch.arange(13)
    o, weight = random(13, 2, 1024).bfloat16(), random(2, 32, 1024, seed=1).bfloat16()
    together = rope.rope_wo_a(o, weight, table, positions)
    alone = [rope.rope_wo_a(o[row : row + 1], weight, table, positions[row : row + 1]) for row in range(13)]
    assert torch.equal(together, torch.cat(alone))


@pytest.mark.parametrize("name", ["q_rope_store", "rope_wo_a"])
def test_every_small_case_runs_and_meets_its_golden_values(name: str) -> None:
    contract = get(name)
    for case in contract.cases("small", 0):
        got = contract.reference(**case.inputs)
        outputs = {"out": case.inputs["out"]} if got is None else {"output": got}
        assert all(value.isfinite().all() for value in outputs.values()), case.name
        for key, value in case.expected.items():
            assert torch.equal(outputs[key], value), case.name
