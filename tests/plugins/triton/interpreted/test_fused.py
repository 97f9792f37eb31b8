"""The kernels that end in a quantisation, against the cases of their contracts and against their parts."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from triton.runtime.interpreter import InterpretedFunction

from dspark_ops import contracts
from dspark_ops.binding.facts import facts_of
from dspark_ops.binding.targets import resolve
from dspark_ops.conformance.numbers import check_numbers
from dspark_ops.contracts import Case, Contract
from dspark_ops_triton.activation import silu_mul_clamp
from dspark_ops_triton.activation_grid import silu_mul_clamp_fp8_grid, silu_mul_clamp_mxfp8
from dspark_ops_triton.blocks import index_query
from dspark_ops_triton.blocks.cutting import Cut
from dspark_ops_triton.index_query import index_q_rope_fp4_pack
from dspark_ops_triton.kernels_fused import KERNELS
from dspark_ops_triton.mhc_post_combine import mhc_post_combine_norm
from dspark_ops_triton.mhc_post_grid import mhc_post_combine_norm_fp8_grid
from dspark_ops_triton.rope_wo_a_mxfp8 import rope_wo_a_mxfp8

OPERATORS = {kernel.op: kernel for kernel in KERNELS}
#: Of the cases that are the same form at several sizes, one in so many is looked at here.
THINNED = {
    "silu_mul_clamp_mxfp8": 3,
    "silu_mul_clamp_fp8_grid": 2,
    "mhc_post_combine_norm_fp8_grid": 3,
    "index_q_rope_fp4_pack": 4,
}
#: As shipped, or with larger programs, of which the interpreter needs fewer: a cut changes no bit.
FEWER_PROGRAMS = {"index_q_rope_fp4_pack": partial(index_query.index_q_rope_fp4_pack, Cut(items=16, warps=4))}


def _function(op: str) -> Any:
    return resolve(OPERATORS[op].target, op, op)


def _rows_of(op: str) -> str:
    """Return the first argument that has a row per row of a call."""
    contract = contracts.get(op)
    return contract.parameters[contract.rows_from[0]].name


def _some_rows(op: str, inputs: dict[str, Any], rows: slice) -> dict[str, Any]:
    """Return the inputs of some of a call's rows."""
    contract = contracts.get(op)
    cut = dict(inputs)
    for argument in contract.arguments:
        value = inputs.get(argument.name)
        if value is not None and contract.rows in argument.shape:
            index = (slice(None),) * argument.shape.index(contract.rows)
            part = value[(*index, rows)]
            cut[argument.name] = part.contiguous() if index else part
    return cut


def _few(op: str, inputs: Any) -> dict[str, Any]:
    """Return the inputs with at most three rows: every one is a program or several."""
    return _some_rows(op, dict(inputs), slice(3))


def _largest(op: str, seed: int) -> dict[str, Any]:
    cases = (_few(op, case.inputs) for case in contracts.get(op).cases("small", seed))
    return max(cases, key=lambda inputs: len(inputs[_rows_of(op)]))


def _same(got: torch.Tensor | None, wanted: torch.Tensor | None) -> bool:
    """Whether two outputs are equal to the bit."""
    if got is None or wanted is None:
        return got is wanted
    return torch.equal(got.contiguous().view(torch.uint8), wanted.contiguous().view(torch.uint8))


def _is_special(case: Case) -> bool:
    return case.name.startswith(("no rows", "groups", "tokens", "no tokens"))


@pytest.mark.parametrize("op", OPERATORS)
def test_a_kernel_passes_the_cases_of_its_contract(op: str, thinned: Callable[..., Contract]) -> None:
    contract, left_out = thinned(op, THINNED.get(op, 1), _is_special), []

    def inside(inputs: Any) -> Any:
        facts = facts_of(contracts.get(op), inputs)
        if any(constraint.check(facts) for constraint in OPERATORS[op].region):
            left_out.append(inputs)
            return None
        return _few(op, inputs)

    assert check_numbers(contract, FEWER_PROGRAMS.get(op) or _function(op), adapt=inside) == []
    assert left_out == []


