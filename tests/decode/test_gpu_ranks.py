"""Ranks on GPUs: one each over NCCL, or all on a single one over gloo; the tokens of one rank either way."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from dspark_ops.cli import main

TINY = Path(__file__).parents[2] / "examples" / "tiny_v41"

pytestmark = pytest.mark.gpu


def decoded(capfd: pytest.CaptureFixture[str], tmp_path: Path, ranks: int, execution: str) -> tuple[int, Any, str]:
    config = tmp_path / "allow.toml"
    config.write_text('[policy]\nfallback = "allow"\n')
    words = ("--model", TINY, "--prompt", "def read(self", "--max-tokens", 24, "--device", "cuda", "--json")
    code = main(["decode", *map(str, words), "--tp", str(ranks), "--execution", execution, "--config", str(config)])
    out, err = capfd.readouterr()
    return code, json.loads(out) if out.startswith("{") else None, err


@pytest.fixture(autouse=True)
def needs_a_gpu() -> None:
    if not torch.cuda.is_available():
        pytest.skip("no GPU")


@pytest.mark.parametrize("execution", ["packed", "static", "graph", "folded"])
def test_two_ranks_give_the_tokens_of_one(execution: str, capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    if execution in ("graph", "folded") and torch.cuda.device_count() < 2:
        pytest.skip("one GPU: gloo cannot be captured in a graph")
    _, alone, _ = decoded(capfd, tmp_path, 1, "packed")
    code, found, err = decoded(capfd, tmp_path, 2, execution)
    assert code == 0, err
    assert found["identical"]
    assert found["prompts"][0]["tokens"] == alone["prompts"][0]["tokens"]


def test_graphs_of_ranks_that_share_a_gpu_are_refused(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    if torch.cuda.device_count() > 1:
        pytest.skip("several GPUs: the ranks do not share one")
    code, _, err = decoded(capfd, tmp_path, 2, "graph")
    assert code == 2
    assert "gloo" in err and "static" in err
