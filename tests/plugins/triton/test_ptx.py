"""Instructions of PTX stand in what is compiled for an NVIDIA GPU, whether one is present or not."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import triton

from dspark_ops import contracts
from dspark_ops.conformance.prepared import launches_of_preparation
from dspark_ops.selection.device import Device
from dspark_ops.selection.problem import Problem
from dspark_ops_triton.blocks.ptx import takes_ptx


def test_a_kernel_of_the_interpreter_takes_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def kernel() -> None:
        pass

    compiled = triton.JITFunction(kernel)
    assert takes_ptx(compiled) and not takes_ptx(kernel)
    monkeypatch.setattr(torch.version, "hip", "7.0")
    assert not takes_ptx(compiled)


@pytest.mark.parametrize(("name", "wanted"), [("sm_90", True), ("sm_103", True), ("gfx950", False)])
def test_a_preparation_for_a_device_that_is_not_here_asks_for_what_it_will_run(name: str, wanted: bool) -> None:
    contract = contracts.get("mhc_mix_sinkhorn")
    site = contract.sites(contracts.model_shapes("deepseek-v4.1-flash/tp4"))[0]
    prepare = "dspark_ops_triton.mhc_mix:prepare_mhc_mix_sinkhorn"
    found: tuple[Any, ...]
    found, _ = launches_of_preparation(prepare, Device.simulate(name), Problem.at(contract, site), (6,))
    assert {launch.constants["PTX"] for launch in found} == {wanted}
