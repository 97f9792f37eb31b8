"""A plugin that lives outside this repository: built, installed beside core, and checked without our files."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCES = {"dspark_ops": ROOT / "core", "dspark_ops_example": Path(__file__).parent / "example_plugin"}

pytest.importorskip("torch", reason="kernels cannot run without torch")


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The scripts of a fresh environment with the two wheels; torch and the rest are borrowed from this one."""
    folder = tmp_path_factory.mktemp("example")
    for package, source in SOURCES.items():
        command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(source)]
        subprocess.run(command, check=True, capture_output=True)
        assert len([*folder.glob(f"{package}-*.whl")]) == 1
    venv.create(folder / "venv", with_pip=False)
    scripts = folder / "venv" / "bin"
    wheels = [str(wheel) for wheel in folder.glob("*.whl")]
    pip = [sys.executable, "-m", "pip", "-q", "--python", str(scripts / "python"), "install", "--no-index", "--no-deps"]
    subprocess.run([*pip, *wheels], check=True, capture_output=True)
    (site,) = (folder / "venv" / "lib").glob("python3.*/site-packages")
    # A path line adds packages and their metadata, and runs no .pth file there: this repository's sources stay out.
    (site / "borrowed.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    return scripts


def run(installed: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "TRITON_INTERPRET")}
    environment["DSPARK_OPS_PLUGINS"] = "example"
    return subprocess.run(
        [installed / words[0], *words[1:]], env=environment, capture_output=True, text=True, cwd=installed, timeout=300
    )


def test_an_author_checks_a_plugin_with_what_is_installed_alone(installed: Path) -> None:
    where = run(installed, "python", "-c", "import dspark_ops; print(dspark_ops.__file__)")
    assert where.stdout.startswith(str(installed.parent)), where.stderr
    finished = run(installed, "dspark-ops", "check", "example", "--device", "cpu", "--json")
    assert finished.returncode == 0, finished.stdout[-3000:] + finished.stderr
    report = json.loads(finished.stdout)
    assert report["passed"] and report["schema"] == "dspark-ops conformance 1"
    records = {record["kernel"]: record for record in report["kernels"]}
    assert sorted(records) == ["example/accept_finalize/torch", "example/argmax_rows/torch"]
    for record in records.values():
        assert (record["distribution"], record["version"]) == ("dspark-ops-example", "0.1.0")
        assert (record["arch"], record["level"], record["failures"]) == ("cpu", "conformant", [])
        assert {level["status"] for level in record["levels"].values()} == {"passed"}


def test_an_author_runs_the_same_in_pytest(installed: Path) -> None:
    words = ["-m", "pytest", "-q", "--pyargs", "dspark_ops.conformance", "--dspark-plugin", "example"]
    finished = run(installed, "python", *words, "--dspark-device", "cpu", "--dspark-op", "argmax_rows")
    assert finished.returncode == 0, finished.stdout + finished.stderr
    assert "3 passed" in finished.stdout
