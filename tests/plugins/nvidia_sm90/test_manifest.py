"""The manifest: what is registered, where it may run, and that reading it costs nothing."""

from __future__ import annotations

import subprocess
import sys

import pytest

from dspark_ops import contracts
from dspark_ops.api import Arch, RankClass
from dspark_ops.selection.device import Device
from dspark_ops.selection.manifest_check import kernel_faults
from dspark_ops.selection.packages import check_package
from dspark_ops.selection.problem import Problem
from dspark_ops_nvidia_sm90.plugin import FLASH_MLA, KERNELS, dspark_ops_manifest

ARCHES = ("sm_80", "sm_90", "sm_100", "sm_103", "sm_120", "gfx90a", "gfx942", "gfx950", "cpu")


def test_nothing_is_wrong_with_the_manifest() -> None:
    assert kernel_faults(dspark_ops_manifest()) == []


def test_reading_the_manifest_imports_neither_torch_nor_triton_nor_flashmla() -> None:
    code = (
        "import sys; from dspark_ops_nvidia_sm90.plugin import dspark_ops_manifest; dspark_ops_manifest(); "
        "sys.exit(any(name in sys.modules for name in ('torch', 'triton', 'flash_mla')))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_hopper_alone_is_accepted() -> None:
    for kernel in KERNELS:
        assert [name for name in ARCHES if kernel.arch.matches(Arch.parse(name))] == ["sm_90"]
        assert kernel.arch.matches(Device.simulate("H200").arch)
        assert kernel.rank == RankClass.FUSED


@pytest.mark.parametrize("site", [0, 1])
def test_both_places_of_the_decode_lie_in_the_region(site: int) -> None:
    contract = contracts.get("sparse_mla_decode")
    place = contract.sites(contracts.model_shapes("deepseek-v4.1-flash/tp4"))[site]
    for rows in (80, 128, 4096):
        problem = Problem.at(contract, place).with_rows("T", rows)
        assert [reason for constraint in KERNELS[0].region if (reason := constraint.check(problem))] == []
    few = Problem.at(contract, place).with_rows("T", 64)
    refused = [constraint.subject for constraint in KERNELS[0].region if constraint.check(few) is not None]
    assert refused == ["A*A*T"], "16 heads of 64 rows are faster unpadded"


def test_a_row_whose_bits_depend_on_the_others_is_not_called_batch_invariant() -> None:
    assert not KERNELS[0].traits.batch_invariant


def test_without_flashmla_the_reason_names_the_line_that_installs_it() -> None:
    reason = check_package(FLASH_MLA)
    assert reason is not None
    assert "dspark-ops-nvidia-sm90[flashmla]" in str(reason) or "dspark-ops-nvidia-sm90[flashmla]" in reason.hint
