"""Index logits over paged fp4 keys against the cases of their contract, through values and through codes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from triton.runtime.interpreter import InterpretedFunction, InterpreterBuilder

from dspark_ops import contracts
from dspark_ops.conformance.numbers import check_numbers
from dspark_ops.contracts import numerics
from dspark_ops.contracts._paged_logits_cases import logits_inputs
from dspark_ops_triton.blocks import codes
from dspark_ops_triton.blocks.paged_logits import Tiles, paged_logits
from dspark_ops_triton.paged_logits import paged_mqa_logits_fp4

LOGITS = contracts.get("paged_mqa_logits_fp4")
scaled_products = pytest.mark.skipif(
    not hasattr(InterpreterBuilder, "create_dot_scaled"), reason="the interpreter of this Triton has no dot_scaled"
)


def by_codes(q: Any, q_scale: Any, kv: Any, kv_scale: Any, tables: Any, weights: Any, lens: Any, *others: Any) -> Any:
    tiles = Tiles(keys=128, warps=4, codes=True)
    return paged_logits(tiles, q, q_scale, kv, kv_scale, tables, weights, lens, *others[:2])


def _thinned(inputs: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Leave out most cases of six rows a request: which columns they see is decided before codes and values part."""
    return inputs if inputs["q"].shape[1] < 6 or "cta_info" in inputs else None


def test_logits_of_values_pass_their_cases() -> None:
    assert check_numbers(LOGITS, paged_mqa_logits_fp4, adapt=_thinned) == []


@scaled_products
def test_logits_of_codes_pass_every_case() -> None:
    assert check_numbers(LOGITS, by_codes, seed=1) == []


@pytest.mark.parametrize(
    "function", [paged_mqa_logits_fp4, pytest.param(by_codes, marks=scaled_products)], ids=["values", "codes"]
)
def test_a_request_does_not_depend_on_the_others(function: Any) -> None:
    given = logits_inputs(3, 2, 32, 150, torch.Generator().manual_seed(2))
    given["context_lens"] = torch.tensor([150, 97, 3], dtype=torch.int32)
    alone = {**given, "weights": given["weights"][2:4]}
    alone |= {name: given[name][1:2] for name in ("q", "q_scale", "block_tables", "context_lens")}
    assert torch.equal(function(*given.values(), 1.0)[2:4], function(*alone.values(), 1.0))


def test_a_hundred_heads_and_their_scales_are_read_where_they_lie() -> None:
    given = logits_inputs(1, 1, 112, 70, torch.Generator().manual_seed(3))
    got, wanted = paged_mqa_logits_fp4(**given), LOGITS.reference(**given)
    assert (got - wanted).norm() <= 1e-4 * wanted.norm()


def test_programs_of_several_tiles_give_the_same_bits() -> None:
    given = logits_inputs(2, 2, 32, 300, torch.Generator().manual_seed(5))
    given["context_lens"] = torch.tensor([300, 70], dtype=torch.int32)
    some = {name: value for name, value in given.items() if name not in ("cta_info", "block_k")}
    bound = [paged_logits(Tiles(keys=64, warps=4, programs=count), **{"weight_scale": 1.0, **some}) for count in (0, 6)]
    assert torch.equal(*bound)


def test_a_call_is_one_launch_and_none_for_no_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    run = InterpretedFunction.run

    def count(self: Any, *arguments: Any, **options: Any) -> Any:
        seen.append(self.__name__)
        return run(self, *arguments, **options)

    monkeypatch.setattr(InterpretedFunction, "run", count)
    given = logits_inputs(1, 1, 16, 70, torch.Generator().manual_seed(4))
    paged_mqa_logits_fp4(**given)
    assert seen == ["logits_kernel"]
    nothing = {name: given[name][:0] for name in ("q", "q_scale", "block_tables", "weights", "context_lens")}
    assert paged_mqa_logits_fp4(**{**given, **nothing}).shape == (0, 70)
    assert paged_mqa_logits_fp4(**{**given, "max_seq_len": 0}).shape == (1, 0)
    assert len(seen) == 1


def test_sizes_that_do_not_fit_are_refused() -> None:
    given = logits_inputs(1, 1, 16, 70, torch.Generator().manual_seed(5))
    with pytest.raises(ValueError, match=r"wanted kv_scale \[2, 1, 4, 64\], got \[1, 1, 4, 64\]"):
        paged_mqa_logits_fp4(**{**given, "kv_scale": given["kv_scale"][:1]})
    wide = logits_inputs(1, 1, 144, 70, torch.Generator().manual_seed(5))
    with pytest.raises(ValueError, match="wanted 1 to 128 heads, got 144"):
        paged_mqa_logits_fp4(**wide)


@triton.jit
def _value_kernel(four, scale, COUNT: tl.constexpr):
    lane = tl.arange(0, COUNT)
    tl.store(four + lane, codes.e2m1_value(lane % 16))
    tl.store(scale + lane, codes.ue8m0_value(lane))


def test_every_code_and_every_scale_byte_has_its_value() -> None:
    four, scale = torch.empty(256), torch.empty(256)
    _value_kernel[(1,)](four, scale, COUNT=256)
    wanted = numerics.e2m1_decode(torch.arange(16, dtype=torch.uint8))
    assert torch.equal(four[:16].view(torch.int32), wanted.view(torch.int32))
    wanted = numerics.ue8m0_decode(torch.arange(256, dtype=torch.int32).to(torch.uint8))
    assert torch.equal(scale[:255], wanted[:255])
    assert scale[255].isnan()
