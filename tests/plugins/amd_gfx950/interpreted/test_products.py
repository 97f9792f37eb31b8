"""Products of stored codes against their contracts' cases, cut as for the real device."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from triton.runtime.interpreter import InterpreterBuilder

from dspark_ops import contracts
from dspark_ops.conformance.numbers import check_numbers
from dspark_ops_amd_gfx950.paged_logits import paged_mqa_logits_fp4
from dspark_ops_amd_gfx950.projection import TILES, main_projection
from dspark_ops_triton.blocks.grid_product import splits_of

pytestmark = pytest.mark.skipif(
    not hasattr(InterpreterBuilder, "create_dot_scaled"), reason="the interpreter of this Triton has no dot_scaled"
)


def test_the_projection_passes_every_case_of_its_contract() -> None:
    assert check_numbers(contracts.get("main_projection"), main_projection) == []


@pytest.mark.parametrize("rows", [3, 40, 70])
def test_eight_parts_of_k_are_added_up(rows: int) -> None:
    generator = torch.Generator().manual_seed(rows)
    x = torch.randn(rows, 1024, generator=generator).bfloat16()
    weight = torch.randn(160, 1024, generator=generator).to(torch.float8_e4m3fn)
    scales = torch.randint(115, 124, (5, 32), generator=generator).to(torch.uint8)
    assert splits_of(TILES[0], 1024) == 8
    got = main_projection(x, weight, scales).float()
    wanted = contracts.get("main_projection").reference(x, weight, scales).float()
    assert (got - wanted).norm() <= 2e-3 * wanted.norm()
    assert (got - wanted).abs().max() <= 2.0**-7 * wanted.abs().max()


def test_the_order_of_sums_is_the_same_for_every_number_of_rows() -> None:
    assert len({(tiles.columns, tiles.depth, tiles.splits, tiles.instruction) for tiles in TILES}) == 1


def _with_32_heads(inputs: Mapping[str, Any]) -> Mapping[str, Any] | None:
    return inputs if inputs["q"].shape[2] == 32 else None


def test_logits_of_32_heads_pass_the_cases_of_their_contract() -> None:
    assert check_numbers(contracts.get("paged_mqa_logits_fp4"), paged_mqa_logits_fp4, adapt=_with_32_heads) == []
