"""``dspark-ops plan --streams``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dspark_ops.cli import main


def test_the_streams_of_every_kind_of_layer_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(("plan", "--streams", "--json")) == 0
    found = json.loads(capsys.readouterr().out)
    assert {*found} == {"a window only", "a compressor", "an indexer", "a compressor and an indexer"}
    first = found["a window only"]
    assert [step["run"] for step in first if "run" in step] == ["qkv_a", "q_lora", "q_store", "kv_store"]
    assert first[1] == {"lane": "main", "record": "after qkv_a"}
    assert first[-1] == {"lane": "main", "wait": "kv done"}


def test_a_picture_needs_streams_to_draw(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(("plan", "--plot", "out.png")) == 2
    assert "--plot out.png: only --streams is drawn; give both" in " ".join(capsys.readouterr().err.split())


def test_the_picture_is_written(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="drawing needs matplotlib, of the extra bench")
    picture = tmp_path / "streams.svg"
    assert main(("plan", "--streams", "--plot", str(picture))) == 0
    assert "</svg>" in picture.read_text(encoding="utf-8")
