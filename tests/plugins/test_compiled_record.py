"""docs/compiled.md and the builds that it shows: every Triton kernel, every architecture, no spill."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dspark_ops.api import Arch
from dspark_ops.selection.discovery import survey
from dspark_ops.selection.settings import Settings

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def builds() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((ROOT / "benchmarks" / "results" / "compiled.json").read_text(encoding="utf-8"))
    return found


@pytest.mark.parametrize("arch", ["sm_90", "sm_100", "sm_103", "gfx942", "gfx950"])
def test_every_triton_kernel_of_an_architecture_is_on_record_as_built(builds: dict[str, Any], arch: str) -> None:
    wanted = {
        kernel.id
        for kernels in survey(Settings()).kernels.values()
        for kernel in kernels
        if kernel.kernel.prepare
        and kernel.kernel.arch is not None
        and kernel.kernel.arch.matches(Arch.parse(arch))
        and all(package.module == "triton" for package in kernel.kernel.packages)
    }
    assert len(wanted) >= 55
    assert wanted == {name for name, found in builds.items() if arch in found}, "run benchmarks/compiled.py --missing"


def test_no_recorded_build_spills(builds: dict[str, Any]) -> None:
    assert {name: arch for name, found in builds.items() for arch, entry in found.items() if entry["spilled"]} == {}


def each_build(builds: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for kernel, found in builds.items():
        for arch, entry in found.items():
            for build in entry["builds"]:
                yield kernel, arch, build


def test_a_program_of_one_warp_waits_at_no_barrier(builds: dict[str, Any]) -> None:
    single = [item for item in each_build(builds) if item[2]["options"].get("num_warps") == 1]
    assert len(single) > 100
    assert [item[:2] for item in single if item[2]["instructions"].get("barriers of a program")] == []


def test_builds_that_are_launched_early_wait_and_let_the_next_one_start_and_no_others_do(
    builds: dict[str, Any],
) -> None:
    for kernel, arch, build in each_build(builds):
        early = bool(build["options"].get("launch_pdl"))
        found = build["instructions"]
        assert ("waits for the kernel before" in found) == early, (kernel, arch, build["function"])
        assert ("lets the next kernel start" in found) == early, (kernel, arch, build["function"])
        assert not (early and arch.startswith("gfx")), (kernel, arch)


@pytest.mark.parametrize("arch", ["sm_90", "sm_100", "sm_103"])
def test_a_kernel_says_that_it_is_set_up_early_where_one_of_its_builds_is(builds: dict[str, Any], arch: str) -> None:
    early = {
        kernel.id: kernel.kernel.traits.pdl for kernels in survey(Settings()).kernels.values() for kernel in kernels
    }
    for kernel, found in builds.items():
        if arch in found:
            waiting = any("waits for the kernel before" in build["instructions"] for build in found[arch]["builds"])
            assert waiting == early[kernel], kernel


@pytest.mark.parametrize("plugin", ["nvidia_sm10x", "amd_gfx950"])
@pytest.mark.parametrize(
    "operator, variant", [("main_projection", "split_codes"), ("paged_mqa_logits_fp4", "page_codes")]
)
def test_products_of_stored_codes_use_matrix_instructions_that_take_scales(
    builds: dict[str, Any], plugin: str, operator: str, variant: str
) -> None:
    found = builds[f"{plugin}/{operator}/{variant}"]
    for arch, entry in found.items():
        assert any("scaled matrix instructions" in build["instructions"] for build in entry["builds"]), arch
    assert set(found) == ({"gfx950"} if plugin == "amd_gfx950" else {"sm_100", "sm_103"})


def test_the_page_is_up_to_date() -> None:
    result = subprocess.run(
        [sys.executable, ROOT / "docs" / "build_compiled.py", "--check"], capture_output=True, text=True
    )
    assert result.returncode == 0, f"run  python docs/build_compiled.py\n{result.stderr}"
