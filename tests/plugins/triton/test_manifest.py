"""The manifest: what is registered, where it may run, and that reading it costs nothing."""

from __future__ import annotations

import subprocess
import sys

import pytest

from dspark_ops import contracts
from dspark_ops.api import Arch, Evidence, RankClass
from dspark_ops.selection.manifest_check import kernel_faults
from dspark_ops.selection.problem import Problem
from dspark_ops_triton.plugin import KERNELS, dspark_ops_manifest

MODEL = contracts.model_shapes("deepseek-v4.1-flash/tp4")


def test_nothing_is_wrong_with_the_manifest() -> None:
    assert kernel_faults(dspark_ops_manifest()) == []


def test_reading_the_manifest_imports_neither_torch_nor_triton() -> None:
    code = (
        "import sys; from dspark_ops_triton.plugin import dspark_ops_manifest; dspark_ops_manifest(); "
        "sys.exit('torch' in sys.modules or 'triton' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


#: Most rows of operators that one program serves.
MOST_ROWS = {"schedule_prefix": 256, "moe_sort": 128, "varctx_schedule": 4095}


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.op)
def test_every_place_of_the_model_lies_in_the_region(kernel) -> None:
    contract = contracts.get(kernel.op)
    for site in contract.sites(MODEL):
        for rows in (1, 6, 64, MOST_ROWS.get(kernel.op, 4096)):
            problem = Problem.at(contract, site).with_rows(contract.rows, rows)
            assert [reason for constraint in kernel.region if (reason := constraint.check(problem))] == []


def test_argmax_of_more_than_two_to_the_31_elements_is_allowed_since_offsets_are_64_bit() -> None:
    contract = contracts.get("argmax_rows")
    problem = Problem.at(contract, contract.sites(MODEL)[0]).with_rows("R", 16612)
    assert 16612 * 129280 > 2**31
    argmax = next(kernel for kernel in KERNELS if kernel.op == "argmax_rows")
    assert [reason for constraint in argmax.region if (reason := constraint.check(problem))] == []


@pytest.mark.parametrize(
    ("op", "axes", "text"),
    [
        ("argmax_rows", {"V": 2**30 + 1, "R": 1}, "1 <= V <= 1073741824"),
        ("mhc_combine_norm", {"N": 2, "H": 64, "T": 1}, "N in {4}"),
        ("mhc_combine_norm", {"N": 4, "H": 8193, "T": 1}, "1 <= H <= 8192"),
        ("accept_finalize", {"G": 64, "B": 1}, "1 <= G <= 63"),
    ],
)
def test_what_no_test_covers_is_outside_the_region(op: str, axes: dict[str, int], text: str) -> None:
    kernel = next(kernel for kernel in KERNELS if kernel.op == op)
    contract = contracts.get(op)
    site = contract.sites(MODEL)[0]
    problem = Problem.at(contract, type(site)(site.name, axes=axes))
    reasons = [reason for constraint in kernel.region if (reason := constraint.check(problem))]
    assert [reason.wanted for reason in reasons] == [text]


def test_on_a_cpu_only_the_interpreted_variants_may_run_and_only_if_the_interpreter_is_on() -> None:
    cpu = Arch.parse("cpu")
    accepted = [kernel for kernel in dspark_ops_manifest().kernels if kernel.arch.matches(cpu)]
    assert sorted((kernel.op, kernel.variant) for kernel in accepted) == sorted(
        (kernel.op, f"{kernel.variant}_interpreted") for kernel in KERNELS
    )
    assert {kernel.features for kernel in accepted} == {("triton_interpreter",)}
    assert not any(kernel.traits.graph_safe for kernel in accepted)


def test_no_architecture_without_hardware_claims_more_than_the_interpreter() -> None:
    for kernel in KERNELS:
        for name in ("sm_100", "sm_103", "gfx942", "gfx950"):
            assert kernel.evidence_on(name) == Evidence.INTERPRETED
        assert kernel.evidence_on("sm_120") == Evidence.DECLARED


def test_a_portable_kernel_is_fused_only_where_a_vendor_s_plugin_has_no_other_for_a_source_change() -> None:
    fused = {kernel.op for kernel in KERNELS if kernel.rank is RankClass.FUSED}
    assert fused == {"accept_tail", "accept_forced", "mhc_post_combine", "mhc_post_combine_norm"}
    assert {kernel.rank for kernel in KERNELS} == {RankClass.FUSED, RankClass.PORTABLE}
