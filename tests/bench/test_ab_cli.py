"""``dspark-ops bench ab`` and ``dspark-ops compare``, from the command line to the files."""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from dspark_ops.cli import main

SCRIPT = """
import json, os, sys
cycle = float(sys.argv[1]) * (1 + os.urandom(1)[0] / 1e6)
print(json.dumps({"cycle_us": [cycle], "output_tps": [5e6 / cycle], "accept_len": 5, "warmups": 1, "cached_tokens": 0,
  "dispatch": [{"operator": "argmax_rows", "kernel": sys.argv[2], "calls": int(sys.argv[3])}]}))
"""


@pytest.fixture(autouse=True)
def _own_lock(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bench that runs on this machine meanwhile is no business of these tests."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path_factory.mktemp("lock")))


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "serve.py"
    path.write_text(SCRIPT)
    return path


def words(script: Path, cycle: int, kernel: str, calls: int = 80) -> str:
    return f"{sys.executable} -S {script} {cycle} {kernel} {calls}"


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    code = main([str(item) for item in arguments])
    out, err = capsys.readouterr()
    return code, out, err


def test_two_commands_are_compared_and_the_records_give_the_same_verdict_again(
    script: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    code, text, progress = run(
        capsys, "bench", "ab", "--a-cmd", words(script, 5000, "core/argmax_rows/reference"),
        "--b-cmd", words(script, 4500, "fast/argmax_rows/x"), "--pairs", 2, "--expect-b", "fast/*", "--out", out,
    )  # fmt: skip
    assert code == 0
    assert "B is faster: +11." in text and "A against A" in text and "not shown" in text
    assert len(progress.splitlines()) == 8 and "[1/8] arm A (pair 0)" in progress
    assert {path.name for path in out.iterdir()} == {"A.json", "B.json", "report.json", "report.html"}
    report = json.loads((out / "report.json").read_text())
    assert (report["schema"], report["comparison"]["verdict"]) == (1, "B is faster")
    assert report["dispatch"]["B"][0]["kernel"] == "fast/argmax_rows/x" and report["dispatch"]["B"][0]["calls"] == 80
    assert report["fingerprints"]["A"]["versions"]["dspark-ops"]
    code, again, _ = run(capsys, "compare", out / "A.json", out / "B.json", "--json")
    assert code == 0
    assert json.loads(again)["comparison"] == report["comparison"]

    code, _, error = run(capsys, "compare", out / "B.json", out / "A.json")
    assert code == 2 and "wanted arm A, then arm B" in error
    code, _, error = run(capsys, "bench", "ab", "--a-cmd", "a", "--b-cmd", "b", "--out", out)
    assert code == 2 and "holds A.json, B.json, report.json, report.html already" in error


def test_an_arm_whose_kernel_was_called_0_times_is_an_error_in_the_exit_code(
    script: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, text, _ = run(
        capsys, "bench", "ab", "--a-cmd", words(script, 5000, "core/argmax_rows/reference"),
        "--b-cmd", words(script, 4500, "fast/argmax_rows/x", 0), "--pairs", 2, "--control", 0, "--json",
    )  # fmt: skip
    comparison = json.loads(text)["comparison"]
    assert (code, comparison["verdict"]) == (1, "no statement")
    assert "called 0 times" in comparison["faults"][0]


def record(folder: Path, script: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    command = words(script, 5000, "core/argmax_rows/reference")
    run(capsys, "bench", "ab", "--a-cmd", command, "--b-cmd", command, "--pairs", 2, "--control", 0, "--out", folder)
    found: dict[str, Any] = json.loads((folder / "B.json").read_text())
    return found


def test_compare_refuses_by_the_name_of_the_field_and_a_declared_treatment_passes(
    script: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    changed = record(tmp_path, script, capsys)
    for launch in changed["launches"]:
        launch["fingerprint"]["versions"]["torch"] = "9.9"
    (tmp_path / "B9.json").write_text(json.dumps(changed))
    code, _, error = run(capsys, "compare", tmp_path / "A.json", tmp_path / "B9.json")
    assert code == 1
    assert "cannot be compared:\n  versions.torch differs between the arms:" in error
    assert "if that is the treatment, say  --treatment versions.torch" in error
    arguments = ("compare", tmp_path / "A.json", tmp_path / "B9.json", "--treatment", "versions.torch")
    code, text, _ = run(capsys, *arguments, "--html", tmp_path / "page.html")
    assert code == 0 and "no treatment: both arms run the same" in text
    assert (tmp_path / "page.html").read_text().startswith("<!doctype html>")


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("{}", "wanted a 'dspark-ops arm' of schema 1, got kind None, schema None"),
        ('{"kind": "dspark-ops arm", "schema": 2}', "got kind 'dspark-ops arm', schema 2"),
        ('{"kind": "dspark-ops arm", "schema": 1}', "cannot be read: KeyError: 'session'"),
        ("[1]", "wanted a 'dspark-ops arm'"),
        ("no json", "wanted the JSON that"),
    ],
)
def test_a_file_that_is_no_record_is_refused_with_what_it_holds(
    content: str, text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "A.json").write_text(content)
    code, _, error = run(capsys, "compare", tmp_path / "A.json", tmp_path / "A.json")
    assert code == 2 and text in error
    code, _, error = run(capsys, "compare", tmp_path / "none.json", tmp_path / "A.json")
    assert code == 2 and "none.json: cannot be read" in error


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("--a-cmd", "x"), "wanted both --a-cmd and --b-cmd"),
        (
            ("--a-cmd", "x", "--b-cmd", "y", "--model", "m", "--knock-out", "z"),
            "--model, --knock-out would have no effect",
        ),
        (("--prompt", "x"), "wanted --model DIR, or --a-cmd and --b-cmd"),
        (("--prompt", "x", "--model", "/none"), "wanted a directory with a config.json"),
        (("--a-cmd", "x", "--b-cmd", "y", "--a-env", "X"), "--a-env X: wanted NAME=VALUE"),
        (("--a-cmd", "x", "--b-cmd", "y", "--pairs", "1"), "pairs: wanted 2 or more"),
        (("--a-cmd", "x", "--b-cmd", "y", "--order", "aabb"), "wanted abba or random"),
    ],
)
def test_misuse_is_said_before_anything_runs(
    arguments: tuple[str, ...], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, error = run(capsys, "bench", "ab", *arguments)
    assert code == 2 and text in error
