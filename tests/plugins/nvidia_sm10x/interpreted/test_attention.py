"""The kernels around sparse attention against their contracts, with programs that meet as on the device."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch

from dspark_ops import contracts
from dspark_ops.conformance.numbers import check_numbers
from dspark_ops.contracts.rope import rope_table
from dspark_ops_nvidia_sm10x.q_rope_store import q_rope_store
from dspark_ops_nvidia_sm10x.rope_wo_a import RopeWoA, rope_wo_a, rope_wo_a_mxfp8
from dspark_ops_triton.blocks.arrival import ArrivalState


def inputs_of(tokens: int, positions: torch.dtype = torch.int64, padded: bool = False) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(tokens)
    o = torch.randn(tokens, 2, 4 * 64, generator=generator).bfloat16()
    if padded:
        wide = torch.full((tokens, 8, 4 * 64), float("nan")).bfloat16()
        wide[:, :2] = o
        o = wide[:, :2]
    weight = (0.05 * torch.randn(2, 128, 4 * 64, generator=generator)).bfloat16()
    places = torch.randint(0, 512, (tokens,), generator=generator).to(positions)
    return {"o": o, "weight": weight, "freqs": rope_table(16, 512, 10000.0), "positions": places, "head_dim": 64}


def with_whole_tiles(inputs: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the contract's case with as many columns as a tile of scale bytes needs."""
    weight = inputs["weight"]
    return {**inputs, "weight": weight.repeat(1, 128 // weight.shape[1] + 1, 1)[:, :128].contiguous()}


def test_the_projection_passes_the_cases_of_its_contract() -> None:
    assert check_numbers(contracts.get("rope_wo_a_mxfp8"), rope_wo_a_mxfp8, adapt=with_whole_tiles) == []


@pytest.mark.parametrize(("tokens", "dtype", "padded"), [(5, torch.int32, True), (17, torch.int64, False)])
def test_what_is_quantised_is_what_is_returned_and_padding_bytes_are_zero(
    tokens: int, dtype: torch.dtype, padded: bool
) -> None:
    inputs = inputs_of(tokens, dtype, padded)
    bound = RopeWoA(ArrivalState(0, torch.device("cpu")))
    y, q, scales = bound.mxfp8(**inputs)
    wanted = contracts.get("rope_wo_a").reference(**inputs).float()
    assert (y.float() - wanted).norm() <= 4e-3 * wanted.norm()
    codes, byte = contracts.get("mxfp8_quantize").reference(y)
    assert torch.equal(q.view(torch.uint8), codes.view(torch.uint8))
    assert torch.equal(scales, byte)
    assert torch.equal(bound.plain(**inputs), y), "the plain form, on the same words, gives the same bits"


def test_a_token_has_the_same_bits_alone_and_among_others() -> None:
    inputs = inputs_of(20)
    alone = {**inputs, "o": inputs["o"][:1], "positions": inputs["positions"][:1]}
    assert torch.equal(rope_wo_a(**inputs)[:1], rope_wo_a(**alone))


def test_the_projection_refuses_what_it_has_no_tile_for() -> None:
    with pytest.raises(ValueError, match="32 tokens"):
        rope_wo_a(**inputs_of(33))


def test_the_query_store_passes_every_case_bit_for_bit() -> None:
    for case in contracts.get("q_rope_store").cases("small", 3):
        mine, wanted = ({**case.inputs, "out": case.inputs["out"].clone()} for _ in range(2))
        q_rope_store(**mine)
        contracts.get("q_rope_store").reference(**wanted)
        assert torch.equal(mine["out"].view(torch.int16), wanted["out"].view(torch.int16)), case.name