@pytest.mark.parametrize("op", OPERATORS)
def test_a_call_is_one_launch_and_none_for_no_rows(op: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    run = InterpretedFunction.run

    def count(self: Any, *arguments: Any, **options: Any) -> Any:
        seen.append(self.__name__)
        return run(self, *arguments, **options)

    monkeypatch.setattr(InterpretedFunction, "run", count)
    inputs = dict(next(iter(contracts.get(op).cases("small", 1))).inputs)
    _function(op)(**inputs)
    assert len(seen) == 1
    empty = _function(op)(**_some_rows(op, inputs, slice(0)))
    assert len(seen) == 1
    wanted = contracts.get(op).reference(**_some_rows(op, inputs, slice(0)))
    assert [None if value is None else value.shape for value in empty] == [
        None if value is None else value.shape for value in wanted
    ]
    assert OPERATORS[op].note.startswith("1 launch")


@pytest.mark.parametrize("op", OPERATORS)
def test_a_row_does_not_depend_on_the_others(op: str) -> None:
    inputs = _largest(op, seed=2)
    together = (FEWER_PROGRAMS.get(op) or _function(op))(**inputs)
    alone = _function(op)(**_some_rows(op, inputs, slice(2, 3)))
    for output, whole, one in zip(contracts.get(op).outputs, together, alone, strict=True):
        if one is not None and output.shape[0] == contracts.get(op).rows:
            assert _same(whole[2:3], one)


def test_the_activation_is_that_of_the_plain_kernel_and_rarely_the_value_next_to_the_contracts() -> None:
    inputs = _largest("silu_mul_clamp_mxfp8", seed=3)
    plain = silu_mul_clamp(**inputs)
    assert _same(silu_mul_clamp_mxfp8(**inputs)[0], plain)
    assert _same(silu_mul_clamp_fp8_grid(**inputs)[0], plain)
    right = contracts.get("silu_mul_clamp").reference(**inputs)
    steps = (right.view(torch.int16).int() - plain.view(torch.int16).int()).abs()
    assert steps.max() <= 1
    assert (steps > 0).float().mean() < 1e-3


@pytest.mark.parametrize("function", [silu_mul_clamp_mxfp8, silu_mul_clamp_fp8_grid])
def test_halves_that_are_no_whole_groups_are_refused(function: Any) -> None:
    with pytest.raises(ValueError, match="whole groups of 32 columns, got 96 columns in all"):
        function(torch.zeros(1, 96).bfloat16())


def test_the_stream_update_is_that_of_the_kernel_without_the_grid() -> None:
    inputs = _largest("mhc_post_combine_norm_fp8_grid", seed=4)
    wanted = mhc_post_combine_norm(**inputs)
    assert all(map(_same, mhc_post_combine_norm_fp8_grid(**inputs)[:3], wanted))
    wide = {"x": (1, 320), "residual": (1, 4, 320), "post": (1, 4), "comb": (1, 4, 4), "pre": (1, 4), "weight": (320,)}
    generator = torch.Generator().manual_seed(5)
    inputs = {name: torch.randn(shape, generator=generator) for name, shape in wide.items()}
    inputs |= {name: inputs[name].bfloat16() for name in ("x", "residual", "weight")}
    outputs = mhc_post_combine_norm_fp8_grid(**inputs)  # 320 lanes are a block of 256 and one of 64
    assert all(map(_same, outputs[:3], mhc_post_combine_norm(**inputs)))
    assert _same(outputs[3], contracts.get("fp8_grid_round").reference(outputs[2]))
    with pytest.raises(ValueError, match="whole groups of 32, got 48"):
        mhc_post_combine_norm_fp8_grid(**{**inputs, "residual": torch.zeros(1, 4, 48).bfloat16()})


@pytest.mark.parametrize(("heads", "lanes", "rope"), [(48, 96, 64), (16, 64, 2), (16, 32, 32)])
def test_heads_of_any_number_of_whole_groups_are_packed_to_the_bytes_of_their_parts(
    heads: int, lanes: int, rope: int
) -> None:
    generator = torch.Generator().manual_seed(6)
    q = (3 * torch.randn(2, heads, lanes, generator=generator)).bfloat16()
    inputs = (q, torch.randn(5, rope, generator=generator), torch.tensor([4, 3]))
    inputs += (torch.randn(6, 2, heads, generator=generator), 0.3)
    for got, wanted in zip(
        index_q_rope_fp4_pack(*inputs), contracts.get("index_q_rope_fp4_pack").reference(*inputs), strict=True
    ):
        assert _same(got, wanted)


def test_queries_that_cannot_be_packed_are_refused() -> None:
    for shape, got in (((1, 24, 128), "24 of 128 lanes"), ((1, 16, 160), "16 of 160 lanes")):
        with pytest.raises(ValueError, match=f"wanted 16, 32, 48 or 64 heads .*, got {got}, 64 rotated"):
            index_q_rope_fp4_pack(torch.zeros(shape).bfloat16(), torch.zeros(1, 64), torch.zeros(1).int())


@pytest.mark.parametrize(
    ("tokens", "groups", "rank"),
    [
        pytest.param(3, 2, 64, id="whole scale groups"),
        pytest.param(130, 1, 96, id="three blocks of tokens, a group of padding"),
        pytest.param(20, 3, 32, id="a group of padding behind those of the last group of the weight"),
        pytest.param(290, 1, 32, id="two launches"),
        pytest.param(2, 2, 48, id="a scale group across two groups of the weight"),
        pytest.param(2, 32, 3, id="a scale group across a dozen groups of the weight"),
    ],
)
def test_the_projection_is_quantised_wherever_its_scale_groups_lie(tokens: int, groups: int, rank: int) -> None:
    generator = torch.Generator().manual_seed(7)
    lanes, width = 64, groups * rank
    o = torch.randn(tokens, groups, lanes, generator=generator).bfloat16()
    spread = torch.logspace(-2, 2, width).view(groups, rank, 1)
    weight = (spread * torch.randn(groups, rank, lanes, generator=generator)).bfloat16()
    inputs = (
        o,
        weight,
        torch.randn(9, 8, generator=generator),
        torch.randint(0, 9, (tokens,), generator=generator),
        32,
    )
    y, q, scales = rope_wo_a_mxfp8(*inputs)
    wanted = contracts.get("rope_wo_a").reference(*inputs).double()
    columns = (y.double() - wanted).norm(dim=0) / wanted.norm(dim=0)
    assert columns.max() <= 1e-2, "of each column, however small beside others"
    wanted_q, wanted_scales = contracts.get("mxfp8_quantize").reference(y)
    assert _same(q, wanted_q)
    assert _same(scales, wanted_scales)


def test_a_group_of_the_weight_does_not_see_what_is_not_finite_in_the_lanes_of_another() -> None:
    o, weight = torch.ones(1, 2, 32).bfloat16(), torch.ones(2, 16, 32).bfloat16()
    o[:, 1] = torch.nan
    freqs = torch.tensor([[1.0, 0.0]])
    y, _, _ = rope_wo_a_mxfp8(o, weight, freqs, torch.zeros(1).int(), 32)
    assert y[0, :16].tolist() == [32.0] * 16
    assert y[0, 16:].isnan().all()


def test_projections_that_do_not_fit_are_refused() -> None:
    freqs, position = torch.zeros(1, 8), torch.zeros(1).int()
    for head_dim, rank in ((24, 32), (128, 32), (32, 40)):
        with pytest.raises(ValueError, match=f"got 64 lanes in heads of {head_dim}, 8 rotated, and {rank} columns"):
            rope_wo_a_mxfp8(torch.zeros(1, 1, 64), torch.zeros(1, rank, 64), freqs, position, head_dim)
