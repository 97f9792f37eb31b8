"""The command line of lock files: write, check, compare, upgrade; exit codes 0, 1 and 2."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dspark_ops.cli import main
from dspark_ops.selection.lock import read_lock

KERNELS = (
    "name='p7', api='>=1,<2', kernels=("
    "Kernel('argmax_rows', 'fast', 'p7_kernels:argmax', rank=RankClass.FUSED),"
    "Kernel('argmax_rows', 'any', 'p7_kernels:argmax'),"
    "Kernel('mhc_post', 'any', 'p7_kernels:post'))"
)
WORDS = ("--device", "sm_103", "--rows", "1-8")
LOCK = Path("dspark-ops.lock")
DENY = '[ops.argmax_rows]\ndeny = ["p7/argmax_rows/fast"]\n'


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, site: Any) -> Any:
    site.plugin("p7", KERNELS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DSPARK_OPS_PLUGINS", "p7")

    def run(*words: str) -> tuple[int, str, str]:
        capsys.readouterr()
        code = main(words)
        captured = capsys.readouterr()
        return code, " ".join(captured.out.split()), captured.err

    return run


def kernel(operator: str) -> str:
    return next(line.kernel for line in read_lock(LOCK).selections if line.operator == operator)


def test_write_check_and_a_required_start_agree(cli: Any) -> None:
    code, out, err = cli("plan", *WORDS, "--write")
    assert (code, err) == (0, "")
    assert "saved to dspark-ops.lock" in out
    text = LOCK.read_text()
    code, out, err = cli("plan", *WORDS, "--check")
    assert (code, out, err) == (0, "dspark-ops.lock describes what would run here", "")
    Path("dspark-ops.toml").write_text('[policy]\nlock = "require"\n')
    assert cli("plan", *WORDS)[0] == 0
    assert cli("explain", "argmax_rows", "--device", "sm_103", "--rows", "6")[0] == 0
    assert cli("plan", *WORDS, "--write")[0] == 0
    assert LOCK.read_text() == text, "what still holds is written again to the byte"


def test_check_shows_what_changed_and_why_with_code_one_and_writes_nothing(cli: Any) -> None:
    cli("plan", *WORDS, "--write")
    text = LOCK.read_text()
    Path("dspark-ops.toml").write_text(DENY)
    code, out, _ = cli("plan", *WORDS, "--check")
    assert code == 1
    assert "settings.ops.argmax_rows.deny soft nothing p7/argmax_rows/fast" in out
    assert "argmax_rows at verify, rows 1-8 soft p7/argmax_rows/fast p7/argmax_rows/any refused: DENIED" in out
    code, out, _ = cli("plan", *WORDS, "--check", "--json")
    assert code == 1
    names = [item["name"] for item in json.loads(out)["differences"]]
    assert names == [
        "settings.ops.argmax_rows.deny",
        "argmax_rows at verify as part of accept_forced, rows 6-48/6",
        "argmax_rows at verify as part of accept_tail, rows 6-48/6",
        "argmax_rows at verify, rows 1-8",
    ]
    assert LOCK.read_text() == text


def test_write_heals_what_cannot_hold_and_keeps_the_rest(cli: Any) -> None:
    Path("dspark-ops.toml").write_text('[ops.mhc_post]\npin = "core/mhc_post/reference"\n')
    cli("plan", *WORDS, "--write")
    assert (kernel("argmax_rows"), kernel("mhc_post")) == ("p7/argmax_rows/fast", "core/mhc_post/reference")
    Path("dspark-ops.toml").write_text(DENY)
    code, out, _ = cli("plan", *WORDS, "--write")
    assert code == 0
    assert "changed in dspark-ops.lock" in out
    assert (kernel("argmax_rows"), kernel("mhc_post")) == ("p7/argmax_rows/any", "core/mhc_post/reference")


def test_an_upgrade_chooses_the_named_operators_anew(cli: Any) -> None:
    pins = '[ops.mhc_post]\npin = "core/mhc_post/reference"\n[ops.argmax_rows]\npin = "p7/argmax_rows/any"\n'
    Path("dspark-ops.toml").write_text(pins)
    cli("plan", *WORDS, "--write")
    Path("dspark-ops.toml").unlink()
    code, out, err = cli("lock", "upgrade", "--op", "argmax_rows")
    assert (code, err) == (0, "")
    assert "argmax_rows at verify, rows 1-8 soft p7/argmax_rows/any p7/argmax_rows/fast" in out
    assert (kernel("argmax_rows"), kernel("mhc_post")) == ("p7/argmax_rows/fast", "core/mhc_post/reference")
    code, out, _ = cli("lock", "upgrade", "--json")
    assert code == 0
    assert kernel("mhc_post") == "p7/mhc_post/any"
    assert {item["locked"] for item in json.loads(out)["changed"]} == {"core/mhc_post/reference"}
    assert cli("lock", "upgrade")[1] == "dspark-ops.lock: nothing better is known; it stays as it was"
    assert cli("lock", "upgrade", "--op", "argmx_rows")[0] == 2


@pytest.mark.parametrize("words", [("plan", "--device", "H200", "--rows", "1-8", "--write"), ("lock", "upgrade")])
def test_a_lock_of_another_environment_or_a_torn_one_is_not_overwritten(cli: Any, words: tuple[str, ...]) -> None:
    cli("plan", *WORDS, "--write")
    text = LOCK.read_text() if words[0] == "plan" else LOCK.read_text()[:200]
    LOCK.write_text(text)
    code, _, err = cli(*words)
    assert code == 1
    assert "belongs to another environment" in err if words[0] == "plan" else "it is torn or edited" in err
    assert LOCK.read_text() == text
    assert cli("plan", "--device", "H200", "--rows", "1-8", "other.lock", "--write")[0] == 0


def test_two_locks_can_be_compared(cli: Any) -> None:
    cli("plan", *WORDS, "--write")
    cli("plan", "--device", "H200", "--rows", "1-8", "--write", "h200.lock")
    assert cli("plan", *WORDS, "--diff", "dspark-ops.lock")[:2] == (0, "dspark-ops.lock describes what would run here")
    code, out, _ = cli("plan", *WORDS, "--diff", "h200.lock", "--json")
    assert code == 1
    assert [(item["name"], item["kind"]) for item in json.loads(out)["differences"]] == [("device.arch", "hard")]


def test_a_check_without_a_lock_is_a_finding_that_says_what_to_run(cli: Any) -> None:
    code, _, err = cli("plan", *WORDS, "--check")
    assert code == 1
    assert err == "dspark-ops: there is no lock file dspark-ops.lock to check: run  dspark-ops plan --write\n"


def test_the_variable_names_the_file_for_every_verb(cli: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DSPARK_OPS_LOCK", "mine.lock")
    code, _, err = cli("plan", *WORDS)
    assert code == 0
    assert err == (
        "dspark-ops: warning: there is no lock file mine.lock (files.lock, environment DSPARK_OPS_LOCK): "
        "run  dspark-ops plan --write\n"
    )
    assert "saved to mine.lock" in cli("plan", *WORDS, "--write")[1]
    assert cli("plan", *WORDS)[2] == ""
    assert cli("plan", *WORDS, "--check")[0] == 0
