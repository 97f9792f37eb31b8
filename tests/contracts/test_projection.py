"""Quantising projections: MXFP8 of the output projection, and the drafter's main projection."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace

import pytest
import torch

from dspark_ops.conformance.numbers import check_numbers
from dspark_ops.contracts import get
from dspark_ops.contracts.projection import main_projection, rope_wo_a_mxfp8
from dspark_ops.contracts.quantize import mxfp8_quantize
from dspark_ops.contracts.rope import rope_table, rope_wo_a
from dspark_ops.contracts.scale_layouts import SF_128X4
from dspark_ops.errors import ContractError

TABLE = rope_table(8, 64, 10000.0)


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("rows", [1, 4, 17, 32])
def test_wo_a_in_mxfp8_is_the_quantised_bfloat16_form_with_zero_padding(rows: int) -> None:
    o, weight = random(rows, 2, 64).bfloat16(), (0.05 * random(2, 1024, 64, seed=1)).bfloat16()
    positions = torch.arange(rows)
    y, q, scales = rope_wo_a_mxfp8(o, weight, TABLE, positions, 32)
    assert torch.equal(y, rope_wo_a(o, weight, TABLE, positions, 32))
    codes, linear = mxfp8_quantize(y, "sf_linear")
    assert torch.equal(q.view(torch.uint8), codes.view(torch.uint8))
    assert scales.numel() == 8192
    assert torch.equal(SF_128X4.unpack(scales, rows, 64).flatten(), linear)
    assert int((scales != 0).sum()) == 64 * rows


def test_wo_a_in_mxfp8_takes_both_position_dtypes_and_heads_of_a_padded_buffer() -> None:
    o, weight = random(6, 8, 64).bfloat16()[:, :2], random(2, 16, 64, seed=1).bfloat16()
    positions = torch.tensor([0, 5, 63, 7, 7, 1])
    wide = rope_wo_a_mxfp8(o, weight, TABLE, positions, 32)
    narrow = rope_wo_a_mxfp8(o.contiguous(), weight, TABLE, positions.int(), 32)
    assert all(torch.equal(a.view(torch.uint8), b.view(torch.uint8)) for a, b in zip(wide, narrow, strict=True))


def test_wo_a_in_mxfp8_of_no_rows_has_no_scales() -> None:
    none = torch.empty(0, dtype=torch.int64)
    y, q, scales = rope_wo_a_mxfp8(random(0, 2, 64).bfloat16(), random(2, 16, 64).bfloat16(), TABLE, none, 32)
    assert (y.shape, q.shape, scales.shape) == ((0, 32), (0, 32), (0,))


def test_each_block_of_32_by_32_weights_has_its_own_scale() -> None:
    weight = random(64, 96).to(torch.float8_e4m3fn)
    scales = torch.tensor([[127, 120, 130], [125, 127, 126]], dtype=torch.uint8)
    got = main_projection(torch.eye(96).bfloat16(), weight, scales)
    for column in range(96):
        for row in (0, 31, 32, 63):
            exponent = scales[row // 32, column // 32].item() - 127
            assert got[column, row].item() == weight[row, column].float().item() * 2.0**exponent


def test_activations_are_rounded_to_the_grid_of_their_32_columns() -> None:
    x = torch.zeros(1, 64)
    x[0, 0], x[0, 1] = 448.0, 17.0  # in the middle between the codes 16 and 18: the even one is 16
    x[0, 32], x[0, 33] = 448 * 2.0**-14, 2.0**-14  # the same codes at a finer scale
    weight = torch.zeros(32, 64)
    weight[1, 1], weight[2, 33] = 1.0, 1.0
    ones = torch.full((1, 2), 127, dtype=torch.uint8)
    got = main_projection(x.bfloat16(), weight.to(torch.float8_e4m3fn), ones)
    assert got[0, :3].tolist() == [0.0, 16.0, 2.0**-14]


def test_groups_below_the_floor_of_the_grid_count_as_zeros() -> None:
    weight, ones = torch.ones(32, 32).to(torch.float8_e4m3fn), torch.full((1, 1), 127, dtype=torch.uint8)
    assert main_projection(torch.full((1, 32), 1e-20).bfloat16(), weight, ones).abs().max().item() == 0
    assert main_projection(torch.full((1, 32), 1e-9).bfloat16(), weight, ones).min().item() > 3e-8


def test_the_projection_is_within_the_stated_tolerance_of_float64_before_rounding() -> None:
    x, weight = random(24, 1536).bfloat16(), random(256, 1536, seed=1).to(torch.float8_e4m3fn)
    scales = torch.randint(115, 124, (8, 48), generator=torch.Generator().manual_seed(2)).to(torch.uint8)
    got = main_projection(x, weight, scales).double()
    amax = x.double().view(24, 48, 32).abs().amax(-1, keepdim=True)
    scale = 2.0 ** torch.ceil(torch.log2(amax / 448))
    grid = ((x.double().view(24, 48, 32) / scale).float().to(torch.float8_e4m3fn).double() * scale).view(24, 1536)
    factors = 2.0 ** (scales.double() - 127)
    exact = grid @ (weight.double() * factors.repeat_interleave(32, 0).repeat_interleave(32, 1)).t()
    assert ((got - exact).abs() <= 2.0**-8 * exact.abs() + 1e-3 * exact.square().mean().sqrt()).all()
    assert torch.nn.functional.cosine_similarity(got.flatten(), exact.flatten(), 0) > 0.9999


def test_a_row_of_the_projection_is_the_same_alone_and_in_a_batch() -> None:
    x, weight = random(13, 384).bfloat16(), random(64, 384, seed=1).to(torch.float8_e4m3fn)
    scales = torch.full((2, 12), 120, dtype=torch.uint8)
    together = main_projection(x, weight, scales)
    assert torch.equal(together, torch.cat([main_projection(row[None], weight, scales) for row in x]))


@pytest.mark.parametrize(
    ("columns", "weight", "scales"),
    [(64, (32, 96), (1, 3)), (96, (32, 96), (3, 1)), (96, (48, 96), (1, 3)), (80, (32, 80), (1, 2))],
)
def test_parameters_that_do_not_fit_are_refused_with_their_shapes(
    columns: int, weight: tuple[int, int], scales: tuple[int, int]
) -> None:
    with pytest.raises(ContractError, match=r"wanted x \[M, K\], weight \[N, K\] and scales"):
        main_projection(
            torch.zeros(1, columns).bfloat16(),
            torch.zeros(weight).to(torch.float8_e4m3fn),
            torch.zeros(scales, dtype=torch.uint8),
        )


@pytest.mark.parametrize("name", ["rope_wo_a_mxfp8", "main_projection"])
def test_the_reference_and_its_parts_meet_every_small_case(name: str) -> None:
    contract = get(name)
    assert check_numbers(contract, contract.reference) == []
    if contract.decomposition is not None:
        ops = SimpleNamespace(**{part: get(part).reference for part in contract.decomposition.parts})
        assert check_numbers(contract, partial(contract.decomposition.compose, ops)) == []
