"""Every Triton kernel built for gfx950 as its own preparation asks for it, at a place of the model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dspark_ops import contracts
from dspark_ops.api import Kernel
from dspark_ops.conformance.machine_facts import machine_facts
from dspark_ops.conformance.prepared import build, launches_of_preparation
from dspark_ops.selection.device import Device
from dspark_ops.selection.problem import Problem
from dspark_ops_amd_gfx950.plugin import KERNELS

RECORDED = json.loads(
    (Path(__file__).resolve().parents[3] / "benchmarks" / "results" / "compiled.json").read_text(encoding="utf-8")
)
LDS = 160 * 1024
#: Loads of 16 bytes a lane that a kernel's first build has at least: what its note counts on.
WIDE_LOADS = {
    "argmax_rows": 8, "moe_local_reduce": 6, "silu_mul_clamp": 2, "fp4_quantize_rows": 1, "rope_tail_fp4_fake_quant": 1,
    "index_q_rope_fp4_pack": 1, "rope_tail_copy": 1, "engram_gather": 1, "mhc_post": 5, "paged_mqa_logits_fp4": 2,
}  # fmt: skip


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.op)
def test_a_kernel_is_built_without_spills_and_loads_as_it_says(kernel: Kernel) -> None:
    device, contract = Device.simulate("gfx950"), contracts.get(kernel.op)
    site = contract.sites(contracts.model_shapes("deepseek-v4.1-flash/tp4"))[0]
    launches, _ = launches_of_preparation(kernel.prepare, device, Problem.at(contract, site), (1, 6, 8, 32, 64))
    made = build(launches[0], "gfx950")
    facts = machine_facts(made)
    assert made.spilled == 0
    assert made.shared <= LDS
    assert ".wavefront_size: 64" in made.assembly
    assert facts.get("loads of 16 bytes", 0) >= WIDE_LOADS.get(kernel.op, 0)
    if f".max_flat_workgroup_size: {64}" in made.assembly:
        assert "barriers of a program" not in facts, "one wave meets nobody"


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.op)
def test_the_record_of_all_builds_has_no_spills_and_fits_the_unit(kernel: Kernel) -> None:
    entry = RECORDED[f"amd_gfx950/{kernel.op}/{kernel.variant}"]["gfx950"]
    assert entry["builds"]
    assert entry["spilled"] == 0
    assert entry["shared"] <= LDS
    for made in entry["builds"]:
        scaled = made["instructions"].get("scaled matrix instructions", 0)
        assert scaled == made["instructions"].get("matrix instructions", 0)
    assert (kernel.op in ("main_projection", "paged_mqa_logits_fp4")) == any(
        "scaled matrix instructions" in made["instructions"] for made in entry["builds"]
    )


def test_the_logits_of_the_record_are_those_that_are_built_today() -> None:
    kernel = next(kernel for kernel in KERNELS if kernel.op == "paged_mqa_logits_fp4")
    contract = contracts.get(kernel.op)
    (site,) = contract.sites(contracts.model_shapes("deepseek-v4.1-flash/tp4"))
    device = Device.simulate("gfx950")
    launches, _ = launches_of_preparation(kernel.prepare, device, Problem.at(contract, site), (6,))
    recorded = RECORDED[f"amd_gfx950/{kernel.op}/{kernel.variant}"]["gfx950"]["builds"]
    assert {launch.name for launch in launches} == {made["function"] for made in recorded}
    for launch in launches:
        assert dict(launch.signature) in [made["types"] for made in recorded]
