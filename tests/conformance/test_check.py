"""The check as a whole: records of evidence, expected failures, commands that repeat, and what it refuses to claim."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from dspark_ops import contracts
from dspark_ops.api import Kernel, Manifest, Package, any_gpu, axis, family
from dspark_ops.cli import main
from dspark_ops.conformance import interpreter
from dspark_ops.conformance.check import Request, run_check
from dspark_ops.conformance.report import Report
from dspark_ops.errors import ConfigError, DeviceError, EvidenceError, PluginError, UnknownOperatorError
from dspark_ops.selection.discovery import build_registry

ARGMAX = contracts.get("argmax_rows").reference
TRITON = (Package("triton", "triton"),)


def honest(x):
    return ARGMAX(x)


def last_of_equals(x):
    return x.shape[1] - 1 - ARGMAX(x.flip(1))


def test_a_report_survives_json_and_has_all_that_a_record_of_evidence_needs(planted: Any) -> None:
    planted.kernel("argmax_rows", last_of_equals)
    report = planted.check("claims", "numbers", seed=5)
    data = json.loads(json.dumps(report.to_json()))
    assert Report.from_json(data).to_json() == data
    assert {"dspark_ops", "api", "python", "torch"} <= set(data["versions"])
    assert data["date"].startswith("20") and data["date"].endswith("+00:00")
    (record,) = data["kernels"]
    assert (record["kernel"], record["arch"], record["level"]) == (
        "planted/argmax_rows/last_of_equals",
        "cpu",
        "declared",
    )
    assert record["levels"]["numbers"]["counts"]["cases"] == 25
    failure = next(one for one in record["failures"] if one["case"] == "all equal 1x8")
    assert (failure["seed"], failure["output"], failure["index"]) == (5, "output", [0])
    assert (failure["wanted"], failure["got"]) == ("0 (0x0000000000000000)", "7 (0x0000000000000007)")


def test_numbers_without_failures_make_a_kernel_conformant_where_it_ran_and_part_of_them_does_not(planted: Any) -> None:
    planted.kernel("argmax_rows", honest)
    (record,) = planted.check("numbers").kernels
    assert (record.level, record.note) == ("conformant", "claims and traits not checked")
    (record,) = planted.check("claims").kernels
    assert record.level == "declared"
    (record,) = planted.check("numbers", case="random*").kernels
    assert (record.level, record.levels["numbers"].counts["cases"]) == ("declared", 4)


def test_what_cannot_run_is_not_run_and_not_passed(planted: Any) -> None:
    planted.kernel("argmax_rows", honest, arch=family("sm_10x"))
    report = planted.check()
    (record,) = report.kernels
    assert report.passed and record.level == "declared"
    assert record.levels["numbers"].status == record.levels["traits"].status == "not run"
    assert "DEVICE_VENDOR vendor: wanted nvidia (sm_10x), got cpu (cpu)" in record.levels["numbers"].reason
    (left_out,) = record.levels["claims"].not_covered
    assert left_out.startswith("import of planted_kernels:honest, calls inside the region: DEVICE_VENDOR")
    (record,) = planted.check(device="sm_103").kernels
    assert record.levels["numbers"].reason == "sm_103 is simulated: only claims and builds can be checked"


def test_traits_that_need_a_gpu_are_said_not_to_have_run(planted: Any) -> None:
    from dspark_ops.api import Traits

    planted.kernel("argmax_rows", honest, traits=Traits(graph_safe=True))
    (record,) = planted.check("traits").kernels
    assert record.levels["traits"].not_covered == [
        "not run: batch_invariant: not claimed",
        "not run: graph_safe (replays, host sync, allocations): needs a GPU",
    ]


def test_numbers_in_the_interpreter_are_interpreted_evidence_only_after_the_proof(
    planted: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    planted.kernel("argmax_rows", honest, arch=any_gpu(), packages=TRITON)
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    monkeypatch.setattr(interpreter, "prove", lambda: ("casts",))
    report = planted.check("numbers")
    (record,) = report.kernels
    assert (record.arch, record.level) == ("cpu", "interpreted")
    assert record.note.startswith("numbers in Triton's interpreter, for any GPU")
    assert report.interpreter == ("casts",)

    def refuse() -> tuple[str, ...]:
        raise EvidenceError("the repaired interpreter of Triton 9.9 is wrong, so interpreted evidence is refused")

    monkeypatch.setattr(interpreter, "prove", refuse)
    report = planted.check("numbers")
    (record,) = report.kernels
    assert (record.level, record.levels["numbers"].status) == ("declared", "not run")
    assert "refused" in record.levels["numbers"].reason
    assert not report.passed and "Triton 9.9 is wrong" in report.findings[0]


def test_the_same_target_under_two_names_runs_once_in_the_interpreter(
    planted: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []

    def counted(x):
        calls.append(1)
        return ARGMAX(x)

    planted.kernel("argmax_rows", counted, arch=any_gpu(), packages=TRITON)
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    monkeypatch.setattr(interpreter, "prove", lambda: ("casts",))
    planted.check("numbers")
    once = len(calls)
    planted.kernel("argmax_rows", counted, arch=any_gpu(), packages=TRITON, variant="twin")
    first, second = planted.check("numbers").kernels
    assert len(calls) == 2 * once
    assert (first.level, second.level, second.note) == ("interpreted", "interpreted", f"as {first.kernel}")


def test_an_accelerator_that_fails_ends_the_check_and_nothing_after_it_has_passed(planted: Any) -> None:
    def breaks(x):
        if x.shape[-1] == 4099:
            raise torch.AcceleratorError("CUDA error: misaligned address")
        return last_of_equals(x)

    planted.kernel("argmax_rows", breaks)
    planted.kernel("argmax_rows", honest)
    report = planted.check("numbers")
    broken, after = report.kernels
    assert "misaligned address" in report.findings[0] and not report.passed
    assert [failure.case for failure in broken.failures][:1] == ["all equal 1x8"]
    assert (broken.level, broken.levels["numbers"].status, broken.levels["numbers"].reason) == (
        "declared", "failed", "not finished",
    )  # fmt: skip
    assert (after.level, after.levels["numbers"].status) == ("declared", "not run")
    assert after.levels["numbers"].reason.startswith("not run: argmax_rows: the accelerator failed")


def test_an_accelerator_that_fails_at_a_border_leaves_no_evidence(planted: Any) -> None:
    def breaks(x):
        if x.shape[-1] == 2**20:
            raise torch.AcceleratorError("CUDA error: illegal memory access")
        return ARGMAX(x)

    planted.kernel("argmax_rows", breaks, region=[axis("V").between(1, 2**20)])
    (record,) = planted.check().kernels
    assert (record.level, record.levels["claims"].reason) == ("declared", "not finished")
    assert "numbers" not in record.levels


def test_wrong_requests_are_refused_with_the_names_that_exist(planted: Any) -> None:
    planted.kernel("argmax_rows", honest)
    with pytest.raises(ConfigError, match="no plugin 'plantd': loaded are planted; did you mean 'planted'"):
        planted.check(plugin="plantd")
    with pytest.raises(UnknownOperatorError):
        planted.check(ops=("argmax_row",))
    with pytest.raises(ConfigError, match="plugin planted registered no kernel of mhc_post"):
        planted.check(ops=("mhc_post",))
    with pytest.raises(ConfigError, match="level: wanted claims or numbers or traits or builds, got number"):
        planted.check("number")
    with pytest.raises(DeviceError):
        planted.check(device="cuda")
    assert planted.check("numbers", case="no such case").findings == ["no case that was run is named 'no such case'"]


def test_a_plugin_that_did_not_load_is_shown_with_its_cause() -> None:
    from dspark_ops.selection.registry import PluginFailure, Registry

    failure = PluginFailure("p", "dist-p", "1.0", "p.plugin", "import", "ImportError: no p", "Traceback ...")
    with pytest.raises(PluginError, match=r"plugin p .*not loaded at import: ImportError: no p\nTraceback"):
        run_check(Request(plugin="p", device="cpu"), Registry({}, (), (failure,)))


KERNELS = "name='p9', api='>=1,<2', kernels=(Kernel('argmax_rows', 'last', 'p9_kernels:last'),)"
LAST = """
    def last(x):
        return x.shape[1] - 1 - x.flip(1).argmax(-1)
