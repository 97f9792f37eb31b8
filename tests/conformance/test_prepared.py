"""Launches noted instead of made: what a preparation compiles for a device that is not there, and what a build has."""

from __future__ import annotations

import torch
from triton.runtime.jit import JITFunction

from dspark_ops import contracts
from dspark_ops.bench.static_cost import StaticCall
from dspark_ops.conformance.machine_facts import dependent_loads, machine_facts
from dspark_ops.conformance.prepared import build, launches_of_call, launches_of_preparation, recorded_launches
from dspark_ops.selection.device import Device
from dspark_ops.selection.problem import Problem

PREPARE = "dspark_ops_nvidia_sm10x.argmax:prepare_argmax_rows"


def argmax(arch: str, rows: tuple[int, ...] = (1, 6)):
    contract = contracts.get("argmax_rows")
    problem = Problem.at(contract, contract.sites(contracts.model_shapes("deepseek-v4.1-flash/tp4"))[0])
    device = Device.simulate(arch)
    return contract, problem, device, *launches_of_preparation(PREPARE, device, problem, rows)


def test_a_preparation_says_what_it_would_compile() -> None:
    *_, launches, _ = argmax("sm_103")
    assert {launch.name for launch in launches} == {"dspark_ops_triton.blocks.row_argmax:row_argmax_kernel"}
    assert {launch.constants["COLUMNS"] for launch in launches} == {129280}
    assert sorted({launch.constants["STRIDE_UNIT"] for launch in launches}) == [1, 4]
    assert {launch.signature["x"] for launch in launches} == {"*fp32"}


def test_a_call_says_its_launches_and_programs() -> None:
    contract, _, device, _, bound = argmax("sm_103")
    (launch,) = launches_of_call(bound, device, {"x": torch.zeros(6, 129280)})
    assert launch.grid == (6, 64)
    site = contract.sites(contracts.model_shapes("deepseek-v4.1-flash/tp4"))[0]
    cost = StaticCall(contract, site, 6).cost(bound, device)
    assert cost == {"launches": 1, "programs": 384, "bytes": 4 * 6 * 129280 + 8 * 6}


def test_nothing_of_it_stays() -> None:
    launch, hip = JITFunction.run, torch.version.hip
    with recorded_launches(Device.simulate("gfx950")):
        assert torch.version.hip
        assert torch.zeros(3, device="cuda").device.type == "cpu"
        assert torch.empty(2, device=torch.device("cuda")).device.type == "cpu"
    assert (JITFunction.run, torch.version.hip) == (launch, hip)


def test_a_noted_launch_is_built_with_its_facts() -> None:
    launch = next(each for each in argmax("sm_103")[3] if each.constants["STRIDE_UNIT"] == 4)
    made = build(launch, "sm_103")
    facts = machine_facts(made)
    assert made.spilled == 0
    assert facts["loads of 16 bytes"] == facts["loads"]
    assert facts["atomics"] == 3
    assert dependent_loads(made.triton_ir) >= 2, "what the programs meet at comes after the logits"


def test_loads_wait_for_the_loads_that_their_addresses_come_from() -> None:
    lines = (
        "%row = tt.get_program_id x : i32",
        "%p = tt.addptr %positions, %row : !tt.ptr<i64>, i32",
        "%place = tt.load %p : !tt.ptr<i64>",
        "%q = tt.addptr %freqs, %place : !tt.ptr<f32>, i64",
        "%other = tt.load %weights : !tt.ptr<f32>",
        "%turn = tt.load %q : !tt.ptr<f32>",
        "%sum = arith.addf %turn, %other : f32",
    )
    assert dependent_loads("\n".join(lines)) == 2
    assert dependent_loads("\n".join(lines[:3])) == 1
    inside = ("%more = arith.cmpi sgt, %place, %row : i64", "scf.if %more {", "%x = tt.load %weights : f32", "}")
    assert dependent_loads("\n".join((*lines[:3], *inside))) == 2
    after = ("%y = tt.load %weights : f32",)
    assert dependent_loads("\n".join((*lines[:3], *inside, *after))) == 2
