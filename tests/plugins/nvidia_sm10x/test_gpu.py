"""The kernels on a real GPU of NVIDIA. On SM100 and SM103 it is their own; on Hopper their sources are checked.

`CONFORMANCE_ARCH` names the architectures whose results say something of these sources. What passes on sm_90 is
reported as such: no kernel of this plugin becomes ``conformant`` by it. Products of stored codes are left out there,
since they need matrix instructions that take scales.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch

from dspark_ops import contracts
from dspark_ops.binding.facts import facts_of
from dspark_ops.binding.targets import resolve
from dspark_ops.conformance.graphs import CudaHarness
from dspark_ops.conformance.numbers import check_numbers
from dspark_ops.contracts.rope import rope_table
from dspark_ops.selection.probe import probe
from dspark_ops.selection.problem import Problem
from dspark_ops_nvidia_sm10x.plugin import KERNELS

pytestmark = pytest.mark.gpu

CONFORMANCE_ARCH = ("sm_90", "sm_100", "sm_103")
#: They multiply codes with scales: sm_90 has no such instruction.
SCALED = ("main_projection", "paged_mqa_logits_fp4")
OPERATORS = {kernel.op: kernel for kernel in reversed(KERNELS) if kernel.evidence}
MODEL = contracts.model_shapes("deepseek-v4.1-flash/tp4")


@pytest.fixture(autouse=True)
def gpu() -> None:
    if not torch.cuda.is_available():
        pytest.skip("no GPU")
    if (name := probe(0).arch.name) not in CONFORMANCE_ARCH:
        pytest.skip(f"{name} is none of {', '.join(CONFORMANCE_ARCH)}")


def prepared(name: str) -> Callable[..., Any]:
    contract, kernel = contracts.get(name), OPERATORS[name]
    if name in SCALED and probe(0).arch.name == "sm_90":
        pytest.skip("sm_90 has no matrix instruction that takes a scale per 32")
    problem = Problem.at(contract, contract.sites(MODEL)[0])
    return resolve(kernel.prepare, kernel.op, name)(probe(0), problem, (1, 6, 32, 64))


def inside(name: str) -> Callable[[Mapping[str, Any]], Mapping[str, Any] | None]:
    def adapt(inputs: Mapping[str, Any]) -> Mapping[str, Any] | None:
        facts = facts_of(contracts.get(name), inputs)
        return None if any(constraint.check(facts) for constraint in OPERATORS[name].region) else inputs

    return adapt


@pytest.mark.parametrize("name", OPERATORS, ids=lambda name: f"{name}/{OPERATORS[name].variant}")
@pytest.mark.parametrize("scale", ["small", "model"])
def test_every_case_of_the_region_passes(name: str, scale: str) -> None:
    contract, function = contracts.get(name), prepared(name)
    assert check_numbers(contract, function, device="cuda", scale=scale, seed=0, adapt=inside(name)) == []


def wo_a_inputs(tokens: int, seed: int) -> dict[str, Any]:
    generator = torch.Generator("cuda").manual_seed(seed)
    o = torch.randn(tokens, 2, 4096, generator=generator, device="cuda").bfloat16()
    weight = (0.05 * torch.randn(2, 1024, 4096, generator=generator, device="cuda")).bfloat16()
    positions = torch.randint(0, 512, (tokens,), generator=generator, device="cuda")
    return {"o": o, "weight": weight, "freqs": rope_table(64, 512, 10000.0).cuda(), "positions": positions}


@pytest.mark.parametrize("tokens", [1, 6, 17, 32])
def test_the_projection_agrees_with_float64_and_quantises_what_it_returns(tokens: int) -> None:
    inputs = wo_a_inputs(tokens, tokens)
    y, q, scales = prepared("rope_wo_a_mxfp8")(**inputs)
    cpu = {name: value.cpu() for name, value in inputs.items()}
    wanted = contracts.get("rope_wo_a").reference(**cpu).float()
    assert (y.cpu().float() - wanted).norm() <= 4e-3 * wanted.norm()
    codes, byte = contracts.get("mxfp8_quantize").reference(y.cpu())
    assert torch.equal(q.cpu().view(torch.uint8), codes.view(torch.uint8))
    assert torch.equal(scales.cpu(), byte)
    assert torch.equal(prepared("rope_wo_a")(**inputs), y)


def test_a_graph_of_the_projection_follows_changed_inputs_and_meets_anew_at_every_replay() -> None:
    function, held = prepared("rope_wo_a_mxfp8"), wo_a_inputs(6, 0)
    outputs, replay = CudaHarness().capture(lambda: function(**held))
    for seed in (1, 2, 3):
        given = wo_a_inputs(6, seed)
        for name in ("o", "weight", "positions"):
            held[name].copy_(given[name])
        for _ in range(3):
            replay()
        for mine, wanted in zip(outputs, function(**given), strict=True):
            assert torch.equal(mine.view(torch.uint8), wanted.view(torch.uint8))


def test_early_launches_behind_a_product_read_what_it_wrote() -> None:
    function, freqs = prepared("q_rope_store"), rope_table(64, 512, 10000.0).cuda()
    x = torch.randn(6, 1280, device="cuda").bfloat16()
    weight = torch.randn(1280, 16 * 512, device="cuda").bfloat16()
    positions = torch.arange(6, device="cuda")
    out = torch.empty(6, 64, 512, device="cuda").bfloat16()

    def step() -> torch.Tensor:
        q = (x @ weight).view(6, 16, 512)
        function(q, out, freqs, positions)
        return q

    q, replay = CudaHarness().capture(step)
    for _ in range(50):
        x.normal_()
        replay()
        wanted = torch.zeros(6, 16, 512).bfloat16()
        contracts.get("q_rope_store").reference(q.cpu(), wanted, freqs.cpu(), positions.cpu())
        assert torch.equal(out[:, :16].cpu().view(torch.int16), wanted.view(torch.int16))
