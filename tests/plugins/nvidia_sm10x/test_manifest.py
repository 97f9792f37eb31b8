"""The manifest: what is registered, where it may run, and that reading it costs nothing."""

from __future__ import annotations

import subprocess
import sys

import pytest

from dspark_ops import contracts
from dspark_ops.api import Arch, Evidence, RankClass
from dspark_ops.selection.device import Device
from dspark_ops.selection.manifest_check import kernel_faults
from dspark_ops.selection.problem import Problem
from dspark_ops_nvidia_sm10x.plugin import KERNELS, dspark_ops_manifest


def test_nothing_is_wrong_with_the_manifest() -> None:
    assert kernel_faults(dspark_ops_manifest()) == []


def test_reading_the_manifest_imports_neither_torch_nor_triton() -> None:
    code = (
        "import sys; from dspark_ops_nvidia_sm10x.plugin import dspark_ops_manifest; dspark_ops_manifest(); "
        "sys.exit('torch' in sys.modules or 'triton' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_only_the_members_of_the_family_are_accepted() -> None:
    names = ("sm_100", "sm_103")
    for kernel in KERNELS:
        assert {name for name in ARCHES if kernel.arch.matches(Arch.parse(name))} == set(names)


#: Most rows that a kernel serves, where it leaves more to the portable one.
MOST_ROWS = {"rope_wo_a": 32, "rope_wo_a_mxfp8": 32, "mla_sched_meta": 4096, "sparse_mla_decode": 4096}


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: f"{kernel.op}-{kernel.variant}")
def test_every_place_of_the_model_lies_in_the_region(kernel) -> None:
    contract = contracts.get(kernel.op)
    for site in contract.sites(contracts.model_shapes("deepseek-v4.1-flash/tp4")):
        for rows in (1, 6, 32, 64, 16612):
            if rows > MOST_ROWS.get(kernel.op, rows):
                continue
            problem = Problem.at(contract, site).with_rows(contract.rows, rows)
            assert [reason for constraint in kernel.region if (reason := constraint.check(problem))] == []


def test_no_kernel_claims_that_it_was_run_on_the_device() -> None:
    for kernel in KERNELS:
        assert kernel.rank == RankClass.FUSED
        others = [package.module for package in kernel.packages if package.module != "triton"]
        # Kernels of other packages were never called: what is tested is that they are called as they ask to be.
        wanted = Evidence.DECLARED if others else Evidence.INTERPRETED
        assert kernel.evidence_on("sm_100") == kernel.evidence_on("sm_103") == wanted
        assert not kernel.arch.matches(Device.simulate("H200").arch)


ARCHES = ("sm_90", "sm_100", "sm_103", "sm_110", "sm_120", "sm_121", "gfx90a", "gfx942", "gfx950", "gfx1151", "cpu")
