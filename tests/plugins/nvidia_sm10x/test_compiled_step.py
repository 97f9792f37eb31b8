"""What each kernel's preparation compiles for SM100 and SM103: spills, memory, early launch and scaled products.

One build of each function of each kernel; all others, for both, are in benchmarks/results/compiled.json.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from dspark_ops import contracts
from dspark_ops.conformance.compiled import CompiledKernel
from dspark_ops.conformance.machine_facts import machine_facts
from dspark_ops.conformance.prepared import Launch, build, launches_of_preparation
from dspark_ops.selection.device import Device
from dspark_ops.selection.problem import Problem
from dspark_ops_nvidia_sm10x.plugin import KERNELS

RECORD = Path(__file__).parents[3] / "benchmarks" / "results" / "compiled.json"
TRITON_KERNELS = [kernel for kernel in KERNELS if kernel.evidence]
BY_OP = {kernel.op: kernel for kernel in reversed(TRITON_KERNELS)}
SHARED_MEMORY = 227 * 1024
#: Built in other tests, or of the same functions as an operator that is built here.
ELSEWHERE = {"argmax_rows", "main_projection", "paged_mqa_logits_fp4", "moe_gate_topk", "rope_wo_a", "compress_c2"}


@cache
def launches(op: str, arch: str, rows: int = 6) -> tuple[Launch, ...]:
    contract, kernel = contracts.get(op), BY_OP[op]
    site = contract.sites(contracts.model_shapes("deepseek-v4.1-flash/tp4"))[0]
    assert kernel.prepare
    return launches_of_preparation(kernel.prepare, Device.simulate(arch), Problem.at(contract, site), (rows,))[0]


def first_builds(op: str, arch: str) -> list[tuple[Launch, CompiledKernel]]:
    """Return one build of each function: that of tensors on 16-byte boundaries, launched early where any is."""
    chosen: dict[str, Launch] = {}
    for launch in launches(op, arch):
        best = chosen.get(launch.name)
        if best is None or weight(launch) > weight(best):
            chosen[launch.name] = launch
    return [(launch, build(launch, arch)) for launch in chosen.values()]


def weight(launch: Launch) -> tuple[int, int]:
    return int(bool(launch.options.get("launch_pdl"))), len(launch.aligned)


@pytest.mark.parametrize("op", sorted(set(BY_OP) - ELSEWHERE))
def test_a_kernel_is_built_for_sm_103_without_spills_and_waits_where_it_is_launched_early(op: str) -> None:
    early = 0
    for launch, made in first_builds(op, "sm_103"):
        facts = machine_facts(made)
        assert (made.spilled, made.count(r"\b(LDL|STL)\b")) == (0, 0), launch.name
        assert made.shared <= SHARED_MEMORY
        pdl = bool(launch.options.get("launch_pdl"))
        assert facts.get("waits for the kernel before", 0) == int(pdl)
        # Said twice, it keeps loads before it.
        assert (facts.get("lets the next kernel start", 0) > 0) == pdl
        early += pdl
    assert bool(early) == BY_OP[op].traits.pdl


def test_the_weight_is_read_before_the_wait_and_the_attention_after_it() -> None:
    (_, made), *_ = first_builds("rope_wo_a_mxfp8", "sm_100")
    lines = made.machine_code.splitlines()
    wait = next(index for index, line in enumerate(lines) if "ACQBULK" in line)
    before = [line for line in lines[:wait] if "LDG.E" in line]
    # 32 rows of 512 bfloat16 are 16 loads of 16 bytes by each of 128 threads.
    assert len([line for line in before if "LDG.E.128" in line]) == len(before) == 16
    assert made.spilled == 0
    assert made.count(r"\bF2FP\.SATFINITE\.E4M3") >= 1, "the hardware rounds to e4m3"


def test_the_small_router_of_sm_103_alone_is_not_launched_early() -> None:
    def early(arch: str) -> set[bool]:
        return {bool(launch.options.get("launch_pdl")) for launch in launches("moe_gate_topk_packed", arch)}

    assert early("sm_103") == {True, False}
    assert early("sm_100") == {True}


def test_the_record_has_every_kernel_for_both_without_spills() -> None:
    record: dict[str, Any] = json.loads(RECORD.read_text(encoding="utf-8"))
    for kernel in TRITON_KERNELS:
        entry = record[f"nvidia_sm10x/{kernel.op}/{kernel.variant}"]
        for arch in ("sm_100", "sm_103"):
            assert entry[arch]["spilled"] == 0
            assert entry[arch]["shared"] <= SHARED_MEMORY
            assert entry[arch]["builds"]
            waiting = [made for made in entry[arch]["builds"] if "waits for the kernel before" in made["instructions"]]
            assert bool(waiting) == kernel.traits.pdl


def test_products_of_codes_are_scaled_matrix_instructions_in_the_record() -> None:
    record: dict[str, Any] = json.loads(RECORD.read_text(encoding="utf-8"))
    for name in ("main_projection/split_codes", "paged_mqa_logits_fp4/page_codes"):
        for arch in ("sm_100", "sm_103"):
            products = [
                made["instructions"]["scaled matrix instructions"]
                for made in record[f"nvidia_sm10x/{name}"][arch]["builds"]
                if "scaled matrix instructions" in made["instructions"]
            ]
            assert products


def test_a_build_of_today_is_the_one_in_the_record() -> None:
    record: dict[str, Any] = json.loads(RECORD.read_text(encoding="utf-8"))
    launch, made = first_builds("q_rope_store", "sm_103")[0]
    entries = record["nvidia_sm10x/q_rope_store/tail_apart"]["sm_103"]["builds"]
    entry = next(
        each for each in entries if each["aligned"] == list(launch.aligned) and each["types"] == launch.signature
    )
    assert entry["function"] == launch.name
    assert entry["options"] == dict(launch.options)
    assert abs(entry["registers"] - made.registers) <= 8, "another Triton may differ a little"
