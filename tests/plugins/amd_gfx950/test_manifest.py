"""The manifest: what is registered, where it may run, and that reading it costs nothing."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import pytest

from dspark_ops import contracts
from dspark_ops.api import Arch, Evidence, RankClass, ReasonCode
from dspark_ops.selection.device import Device
from dspark_ops.selection.manifest_check import kernel_faults
from dspark_ops.selection.problem import Problem
from dspark_ops.selection.requirements import requirement_reasons
from dspark_ops_amd_gfx950.plugin import KERNELS, dspark_ops_manifest


def test_nothing_is_wrong_with_the_manifest() -> None:
    assert kernel_faults(dspark_ops_manifest()) == []


def test_reading_the_manifest_imports_neither_torch_nor_triton() -> None:
    code = (
        "import sys; from dspark_ops_amd_gfx950.plugin import dspark_ops_manifest; dspark_ops_manifest(); "
        "sys.exit('torch' in sys.modules or 'triton' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_only_the_members_of_the_family_are_accepted() -> None:
    names = ("gfx950",)
    for kernel in KERNELS:
        assert {name for name in ARCHES if kernel.arch.matches(Arch.parse(name))} == set(names)


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.op)
def test_every_place_of_the_model_lies_in_the_region(kernel) -> None:
    contract = contracts.get(kernel.op)
    for site in contract.sites(contracts.model_shapes("deepseek-v4.1-flash/tp4")):
        for rows in (1, 6, 64, *BEYOND.get(kernel.op, (16612,))):
            assert refused(kernel, Problem.at(contract, site).with_rows(contract.rows, rows)) == []


def refused(kernel, problem) -> list:
    """Return why a kernel's region refuses a problem."""
    return [reason for constraint in kernel.region if (reason := constraint.check(problem))]


def test_the_sort_of_small_batches_ends_at_128_rows() -> None:
    kernel = next(kernel for kernel in KERNELS if kernel.op == "moe_sort")
    contract = contracts.get("moe_sort")
    site = contract.sites(contracts.model_shapes("deepseek-v4.1-flash/tp4"))[0]
    (reason,) = refused(kernel, Problem.at(contract, site).with_rows(contract.rows, 129))
    assert (reason.got, reason.wanted) == ("129", "M <= 128")


@pytest.mark.parametrize(("op", "argument"), [("main_projection", "weight"), ("engram_gather", "table")])
def test_a_tensor_of_the_older_fp8_format_is_refused(op: str, argument: str) -> None:
    kernel = next(kernel for kernel in KERNELS if kernel.op == op)
    contract = contracts.get(op)
    site = contract.sites(contracts.model_shapes("deepseek-v4.1-flash/tp4"))[0]
    problem = Problem.at(contract, site).with_rows(contract.rows, 6)
    older = replace(problem, dtypes={**problem.dtypes, argument: "float8_e4m3fnuz"})
    (reason,) = refused(kernel, older)
    assert reason.got == "float8_e4m3fnuz"
    assert "float8_e4m3fn" in reason.wanted


@pytest.mark.parametrize("name", ["gfx942", "gfx90a", "gfx999"])
def test_other_and_unknown_devices_of_the_vendor_are_refused_with_the_reason(name: str) -> None:
    device = replace(Device.simulate("MI355X"), arch=Arch.parse(name))
    for kernel in KERNELS:
        reasons = requirement_reasons(kernel, contracts.get(kernel.op), device, lambda package: None)
        (reason,) = [reason for reason in reasons if reason.code is ReasonCode.DEVICE_ARCH]
        assert (reason.got, "gfx95" in reason.wanted) == (name, True)


def test_what_writes_fp8_codes_needs_a_device_that_has_the_format() -> None:
    writers = [
        kernel for kernel in KERNELS
        if any(output.dtype == "float8_e4m3fn" for output in contracts.get(kernel.op).outputs)
    ]  # fmt: skip
    assert sorted(kernel.op for kernel in writers) == ["fp8_grid_quantize", "silu_mul_clamp_mxfp8"]
    assert all(kernel.features == ("fp8_e4m3fn",) for kernel in writers)
    assert "fp8_e4m3fn" in Device.simulate("MI355X").features
    assert "fp8_e4m3fn" not in Device.simulate("MI300X").features


def test_no_kernel_claims_that_it_was_run_on_the_device() -> None:
    for kernel in KERNELS:
        assert kernel.rank == RankClass.FUSED
        assert {level for _, level in kernel.evidence} == {Evidence.INTERPRETED}
        assert kernel.evidence_on("gfx950") == Evidence.INTERPRETED
        assert not kernel.arch.matches(Device.simulate("MI300X").arch)


ARCHES = ("sm_90", "sm_100", "sm_103", "sm_110", "sm_120", "sm_121", "gfx90a", "gfx942", "gfx950", "gfx1151", "cpu")
#: The largest numbers of rows of those that end below 16612.
BEYOND = {"moe_sort": (128,), "varctx_schedule": (4095,)}
