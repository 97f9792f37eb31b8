"""``dspark-ops tune`` on a CPU: right kernels are timed beside each other, wrong ones are not, and a lock follows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dspark_ops.cli import main
from dspark_ops.selection.evidence import read_evidence
from dspark_ops.selection.lock import read_lock
from dspark_ops.selection.measured import read_tables

KERNELS = """
import time
from dspark_ops import contracts

def right(x):
    return contracts.get("argmax_rows").reference(x)

def slow(x):
    time.sleep(0.05)
    return right(x)

def wrong(x):
    return right(x) + 1
"""


@pytest.fixture
def tuned(site: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site.module("trial_kernels", KERNELS)
    kernels = ", ".join(
        f"Kernel('argmax_rows', {name!r}, 'trial_kernels:{name}', rank=RankClass.{rank})"
        for name, rank in (("slow", "FUSED"), ("right", "PORTABLE"), ("wrong", "PORTABLE"))
    )
    site.plugin("trial", f"name='trial', api='>=1,<2', kernels=({kernels})")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "dspark-ops.toml").write_text('[plugins]\nallow = ["trial"]\n[files]\nmeasured = "measured.json"\n')


@pytest.mark.usefixtures("tuned")
def test_kernels_are_timed_in_turn_and_a_wrong_one_is_not(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["tune", "--op", "argmax_rows", "--rows", "2", "--rounds", "5", "--evidence", "evidence.json", "--json"]
    code = main(words)
    data = json.loads(capsys.readouterr().out)
    assert code == 1
    (note,) = data["notes"]
    assert note.startswith("argmax_rows at verify, rows 2: trial/argmax_rows/wrong is wrong, so not timed: ")
    times = {entry["kernel"]: entry for entry in data["times"]}
    assert sorted(times) == ["trial/argmax_rows/right", "trial/argmax_rows/slow"]
    assert times["trial/argmax_rows/slow"]["us"] >= 50_000
    assert all(entry["low"] <= entry["us"] <= entry["high"] and entry["calls"] == 5 for entry in times.values())
    records = read_evidence(["evidence.json"])
    assert {(item.kernel, item.level.value, item.by, item.arch) for item in records} == {
        (kernel, "measured", "tune", "cpu") for kernel in times
    }
    (table,) = read_tables("measured.json").values()
    assert table.method.startswith("plain calls on one set of inputs")
    Path("dspark-ops.toml").write_text(
        Path("dspark-ops.toml").read_text() + '[ops.argmax_rows]\ndeny = ["trial/argmax_rows/wrong"]\n'
    )
    assert main(["plan", "--rows", "1-4", "--write"]) == 0
    locked = {line.kernel for line in read_lock("dspark-ops.lock").selections if line.operator == "argmax_rows"}
    assert locked == {"trial/argmax_rows/right"}, "the class would have chosen the slow one"


@pytest.mark.usefixtures("tuned")
def test_where_there_is_nothing_to_choose_between_the_run_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tune", "--op", "mhc_post", "--rows", "2"]) == 0
    out = capsys.readouterr().out
    assert "mhc_post at verify, rows 2: no kernel may serve it" in out
    assert "nothing to choose between was timed" in out
    assert not Path("measured.json").exists()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("tune",), "tune: no operator is named: give --op NAME"),
        (("tune", "--op", "argmax_rows", "--rounds", "2"), "--rounds 2: wanted 5 or more"),
        (("tune", "--op", "argmx_rows"), "did you mean 'argmax_rows'?"),
    ],
)
def test_misuse_is_named(capsys: pytest.CaptureFixture[str], words: tuple[str, ...], says: str) -> None:
    assert main(words) == 2
    assert says in capsys.readouterr().err
