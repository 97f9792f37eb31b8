"""Gathering as a whole, and the verb: what reaches the facts, the exit code and the JSON. Cases O24 and O25."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dspark_ops.cli import main
from dspark_ops.doctor import Severity, examine, gather
from dspark_ops.doctor.gather import Request

ENVIRON = {name: value for name, value in os.environ.items() if not name.startswith("DSPARK_OPS_")}


@pytest.fixture(autouse=True)
def _no_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))  # the caches' default place
    for name in os.environ:
        if name.startswith("DSPARK_OPS_"):
            monkeypatch.delenv(name)


def findings(request: Request, check: str) -> list[Any]:
    (answer,) = [item for item in examine(gather(request)) if item.check.name == check]
    return list(answer.findings)


def test_gathering_on_this_machine_imports_no_torch_and_leaves_no_device_open() -> None:
    code = (
        "import sys; from dspark_ops.doctor import examine, gather\n"
        "facts = gather()\n"
        "assert facts.device is not None and facts.plan is not None, facts.device_problem + facts.plan_problem\n"
        "assert facts.open_devices == (), facts.open_devices\n"
        "assert len(examine(facts)) == 12\n"
        "print([name for name in ('torch', 'triton') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=ENVIRON)
    assert (done.returncode, done.stdout) == (0, "[]\n"), done.stderr


def test_o25_a_stray_variable_is_found_and_the_rest_is_examined_all_the_same() -> None:
    facts = gather(Request(environ={**ENVIRON, "DSPARK_OPS_PLUGIN": "triton"}))
    assert "environment DSPARK_OPS_PLUGIN: unknown variable" in facts.configuration_problem
    assert "did you mean 'DSPARK_OPS_PLUGINS'?" in facts.configuration_problem
    assert facts.plan is not None


def test_a_removed_variable_is_told_as_such_and_not_as_an_unknown_one() -> None:
    request = Request(environ={**ENVIRON, "DSPARK_OPS_OLD": "1"}, removed={"DSPARK_OPS_OLD": "use policy.lock"})
    (finding,) = findings(request, "configuration")
    assert finding.fix == "unset it; use policy.lock"


def test_an_old_compiler_reaches_the_finding(tmp_path: Path, ask: Any) -> None:
    nvcc = tmp_path / "cuda/bin/nvcc"
    nvcc.parent.mkdir(parents=True)
    nvcc.write_text('#!/bin/sh\necho "Cuda compilation tools, release 12.4, V12.4.131"\n')
    nvcc.chmod(0o755)
    # Nothing else is on the path: no compiler to link with, and a Triton that need not be there.
    environ = {**ENVIRON, "CUDA_HOME": str(tmp_path / "cuda"), "PATH": "/nowhere"}
    request = Request(device=ask.device("sm_103"), environ=environ, rows=[1], time_limit=10)
    (finding,) = findings(request, "toolkit")
    assert finding.finding.startswith("nvcc 12.4 is older than the GPU: kernels built at run time fail for sm_103")


def test_o24_a_start_that_a_strict_policy_refuses_is_an_error_of_the_plan(tmp_path: Path, ask: Any) -> None:
    (tmp_path / "dspark-ops.toml").write_text('[policy]\nrequire_class = "fused"\nfallback = "fail"\n')
    (error, *_) = findings(Request(device=ask.device("cpu"), environ=ENVIRON, rows=[1]), "plan")
    assert (error.severity, error.finding) == (Severity.ERROR, "with this configuration a server does not start")
    lines = error.evidence.splitlines()
    assert lines[0].endswith("no kernel may serve it") and lines[-1].startswith("... and ") and len(lines) == 9


def fake_torch(**cuda: Any) -> Any:
    values = {"is_initialized": lambda: False, "_is_in_bad_fork": lambda: False, **cuda}
    return SimpleNamespace(cuda=SimpleNamespace(**values), version=None, __version__="2.13.0")


def test_a_fork_after_the_start_of_the_device_runtime_is_seen_in_the_child(monkeypatch: Any, ask: Any) -> None:
    torch = fake_torch(is_initialized=lambda: True)
    monkeypatch.setitem(sys.modules, "torch", torch)
    parent = gather(Request(device=ask.device("cpu"), environ=ENVIRON, rows=[1]))
    assert (parent.torch.started, parent.torch.in_forked_child) == (True, False)
    # What torch answers in a child of that process (its own hook at fork sets it).
    torch.cuda._is_in_bad_fork = lambda: True
    (finding,) = findings(Request(device=ask.device("cpu"), environ=ENVIRON, rows=[1]), "fork")
    assert finding.severity is Severity.ERROR and finding.evidence == "torch.cuda: in a forked child"


def test_a_plugin_whose_import_starts_the_device_runtime_is_seen(site: Any, monkeypatch: Any, ask: Any) -> None:
    torch = fake_torch()
    monkeypatch.setitem(sys.modules, "torch", torch)
    site.plugin("acme", before="import sys\nsys.modules['torch'].cuda.is_initialized = lambda: True")
    (finding,) = findings(Request(device=ask.device("cpu"), environ=ENVIRON, rows=[1]), "fork")
    assert finding.finding.startswith("importing a plugin starts the device runtime")


def test_o26_a_broken_plugin_is_a_finding_of_the_verb_with_exit_code_one(site: Any, capsys: Any) -> None:
    site.plugin("acme", before="raise OSError('libfoo.so.2')")
    assert main(["doctor", "--device", "cpu", "--rows", "1", "--json"]) == 1
    report = json.loads(capsys.readouterr().out)
    (check,) = [item for item in report["checks"] if item["name"] == "plugins"]
    (finding,) = check["findings"]
    assert finding["severity"] == "error" and finding["evidence"].endswith("OSError: libfoo.so.2")
    assert set(finding) == {"check", "severity", "finding", "evidence", "fix"}


def test_a_warning_counts_with_strict_alone(site: Any, capsys: Any) -> None:
    site.distribution("flash-mla", "1.0.0.dev0")
    words = ["doctor", "--device", "cpu", "--rows", "1"]
    assert main(words) == 0
    text = capsys.readouterr().out
    assert "warning: flash-mla 1.0.0.dev0 is a placeholder without the module flash_mla  [package_names]" in text
    assert "  fix: pip uninstall flash-mla ; install FlashMLA from source" in text
    assert main([*words, "--strict"]) == 1


def test_a_machine_without_findings_ends_with_code_zero_and_lists_every_question(capsys: Any) -> None:
    assert main(["doctor", "--device", "cpu", "--rows", "1"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("doctor: cpu (cpu), simulated") and "0 errors" in text
    assert "libcuda          not asked    no NVIDIA device" in text


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--device", "sm_999"], "no device with architecture sm_999"),
        (["--config", "absent.toml"], "--config: wanted a file, got absent.toml"),
        (["--device", "cpu", "--which", "0"], "give one of the two"),
        (["--rows", "none"], "--rows: "),
        (["--model", "unknown"], "unknown"),
    ],
)
def test_misuse_ends_with_code_two(words: list[str], says: str, capsys: Any) -> None:
    assert main(["doctor", *words]) == 2
    assert says in capsys.readouterr().err


def test_o24_a_faulty_package_degrades_an_operator_and_the_verb_ends_with_code_one(
    site: Any, capsys: Any, monkeypatch: Any
) -> None:
    monkeypatch.setenv("DSPARK_OPS_PLUGINS", "acme")
    site.plugin(
        "acme",
        "name='acme', api='>=1,<2', kernels=["
        "Kernel('argmax_rows', 'fast', 'acme_plugin:run', arch=family('sm_10x'), rank=RankClass.FUSED,"
        " packages=(Package('vendorlib', 'vendorlib', '>=2', install='pip install vendorlib'),)),"
        "Kernel('argmax_rows', 'slow', 'acme_plugin:run')]",
        before="from dspark_ops.api import Package",
    )
    site.module("vendorlib", "")
    site.distribution("vendorlib", "1.4", modules=("vendorlib",))
    assert main(["doctor", "--device", "sm_103", "--rows", "6", "--json"]) == 1
    report = json.loads(capsys.readouterr().out)
    found = {item["name"]: item["findings"] for item in report["checks"]}
    (package,) = [finding for finding in found["packages"] if "vendorlib" in finding["finding"]]
    assert package["finding"] == "1 kernel for sm_103 cannot serve: package vendorlib has the wrong version"
    (degraded,) = [finding for finding in found["plan"] if finding["severity"] == "error"]
    assert degraded["finding"] == (
        "a weaker class serves than this device could run, since vendorlib: wanted vendorlib>=2, got 1.4: argmax_rows"
    )
    assert "instead of acme/argmax_rows/fast (fused)" in degraded["evidence"]
    assert degraded["fix"] == "install it with  pip install vendorlib"
