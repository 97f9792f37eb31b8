"""The doctor on the device: an accelerator that nobody uses, and the two FP8 flavours. Case O23."""

from __future__ import annotations

from typing import Any

import pytest

from dspark_ops import contracts
from dspark_ops.doctor import Facts, Severity, examine
from dspark_ops.doctor.facts import (
    TorchFacts,
)
from dspark_ops.selection.device import Device
from dspark_ops.selection.settings import Policy, Settings


def test_a_gpu_on_the_bus_without_a_driver_is_found(ask: Any) -> None:
    finding = ask.one("accelerator", device="cpu")
    assert finding.severity is Severity.ERROR
    assert finding.finding == "a GPU is on the bus and the device that is planned for is the CPU"
    assert finding.evidence == "PCI 0000:19:00.0 nvidia 0x2335; no /proc/driver/nvidia"
    assert "--gpus all" in finding.fix


def test_a_cpu_without_a_gpu_is_fine(ask: Any) -> None:
    assert ask.found("accelerator", device="cpu", adapters=()) == []


def test_a_driver_that_fails_is_found(ask: Any) -> None:
    finding = ask.one("accelerator", device=None, device_problem="the NVIDIA driver cannot be asked")
    assert (finding.severity, finding.evidence) == (Severity.ERROR, "the NVIDIA driver cannot be asked")


def test_a_simulated_device_on_a_machine_with_a_gpu_is_a_warning(ask: Any) -> None:
    finding = ask.one("accelerator", device=Device.simulate("sm_103"))
    assert finding.severity is Severity.WARNING and "plans are for a simulated NVIDIA B300" in finding.finding


@pytest.mark.parametrize(
    ("device", "built_for", "got"),
    [("H200", "", "the CPU alone"), ("H200", "hip 7.0", "hip 7.0"), ("MI355X", "cuda 13.0", "cuda 13.0")],
)
def test_a_torch_that_is_built_for_something_else_is_found(ask: Any, device: str, built_for: str, got: str) -> None:
    finding = ask.one("accelerator", device=device, torch=TorchFacts("2.13.0+cpu", built_for))
    assert finding.finding == f"torch cannot use this {ask.device(device).arch}: it is built for {got}"
    assert "pytorch.org" in finding.fix


def test_a_gpu_without_torch_is_found(ask: Any) -> None:
    finding = ask.one("accelerator", torch=TorchFacts())
    assert finding.finding == "torch is not installed, so no operator can run on this sm_90"


@pytest.mark.parametrize("value", ["", "-1"])
def test_a_variable_that_hides_the_gpu_is_found(ask: Any, value: str) -> None:
    finding = ask.one("accelerator", environment={"CUDA_VISIBLE_DEVICES": value})
    assert finding.finding == "CUDA_VISIBLE_DEVICES hides every GPU from this process"
    assert ask.found("accelerator", environment={"CUDA_VISIBLE_DEVICES": "0,1"}) == []


def test_an_interpreter_on_a_gpu_machine_is_found(ask: Any) -> None:
    assert ask.one("accelerator", environment={"TRITON_INTERPRET": "1"}).fix == "unset TRITON_INTERPRET"


@pytest.mark.parametrize(
    ("device", "kernel", "count"),
    [("MI300X", "plug", 1), ("MI355X", "plug", 0), ("H200", "plug", 0), ("MI300X", "core", 0)],
)
def test_o23_kernels_that_take_the_other_fp8_flavour_are_found(
    ask: Any, fakes: Any, device: str, kernel: str, count: int
) -> None:
    own = {name: contracts.get(name) for name in ("fp8_grid_quantize",)}
    kernels = [fakes.kernel("fp8_grid_quantize", variant="fast")] if kernel == "plug" else []
    plan = fakes.plan(
        *kernels,
        device=ask.device(device),
        contracts=own,
        operators=tuple(own),
        settings=Settings(Policy(fallback="allow")),
    )
    dtypes = {name: tuple(output.dtype for output in contract.outputs) for name, contract in own.items()}
    findings = ask.found("fp8_flavour", device=device, plan=plan, output_dtypes=dtypes)
    assert len(findings) == count
    if count:
        assert findings[0].finding == "kernels take float8_e4m3fn data on gfx942, and its units read float8_e4m3fnuz"
        assert findings[0].evidence == "fp8_grid_quantize (plug/fp8_grid_quantize/fast)"


def test_what_has_no_sense_on_a_cpu_is_not_asked_and_says_why(ask: Any) -> None:
    answers = {item.check.name: item.not_asked for item in examine(Facts(device=ask.device("cpu")))}
    assert answers["toolkit"] == answers["triton"] == answers["packages"] == "no accelerator to plan for"
    assert answers["libcuda"] == "no NVIDIA device"
    assert answers["fp8_flavour"] == "no plan for an accelerator"


def test_tools_are_not_asked_for_a_simulated_device() -> None:
    answers = {item.check.name: item.not_asked for item in examine(Facts(device=Device.simulate("sm_103")))}
    assert answers["toolkit"] == answers["libcuda"] == "the device is simulated"
