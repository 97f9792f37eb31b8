"""The kernels that put values on the fp8 and fp4 grids, against the cases of their contracts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from triton.runtime.interpreter import InterpretedFunction

from dspark_ops import contracts
from dspark_ops.binding.facts import facts_of
from dspark_ops.binding.targets import resolve
from dspark_ops.conformance.numbers import check_numbers
from dspark_ops.contracts import numerics
from dspark_ops_triton.blocks import codes
from dspark_ops_triton.blocks.fp4_packing import cut_of
from dspark_ops_triton.fp4_rows import CUTS, fp4_quantize_rows
from dspark_ops_triton.kernels_grids import KERNELS

OPERATORS = {kernel.op: kernel for kernel in KERNELS}


def _function(op: str) -> Any:
    return resolve(OPERATORS[op].target, op, op)


def _inside(op: str, inputs: Mapping[str, Any]) -> Mapping[str, Any] | None:
    facts = facts_of(contracts.get(op), inputs)
    return None if any(constraint.check(facts) for constraint in OPERATORS[op].region) else inputs


@pytest.mark.parametrize("op", OPERATORS)
def test_a_kernel_passes_every_case_of_its_contract(op: str) -> None:
    left_out = []

    def inside(inputs: Mapping[str, Any]) -> Mapping[str, Any] | None:
        return _inside(op, inputs) or left_out.append(inputs)

    assert check_numbers(contracts.get(op), _function(op), adapt=inside) == []
    assert left_out == []


@pytest.mark.parametrize("op", OPERATORS)
def test_a_call_is_one_launch_and_none_for_no_rows(op: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    run = InterpretedFunction.run

    def count(self: Any, *arguments: Any, **options: Any) -> Any:
        seen.append(self.__name__)
        return run(self, *arguments, **options)

    monkeypatch.setattr(InterpretedFunction, "run", count)
    cases = [dict(case.inputs) for case in contracts.get(op).cases("small", 1)]
    for inputs in (cases[0], next(given for given in cases if given["x"].shape[0] == 0)):
        seen.clear()
        _function(op)(**inputs)
        assert len(seen) == (1 if inputs["x"].shape[0] else 0)
    assert OPERATORS[op].note.startswith("1 launch")


@pytest.mark.parametrize("op", OPERATORS)
def test_a_row_does_not_depend_on_the_others(op: str) -> None:
    cases = (dict(case.inputs) for case in contracts.get(op).cases("small", 2))
    inputs = max(cases, key=lambda given: given["x"].shape[0])
    alone = {**inputs, "x": inputs["x"][2:3]}
    if "positions" in inputs:
        alone["positions"] = inputs["positions"][2:3]
    together, one = _function(op)(**inputs), _function(op)(**alone)
    pairs = zip(together, one, strict=True) if isinstance(together, tuple) else [(together, one)]
    for whole, part in pairs:
        assert torch.equal(whole[2:3].view(torch.uint8), part.view(torch.uint8))


def test_blocks_of_many_rows_give_the_bytes_of_blocks_of_few() -> None:
    assert [cut_of(CUTS, rows).items for rows in (1, 4095, 4096)] == [8, 8, 32]
    x = torch.randn(4099, 32, generator=torch.Generator().manual_seed(0)).bfloat16()
    payload, scales = fp4_quantize_rows(x)
    wanted = contracts.get("fp4_quantize_rows").reference(x)
    assert torch.equal(payload, wanted[0])
    assert torch.equal(scales, wanted[1])


@pytest.mark.parametrize(
    ("op", "arguments", "text"),
    [
        ("fp4_quantize_rows", (torch.zeros(1, 160),), "wanted rows of 32, 64, 96 or 128 columns .*, got 160 and 'rne'"),
        ("fp4_quantize_rows", (torch.zeros(1, 32), "up"), "got 32 and 'up'"),
        ("rope_tail_fp4_fake_quant", (torch.zeros(1, 1, 96), torch.zeros(1, 64)), "wanted .* a power of two of lanes"),
        ("rope_tail_fp4_fake_quant", (torch.zeros(1, 1, 32), torch.zeros(1, 64)), "got 'ue8m0_32', 32 lanes and 64"),
    ],
)
def test_calls_that_do_not_fit_are_refused(op: str, arguments: tuple[Any, ...], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        _function(op)(*arguments)


def test_negatives_that_vanish_beside_a_huge_value_become_plus_zero_as_in_the_contract() -> None:
    x = torch.full((1, 1, 128), -1e-38).bfloat16()
    x[..., ::32] = 1e38
    freqs = torch.zeros(1, 64)
    freqs[:, 0::2] = 1.0
    for scale in ("ue8m0_32", "e4m3_16"):
        got = _function("rope_tail_fp4_fake_quant")(x, freqs, None, False, scale)
        wanted = contracts.get("rope_tail_fp4_fake_quant").reference(x, freqs, None, False, scale)
        assert torch.equal(got.view(torch.int16), wanted.view(torch.int16))


@triton.jit
def _round_kernel(x, eight, four, COUNT: tl.constexpr):
    lane = tl.arange(0, COUNT)
    tl.store(eight + lane, codes.e4m3_round(tl.load(x + lane)))
    tl.store(four + lane, codes.e2m1_round_ties_to_smaller(tl.load(x + lane)))


@triton.jit
def _byte_kernel(x, byte, COUNT: tl.constexpr):
    lane = tl.arange(0, COUNT)
    tl.store(byte + lane, codes.ue8m0_fp8_grid(tl.load(x + lane)).to(tl.uint8))


def _borders(values: torch.Tensor) -> torch.Tensor:
    """Return the values, their neighbours on both sides, all with either sign, padded to a power of two of them."""
    up, down = (values.nextafter(torch.tensor(end)) for end in (torch.inf, 0.0))
    both = torch.cat([values, up, down])
    both = torch.cat([both, -both])
    return torch.nn.functional.pad(both, (0, triton.next_power_of_2(both.numel()) - both.numel()))


def test_values_are_rounded_as_the_codes_of_the_contract_are_at_every_middle_and_beside_it() -> None:
    values = numerics.e4m3_decode(torch.arange(0x7F, dtype=torch.uint8))
    middles = (values[1:] + values[:-1]) / 2
    fours = torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, 7.0, 1e30])
    x = _borders(torch.cat([values, middles, fours, torch.tensor([465.0, 1e-44, 2.0**-10, 2.0**-126])]))
    eight, four = torch.empty(x.shape), torch.empty(x.shape)
    _round_kernel[(1,)](x, eight, four, COUNT=x.numel())
    wanted = numerics.e4m3_decode(numerics.e4m3_encode(x))
    assert torch.equal(eight.view(torch.int32), wanted.view(torch.int32))
    wanted = numerics.e2m1_decode(numerics.e2m1_encode_ties_to_smaller(x))
    assert torch.equal(four.view(torch.int32), wanted.view(torch.int32))


def test_scales_of_the_grid_are_the_contracts_from_nothing_to_the_largest_float() -> None:
    powers = torch.tensor([2.0**exponent for exponent in range(-60, 127)])
    amax = _borders(torch.cat([powers, 1.75 * powers, torch.tensor([1e-10, 3.4028234e38])])).abs()
    amax = torch.where(amax.isinf(), 0.0, amax)
    byte = torch.empty(amax.shape, dtype=torch.uint8)
    _byte_kernel[(1,)](amax, byte, COUNT=amax.numel())
    assert torch.equal(byte, numerics.ue8m0_fp8_grid(amax))
    assert (byte.min(), byte.max()) == (85, 247)