"""


def test_the_printed_command_repeats_the_failure_and_only_it(
    site: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    site.plugin("p9", KERNELS)
    site.module("p9_kernels", LAST)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DSPARK_OPS_PLUGINS", "p9")
    saved = tmp_path / "report.json"
    assert main(["check", "p9", "--device", "cpu", "--seed", "7", "--json", "--write", str(saved)]) == 1
    report = json.loads(capsys.readouterr().out)
    assert json.loads(saved.read_text()) == report
    failure = next(one for one in report["kernels"][0]["failures"] if "rows of" in one["case"])
    words = shlex.split(failure["repeat"])
    assert words[:2] == ["dspark-ops", "check"]
    assert main([*words[1:], "--json"]) == 1
    again = json.loads(capsys.readouterr().out)["kernels"][0]["failures"]
    assert again == [failure]
    assert main(words[1:]) == 1
    out = capsys.readouterr().out
    assert failure["what"] in out and failure["repeat"] in out and "1 failures" in out


def test_the_pytest_plugin_names_each_kernel_and_level_and_is_inert_without_its_option(
    site: Any, tmp_path: Path
) -> None:
    site.plugin("p9", KERNELS)
    site.module("p9_kernels", LAST)
    known = tmp_path / "known.toml"
    known.write_text('[[xfail]]\nkernel = "p9/*"\nreason = "the last of equals"\n')
    import os

    environment = {**os.environ, "DSPARK_OPS_PLUGINS": "p9", "PYTHONPATH": os.pathsep.join(sys.path)}
    environment.pop("TRITON_INTERPRET", None)

    def pytest_run(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "pytest", "-v", "-p", "no:cacheprovider", *words]
        return subprocess.run(command, env=environment, capture_output=True, text=True, cwd=tmp_path, timeout=120)

    suite = ("--pyargs", "dspark_ops.conformance", "--dspark-plugin", "p9", "--dspark-device", "cpu")
    run = pytest_run(*suite)
    assert run.returncode == 1, run.stderr
    assert "test_kernel[p9/argmax_rows/last-numbers] FAILED" in run.stdout
    assert "repeat: dspark-ops check p9 --op argmax_rows --device cpu --level numbers" in run.stdout
    run = pytest_run(*suite, "--dspark-xfails", str(known), "--dspark-level", "numbers")
    assert run.returncode == 0 and "1 xfailed" in run.stdout, run.stdout
    (tmp_path / "test_other.py").write_text(
        "import sys\n\ndef test_nothing_heavy_is_imported():\n    assert not {'torch', 'triton'} & set(sys.modules)\n"
    )
    assert pytest_run("test_other.py").returncode == 0


@pytest.mark.slow
def test_triton_kernels_of_an_installed_plugin_are_checked_in_a_child_that_interprets() -> None:
    from dspark_ops.selection.discovery import survey
    from dspark_ops.selection.settings import Settings

    registry = survey(Settings(allow=("triton",)))
    request = Request(plugin="triton", ops=("accept_finalize",), device="cpu", levels=("numbers",), time_limit=300)
    report = run_check(request, registry)
    assert len(report.interpreter) == 8
    assert {record.level for record in report.kernels} == {"interpreted"}
    assert [str(failure) for failure in report.failures()] == []


def test_a_registry_of_two_plugins_is_checked_whole_when_none_is_named() -> None:
    manifests = [
        Manifest(name, ">=1,<2", (Kernel("argmax_rows", "v", "nowhere:f", region=[axis("V").at_least(4)]),))
        for name in ("a", "b")
    ]
    report = run_check(Request(device="sm_103", levels=("claims",)), build_registry(manifests))
    assert [record.kernel for record in report.kernels] == ["a/argmax_rows/v", "b/argmax_rows/v"]
    assert report.passed
