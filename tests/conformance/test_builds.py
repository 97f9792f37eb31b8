"""The level ``builds``: kernels are compiled for a device that is not here, and what does not fit is a failure."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("triton")

from dspark_ops.conformance import builds
from dspark_ops.conformance.check import Request, run_check
from dspark_ops.conformance.report import KernelRecord
from dspark_ops.selection.discovery import discover

KERNEL = "triton/accept_finalize/one_launch"


def checked(device: str, levels: tuple[str, ...] = ("builds",)) -> tuple[bool, dict[str, KernelRecord]]:
    request = Request(plugin="triton", ops=("accept_finalize",), device=device, levels=levels)
    report = run_check(request, discover())
    return report.passed, {record.kernel: record for record in report.kernels}


@pytest.mark.parametrize("device", ["sm_103", "gfx950"])
def test_builds_that_fit_make_a_kernel_compiled_for_that_architecture(device: str) -> None:
    passed, records = checked(device)
    record = records[KERNEL]
    assert passed
    assert (record.arch, record.level, record.note) == (device, "compiled", "built, and not run")
    assert record.levels["builds"].counts["builds"] >= 2
    assert record.sources.startswith("sha256:")


def test_a_kernel_for_something_else_is_not_built_and_the_reason_is_given() -> None:
    _, records = checked("sm_103")
    other = records[f"{KERNEL}_interpreted"]
    assert (other.level, other.levels["builds"].reason) == ("declared", "it is for any cpu, and this is sm_103")


def test_on_a_cpu_the_reason_names_what_to_write() -> None:
    passed, records = checked("cpu")
    assert passed
    assert "--device sm_103" in records[KERNEL].levels["builds"].reason


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"spilled": 8}, "spills 8 bytes per thread on sm_103 with "),
        ({"shared": 228 * 1024}, "wants 233472 bytes of shared memory on sm_103 with "),
    ],
)
def test_what_spills_or_does_not_fit_is_a_failure_with_the_command_that_repeats_it(
    change: dict[str, Any], text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    build = builds.build
    monkeypatch.setattr(builds, "build", lambda launch, arch: replace(build(launch, arch), **change))
    passed, records = checked("sm_103")
    failure = records[KERNEL].failures[0]
    assert not passed and records[KERNEL].level == "declared"
    assert failure.what.startswith(text)
    assert "--device sm_103 --level builds" in failure.repeat and "--op accept_finalize" in failure.repeat


def test_what_the_compiler_refuses_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(launch: Any, arch: str) -> Any:
        raise RuntimeError("no such instruction")

    monkeypatch.setattr(builds, "build", refuses)
    _, records = checked("sm_103", ("claims", "builds"))
    assert "RuntimeError: no such instruction" in records[KERNEL].failures[0].what
    assert records[KERNEL].levels["claims"].status == "passed"
