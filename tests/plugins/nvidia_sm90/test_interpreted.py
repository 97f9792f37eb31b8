"""The kernels' numbers in Triton's interpreter, in a process of its own."""

from __future__ import annotations

from pathlib import Path

from dspark_ops.conformance.interpreter import run_interpreted


def test_the_interpreted_tests_pass() -> None:
    folder = Path(__file__).parent / "interpreted"
    finished = run_interpreted(["-m", "pytest", "-q", str(folder)])
    assert finished.returncode == 0, finished.stdout + finished.stderr
    assert " passed" in finished.stdout
    assert "skipped" not in finished.stdout
