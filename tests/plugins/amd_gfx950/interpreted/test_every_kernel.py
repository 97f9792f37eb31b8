"""Every kernel against the cases of its contract, cut as for the real device; long lists of cases are thinned."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch

from dspark_ops import contracts
from dspark_ops.binding.facts import facts_of
from dspark_ops.binding.targets import resolve
from dspark_ops.conformance.numbers import check_numbers
from dspark_ops.contracts import Case
from dspark_ops_amd_gfx950.plugin import KERNELS

#: One case in so many: an interpreted program takes milliseconds. Operators with a file of their own are not here.
EVERY = {
    "argmax_vocab_parallel": 6, "argmax_vocab_parallel_local": 6, "draft_inputs": 1, "verify_inputs": 1,
    "expand_uniform": 5, "candidate_lengths": 1, "varctx_schedule": 37, "fill_padded_topk": 2, "moe_gate_topk": 29,
    "moe_gate_topk_packed": 31, "moe_sort": 5, "moe_local_reduce": 9, "silu_mul_clamp": 7, "fp4_quantize_rows": 5,
    "rope_tail_fp4_fake_quant": 9, "rope_tail_copy": 5, "engram_gather": 2, "index_q_rope_fp4_pack": 4, "mhc_post": 8,
    "mhc_post_combine_norm_fp8_grid": 11, "silu_mul_clamp_fp8_grid": 6, "silu_mul_clamp_mxfp8": 6, "fp8_grid_round": 3,
    "fp8_grid_quantize": 3,
}  # fmt: skip
BY_NAME = {kernel.op: kernel for kernel in KERNELS}
#: Query heads that one case of the packing may have: each four of them are a program.
MOST_QUERY_HEADS = 64


def _thinned(op: str) -> Any:
    contract = contracts.get(op)

    def cases(scale: str, seed: int) -> Iterator[Case]:
        few = (case for case in contract.cases(scale, seed) if _is_small(op, case.inputs))
        for index, case in enumerate(few):
            # Cases come in groups of forms: a step that divides them would always leave out the same ones.
            if (index + index // EVERY[op]) % EVERY[op] == 0:
                yield case

    return replace(contract, cases=cases)


def _is_small(op: str, inputs: Mapping[str, Any]) -> bool:
    return op != "index_q_rope_fp4_pack" or inputs["q"].shape[0] * inputs["q"].shape[1] <= MOST_QUERY_HEADS


@pytest.mark.parametrize("op", EVERY)
def test_a_kernel_passes_the_cases_of_its_contract_in_its_region(op: str) -> None:
    contract = contracts.get(op)

    def inside(inputs: Mapping[str, Any]) -> Mapping[str, Any] | None:
        facts = facts_of(contract, inputs)
        return None if any(constraint.check(facts) for constraint in BY_NAME[op].region) else inputs

    assert check_numbers(_thinned(op), resolve(BY_NAME[op].target, op, op), adapt=inside) == []


def test_operators_without_a_file_of_their_own_are_all_here() -> None:
    assert set(EVERY) == set(BY_NAME) - {"argmax_rows", "main_projection", "paged_mqa_logits_fp4"}


@pytest.mark.parametrize("heads", [16, 48, 64])
def test_scale_bytes_of_heads_that_do_not_exist_are_zero(heads: int) -> None:
    q = torch.randn(2, heads, 128, generator=torch.Generator().manual_seed(heads)).bfloat16()
    freqs = torch.randn(4, 64, generator=torch.Generator().manual_seed(1))
    positions = torch.tensor([3, 9], dtype=torch.int32)
    function = resolve(BY_NAME["index_q_rope_fp4_pack"].target, "index_q_rope_fp4_pack", "test")
    codes, scales, weights = function(q, freqs, positions)
    wanted = contracts.get("index_q_rope_fp4_pack").reference(q, freqs, positions)
    assert weights is None
    assert torch.equal(codes, wanted[0])
    assert torch.equal(scales, wanted[1])
    assert int(scales[..., heads // 16 :].sum()) == 0


def test_packing_at_once_would_give_other_bytes_than_rounding_first() -> None:
    q = torch.full((1, 16, 128), 0.5).bfloat16()
    q[..., 0] = 3.25
    freqs = torch.zeros(1, 64)
    freqs[:, 0::2] = 1.0
    function = resolve(BY_NAME["index_q_rope_fp4_pack"].target, "index_q_rope_fp4_pack", "test")
    codes, scales, _ = function(q, freqs, torch.zeros(1, dtype=torch.int64))
    assert codes[0, 0, :2].tolist() == [39, 34]  # at once: 21, 17
    assert scales[0, 0, 0, 0, 0] == 126  # at once: 127


@pytest.mark.parametrize(
    ("op", "arguments", "text"),
    [
        ("index_q_rope_fp4_pack", (torch.zeros(1, 8, 128), torch.zeros(1, 64), None), "wanted 16, 32, 48 or 64 heads"),
        ("index_q_rope_fp4_pack", (torch.zeros(1, 16, 96), torch.zeros(1, 64), None), "got 16 of 96"),
        ("fp4_quantize_rows", (torch.zeros(1, 160),), "got 160 and 'rne'"),
    ],
)
def test_calls_that_do_not_fit_are_refused(op: str, arguments: tuple[Any, ...], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        resolve(BY_NAME[op].target, op, op)(*arguments)
