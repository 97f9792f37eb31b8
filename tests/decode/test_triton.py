"""The loop over Triton kernels in the interpreter: other kernels, the same tokens (P8)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

TINY = Path(__file__).parents[2] / "examples" / "tiny_v41"


def decoded(prompts: Path, *more: str, **environment: str) -> dict:
    words = [sys.executable, "-m", "dspark_ops.cli", "decode", "--model", str(TINY), "--prompts", str(prompts)]
    run = subprocess.run(
        [*words, "--max-tokens", "3", "--gamma", "2", "--json", *more],
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
    )
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout)


@pytest.mark.slow
def test_two_short_prompts_give_the_references_tokens_through_interpreted_triton_kernels(tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("import os\ndef f(x):\n")
    # Without the plain run beside it, whose tokens are those of the references' run below.
    report = decoded(prompts, "--no-compare", TRITON_INTERPRET="1")
    served = {entry["operator"].strip(): entry["kernel"] for entry in report["plan"]["operators"]}
    assert sum(kernel.startswith("triton/") for kernel in served.values()) >= 18
    reference = decoded(prompts, TRITON_INTERPRET="0")
    assert reference["identical"] is True
    assert [item["tokens"] for item in report["prompts"]] == [item["tokens"] for item in reference["prompts"]]
