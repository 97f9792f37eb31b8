"""The kernels with bodies of the portable plugin, as this plugin cuts and calls them: some cases of each contract."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch

from dspark_ops import contracts
from dspark_ops.binding.facts import facts_of
from dspark_ops.conformance.numbers import check_numbers
from dspark_ops.contracts import Case, Contract
from dspark_ops_nvidia_sm10x import candidates, gate, latents, schedule, streams, verify_tail
from dspark_ops_nvidia_sm10x.plugin import KERNELS as MANIFEST

#: Of how many cases one is run: bodies are tested whole where they stand. Gates have many cases, and slow ones.
EVERY, EVERY_OF_GATES = 11, 37

KERNELS: dict[str, Callable[..., Any]] = {
    "moe_gate_topk_packed": gate.moe_gate_topk_packed,
    "mhc_combine_norm_mxfp8": streams.mhc_combine_norm_mxfp8,
    "mhc_post_combine_norm": streams.mhc_post_combine_norm,
    "k_norm_rope_store": latents.k_norm_rope_store,
    "compress_c1": latents.compress_c1,
    "compress_c2": latents.compress_c2,
    "mla_sched_meta": schedule.mla_sched_meta,
    "accept_tail": verify_tail.accept_tail,
    "candidate_blocks": candidates.candidate_blocks,
}


def thinned(name: str) -> Contract:
    contract, every = contracts.get(name), EVERY_OF_GATES if "gate" in name else EVERY

    def cases(scale: str, seed: int) -> Iterator[Case]:
        for index, case in enumerate(contract.cases(scale, seed)):
            # cases come in groups of forms: a step that divides them would always leave out the same ones
            if (index + index // every) % every == 0:
                yield case

    return replace(contract, cases=cases)


def inside(name: str) -> Callable[[Mapping[str, Any]], Mapping[str, Any] | None]:
    """Return what passes on inputs that lie in the region of an operator's kernel, and no others."""
    contract, region = contracts.get(name), next(kernel.region for kernel in MANIFEST if kernel.op == name)

    def adapt(inputs: Mapping[str, Any]) -> Mapping[str, Any] | None:
        facts = facts_of(contract, inputs)
        return None if any(constraint.check(facts) for constraint in region) else inputs

    return adapt


@pytest.mark.parametrize("name", KERNELS)
def test_some_cases_of_the_contract_pass(name: str) -> None:
    assert check_numbers(thinned(name), KERNELS[name], adapt=inside(name)) == []


def test_the_plain_gate_chooses_as_the_packed_one() -> None:
    generator = torch.Generator().manual_seed(0)
    logits, bias = torch.randn(3, 96, generator=generator), torch.randn(96, generator=generator)
    plain, packed = gate.moe_gate_topk(logits, bias, 6), gate.moe_gate_topk_packed(logits, bias, 6)
    assert all(torch.equal(mine, other) for mine, other in zip(plain, packed, strict=False))


def test_a_gate_launches_by_the_number_of_rows() -> None:
    calls: list[bool] = []

    def body(tiles: Any, logits: torch.Tensor, *rest: Any) -> None:
        calls.append(tiles.pdl)

    bound = gate.Gate(body, gate.moe_gate_topk, replace(gate.TILES, pdl=True), gate.late_rows("sm_103", 384, 6))
    for rows in (1, 8, 9, 64):
        bound(torch.zeros(rows, 384), torch.zeros(384), 6)
    assert calls == [False, False, True, True]
    assert gate.late_rows("sm_100", 384, 6) == gate.late_rows("sm_103", 128, 3) == 0
