"""The router gate, its packed form and the packing against their contracts' cases, and the choice among groups."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from triton.runtime.interpreter import InterpretedFunction

from dspark_ops import contracts
from dspark_ops.conformance.numbers import check_numbers
from dspark_ops.contracts.ordering import order_by_score
from dspark_ops_triton.blocks.choosing import best_of_row, rank_key, side_by_side
from dspark_ops_triton.moe_gate import moe_gate_topk, moe_gate_topk_packed
from dspark_ops_triton.moe_pack import pack_topk_ids

NAN, INF = float("nan"), float("inf")


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    seen: list[str] = []
    run = InterpretedFunction.run

    def count(self: Any, *arguments: Any, **options: Any) -> Any:
        seen.append(self.__name__)
        return run(self, *arguments, **options)

    monkeypatch.setattr(InterpretedFunction, "run", count)
    return seen


def _few_rows(inputs: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the inputs with one row, or with the two between which padding begins or the bias changes."""
    rows = len(inputs["logits"])
    if rows <= 2:
        return inputs
    if "num_valid" in inputs:
        first = min(max(int(inputs["num_valid"]) - 1, 0), rows - 2)
        count = inputs["num_valid"] - first
        return {**inputs, "logits": inputs["logits"][first : first + 2], "num_valid": count}
    if "input_ids" in inputs:
        return {**inputs, "logits": inputs["logits"][-2:], "input_ids": inputs["input_ids"][-2:]}
    return {**inputs, "logits": inputs["logits"][-1:]}


def _log1p(inputs: Mapping[str, Any]) -> bool:
    """Return whether a call asks for the numerics of the kernels' region."""
    return inputs.get("numerics", "log1p") == "log1p"


def test_every_case_of_the_gate_passes() -> None:
    def own(inputs: Mapping[str, Any]) -> Mapping[str, Any] | None:
        return _few_rows(inputs) if _log1p(inputs) else None

    assert check_numbers(contracts.get("moe_gate_topk"), moe_gate_topk, adapt=own) == []


def test_every_case_of_few_rows_of_the_packed_gate_passes() -> None:
    def one(inputs: Mapping[str, Any]) -> Mapping[str, Any] | None:
        return inputs if len(inputs["logits"]) <= 1 and _log1p(inputs) else None

    assert check_numbers(contracts.get("moe_gate_topk_packed"), moe_gate_topk_packed, adapt=one) == []


def test_every_case_of_the_packing_passes() -> None:
    assert check_numbers(contracts.get("pack_topk_ids"), pack_topk_ids) == []


def test_each_is_one_launch_and_none_for_no_rows(launches: list[str]) -> None:
    for rows in (2, 0):
        logits, bias = torch.zeros(rows, 16), torch.zeros(16)
        weights, ids = moe_gate_topk(logits, bias, 2)
        assert moe_gate_topk_packed(logits, bias, 2)[2].shape == (rows, 2)
        assert pack_topk_ids(ids, weights).shape == (rows, 2)
    assert launches == ["gate_kernel", "gate_kernel", "pack_kernel"]


@pytest.mark.parametrize(("experts", "top_k"), [(1, 1), (16, 16), (512, 16), (511, 9), (40, 5)])
def test_any_number_of_experts_and_choices_of_the_region_is_served(experts: int, top_k: int) -> None:
    generator = torch.Generator().manual_seed(experts)
    logits = torch.randn(2, experts, generator=generator).mul(2).round()
    bias = torch.randn(experts, generator=generator).mul(2).round()
    weights, ids, packed = moe_gate_topk_packed(logits, bias, top_k)
    wanted = contracts.get("moe_gate_topk").reference(logits, bias, top_k)
    assert torch.equal(ids, wanted[1])
    assert torch.allclose(weights, wanted[0], rtol=1e-6, atol=0)
    assert torch.equal(packed, contracts.get("pack_topk_ids").reference(ids, weights))


def test_a_row_with_few_live_experts_never_repeats_one() -> None:
    logits = torch.full((1, 384), -INF)
    logits[0, 300] = 1.0
    _, ids = moe_gate_topk(logits, torch.full((384,), -INF), 6)
    assert ids.tolist() == [[0, 1, 2, 3, 4, 5]]


@triton.jit
def _choose_kernel(x, places, columns, scores, TOP: tl.constexpr, SLOTS: tl.constexpr, DEPTH: tl.constexpr):
    keys, with_keys, held = (), (), ()
    for block in tl.static_range(DEPTH):
        column = block * 128 + tl.arange(0, 4)[:, None] * 32 + tl.arange(0, 32)[None, :]
        keys = keys + (rank_key(tl.load(x + column)),)  # noqa: RUF005
        with_keys, held = with_keys + (column + 1000,), held + (column,)  # noqa: RUF005
    place, chosen, score = best_of_row(keys, with_keys, held, TOP, SLOTS)
    slot = tl.arange(0, SLOTS)[None, :]
    lane = tl.arange(0, 4)[:, None] * TOP + slot
    tl.store(places + lane, side_by_side(place, SLOTS), mask=slot < TOP)
    tl.store(columns + lane, side_by_side(chosen, SLOTS), mask=slot < TOP)
    tl.store(scores + lane, side_by_side(score, SLOTS), mask=slot < TOP)


@pytest.mark.parametrize(("top", "slots", "depth"), [(6, 8, 2), (16, 16, 1), (1, 1, 3)])
def test_the_best_of_a_row_know_their_places_and_what_goes_with_them(top: int, slots: int, depth: int) -> None:
    generator = torch.Generator().manual_seed(top)
    special = torch.tensor([NAN, INF, -INF, 0.0, -0.0, 1e-45, -1e-45, 3.0, -3.0])
    for _ in range(4):
        x = special[torch.randint(9, (depth * 128,), generator=generator)]
        places, columns, scores = torch.empty(3, 4 * top, dtype=torch.int32).unbind(0)
        _choose_kernel[(1,)](x, places, columns, scores, TOP=top, SLOTS=slots, DEPTH=depth)
        wanted = order_by_score(torch.where(x.isnan(), INF, x)[None])[0, :top]
        assert (places < top).sum() == top
        order = places.argsort()[:top]
        assert columns[order].tolist() == wanted.tolist()
        assert scores[order].tolist() == (wanted + 1000).tolist()
