"""The loop over Triton kernels in the interpreter: other kernels, the same tokens (P8)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

TINY = Path(__file__).parents[2] / "examples" / "tiny_v41"


def test_two_short_prompts_give_plain_decodings_tokens_through_interpreted_triton_kernels(tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("import os\ndef f(x):\n")
    words = [sys.executable, "-m", "dspark_ops.cli", "decode", "--model", str(TINY), "--prompts", str(prompts)]
    run = subprocess.run(
        [*words, "--max-tokens", "4", "--gamma", "3", "--json", "--check"],
        capture_output=True,
        text=True,
        env={**os.environ, "TRITON_INTERPRET": "1"},
    )
    assert run.returncode == 0, run.stderr
    report = json.loads(run.stdout)
    assert report["identical"] is True
    served = {entry["operator"].strip(): entry["kernel"] for entry in report["plan"]["operators"]}
    for operator in ("argmax_rows", "mhc_combine_norm", "accept_finalize"):
        assert served[operator].startswith("triton/")
