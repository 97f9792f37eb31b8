"""The mixing weights of a site: cases of the contract, one launch, words at rest, and each device function alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from triton.runtime.interpreter import InterpretedFunction

from dspark_ops import contracts
from dspark_ops.conformance.numbers import check_numbers
from dspark_ops.contracts.mhc import sinkhorn
from dspark_ops.selection.device import Device
from dspark_ops.selection.problem import Problem
from dspark_ops_triton.blocks.meeting import is_last_to_arrive
from dspark_ops_triton.blocks.sinkhorn import sigmoid, sinkhorn_factors
from dspark_ops_triton.blocks.split_products import dot_three_parts, three_parts
from dspark_ops_triton.mhc_mix import MixSinkhorn, mhc_mix_sinkhorn, prepare_mhc_mix_sinkhorn

CONTRACT = contracts.get("mhc_mix_sinkhorn")


def _bound() -> MixSinkhorn:
    site = CONTRACT.sites(contracts.model_shapes("deepseek-v4.1-flash/tp4"))[0]
    return prepare_mhc_mix_sinkhorn(Device.simulate("cpu"), Problem.at(CONTRACT, site), (1, 6))


def _inputs(tokens: int, hidden: int, seed: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    fn = torch.randn(24, 4 * hidden, generator=generator) * hidden**-0.5
    base = torch.randn(24, generator=generator)
    x = torch.randn(tokens, 4 * hidden, generator=generator).bfloat16()
    return {"x": x, "fn": fn, "scale": torch.tensor([0.7, 1.3, 2.0]), "base": base}


def test_every_case_of_the_contract_passes() -> None:
    assert check_numbers(CONTRACT, mhc_mix_sinkhorn) == []


def test_a_prepared_mix_is_one_launch_leaves_its_words_at_rest_and_serves_several_groups(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    launches: list[str] = []
    run = InterpretedFunction.run

    def count(self: Any, *arguments: Any, **options: Any) -> Any:
        launches.append(self.__name__)
        return run(self, *arguments, **options)

    monkeypatch.setattr(InterpretedFunction, "run", count)
    bound = _bound()
    for tokens, hidden in ((2, 192), (18, 300), (1, 5120), (0, 64)):  # fewer and more columns than a program takes
        inputs = _inputs(tokens, hidden, seed=tokens)
        for got, wanted in zip(bound(**inputs), CONTRACT.reference(**inputs), strict=True):
            assert got.shape == wanted.shape
            assert torch.allclose(got, wanted, rtol=0, atol=2e-6)
    assert launches == ["mix_kernel"] * 3
    assert all(not words.any() for words in bound._arrivals._streams.values())


@pytest.mark.parametrize("hidden", [160, 720])  # 3 and 12 programs share a token
def test_a_token_does_not_depend_on_the_others(hidden: int) -> None:
    inputs = _inputs(26, hidden, seed=3)
    together = mhc_mix_sinkhorn(**inputs)
    # Groups of 4, 4, 8 and 8 tokens, where the whole has groups of 16.
    for first, last in ((25, 26), (0, 5), (9, 18), (0, 24)):
        some = mhc_mix_sinkhorn(**{**inputs, "x": inputs["x"][first:last]})
        assert all(torch.equal(whole[first:last], part) for whole, part in zip(together, some, strict=True))


@triton.jit
def _sinkhorn_kernel(matrices, rows, columns, eps, iterations, LANES: tl.constexpr):
    lanes = tl.arange(0, LANES)
    elements = ()
    for index in tl.static_range(16):
        elements = elements + (tl.load(matrices + lanes * 16 + index),)  # noqa: RUF005
    factors = sinkhorn_factors(elements, eps, iterations, False)
    for index in tl.static_range(4):
        tl.store(rows + lanes * 4 + index, factors[index])
        tl.store(columns + lanes * 4 + index, factors[4 + index])


def _sinkhorn(logits: torch.Tensor, iterations: int, eps: float) -> torch.Tensor:
    matrices = logits.softmax(-1) + eps
    rows, columns = torch.empty(len(logits), 4), torch.empty(len(logits), 4)
    _sinkhorn_kernel[(1,)](matrices, rows, columns, eps, iterations, LANES=len(logits))
    return matrices * rows[:, :, None] * columns[:, None]


@pytest.mark.parametrize("iterations", [1, 2, 20])
def test_sinkhorn_is_the_contracts_with_columns_normalised_last(iterations: int) -> None:
    logits = torch.randn(8, 4, 4, generator=torch.Generator().manual_seed(4)) * 3
    out = _sinkhorn(logits, iterations, 1e-6)
    assert torch.allclose(out, sinkhorn(logits.double(), iterations, 1e-6).float(), rtol=0, atol=1e-6)
    assert torch.allclose(out.sum(1), torch.ones(8, 4), rtol=0, atol=1e-4)


@pytest.mark.parametrize("eps", [1e-6, 1e-3])
@pytest.mark.parametrize("magnitude", [50.0, 1e6])
def test_sinkhorn_stays_finite_and_right_for_extreme_logits(magnitude: float, eps: float) -> None:
    generator = torch.Generator().manual_seed(6)
    logits = torch.randn(1024, 4, 4, generator=generator)
    # Rows that want the same columns, and columns that no row wants.
    logits[:512] = torch.randint(0, 2, (512, 4, 4), generator=generator).float()
    for iterations in (2, 20, 100):
        out = _sinkhorn(logits * magnitude, iterations, eps)
        wanted = sinkhorn((logits * magnitude).double(), iterations, eps).float()
        assert torch.allclose(out, wanted, rtol=0, atol=1e-6)


def test_a_nan_stays_in_its_matrix() -> None:
    logits = torch.zeros(2, 4, 4)
    logits[0, 1, 2] = float("nan")
    out = _sinkhorn(logits, 20, 1e-6)
    assert out[0].isnan().all()
    assert torch.allclose(out[1], torch.full((4, 4), 0.25), rtol=0, atol=1e-5)


@triton.jit
def _sigmoid_kernel(x, out, LANES: tl.constexpr):
    lanes = tl.arange(0, LANES)
    tl.store(out + lanes, sigmoid(tl.load(x + lanes), False))


def test_the_sigmoid_keeps_a_nan_and_does_not_overflow() -> None:
    x = torch.tensor([float("nan"), -1e30, -5.0, 0.0, 5.0, 1e30, -80.0, 2.0])
    out = torch.empty(8)
    _sigmoid_kernel[(1,)](x, out, LANES=8)
    assert torch.allclose(out, x.double().sigmoid().float(), rtol=3e-7, atol=2e-35, equal_nan=True)


@triton.jit
def _meeting_kernel(written, counter, out, PARTS: tl.constexpr):
    program = tl.program_id(0)
    tl.store(written + program, program + 1)
    if is_last_to_arrive(counter, PARTS):
        tl.store(out, tl.sum(tl.load(written + tl.arange(0, PARTS))))


def test_the_last_program_sees_what_all_stored_and_leaves_the_counter_at_rest() -> None:
    counter, out = torch.zeros(1, dtype=torch.int64), torch.zeros(1, dtype=torch.int64)
    for _ in range(2):
        _meeting_kernel[(8,)](torch.zeros(8, dtype=torch.int64), counter, out, PARTS=8)
        assert (out.item(), counter.item()) == (36, 0)


@triton.jit
def _dot_kernel(a, b, out):
    lanes = tl.arange(0, 16)
    place = lanes[:, None] * 16 + lanes[None, :]
    lower, centre, upper = three_parts(tl.load(b + place))
    tl.store(out + place, dot_three_parts(tl.load(a + place), lower, centre, upper))


def test_three_parts_of_the_weights_lose_no_bit() -> None:
    weights = torch.randn(16, 16, generator=torch.Generator().manual_seed(5))
    out = torch.empty(16, 16)
    _dot_kernel[(1,)](torch.eye(16).bfloat16(), weights, out)
    assert torch.equal(out, weights)
