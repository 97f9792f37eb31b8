"""``dspark-ops decode`` over many prompts: stop strings, lines with settings of their own, and shared pages."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from dspark_ops.cli import main
from dspark_ops.decode import DecodeOptions, Request, Result, generate, load_model


def run(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str, str]:
    code = main(["decode", *map(str, words)])
    out, err = capsys.readouterr()
    return code, out, err


def test_a_line_of_a_jsonl_file_sets_what_concerns_its_own_prompt(
    model_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "prompts.jsonl"
    lines = [
        {"prompt": "abc", "max_tokens": 3},
        {"prompt": "more", "temperature": 0.8, "seed": 7, "top_k": 20, "top_p": 0.9, "max_tokens": 4, "note": "x"},
        {"prompt": "abc"},
    ]
    file.write_text("\n".join(map(json.dumps, lines)))
    words = ("--model", model_folder, "--prompts", file, "--max-tokens", 5, "--max-batch", 8, "--cache-pages", 2)
    code, out, err = run(capsys, *words, "--seed", 30, "--json", "--no-compare")
    assert (code, err) == (0, "")
    first, second, third = json.loads(out)["prompts"]
    assert [len(entry["tokens"]) for entry in (first, second, third)] == [3, 4, 5]
    assert second["sampling"] == {"temperature": 0.8, "top_k": 20, "top_p": 0.9, "seed": 7}
    assert third["sampling"] == {"temperature": 0.0, "top_k": 0, "top_p": 1.0, "seed": 32}
    assert third["tokens"][:3] == first["tokens"]


def test_on_a_terminal_a_bar_counts_the_prompts_that_are_done_with_tokens_beside_it(
    model_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "prompts.txt"
    file.write_text("abc\nmore\nxy\n")
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "120")
    words = ("--model", model_folder, "--prompts", file, "--max-tokens", 4, "--max-batch", 8, "--ignore-eos")
    code, out, err = run(capsys, *words, "--compare")
    assert (code, err) == (0, "")
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "\n", re.sub(r"\x1b\[[0-9;]*m", "", out))
    bars = [" ".join(line.replace("━", "").split()) for line in plain.splitlines() if "prompts" in line]
    for title in ("DSpark", "plain"):
        assert any(bar.startswith(f"{title} 3/3 prompts 12 tokens 0:00:0") for bar in bars), bars


def test_a_caller_is_told_of_every_request_once_when_it_has_ended(model_folder: Path) -> None:
    model = load_model(model_folder)
    requests = [Request((5, 6, 7), most) for most in (6, 2, 4)]
    told: list[tuple[int, Result]] = []
    found = generate(model, requests, DecodeOptions(max_batch=2), on_result=lambda *ended: told.append(ended))
    assert sorted(told, key=lambda ended: ended[0]) == list(enumerate(found.results))
    assert told[0][0] == 1


def test_a_stop_string_cuts_what_is_shown_and_what_is_reported(
    model_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("--model", model_folder, "--prompt", "abc", "--max-tokens", 12)
    _, whole, _ = run(capsys, *words, "--json", "--no-compare")
    text = json.loads(whole)["prompts"][0]["text"]
    stop = text[5:7]
    cut = text[: text.index(stop)]
    code, out, err = run(capsys, *words, "--stop", stop, "--stop", "nowhere", "--json")
    entry = json.loads(out)["prompts"][0]
    assert (code, err, entry["text"], entry["finish"], entry["identical"]) == (0, "", cut, "stop", True)
    code, out, _ = run(capsys, *words, "--stop", stop, "--no-compare")
    assert code == 0 and out.startswith(f"abc{cut}\n\n")


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ('{"prompt": "a", "seed": "x"}', "prompts.jsonl:1: seed: wanted a whole number, got 'x'"),
        ('{"prompt": "a", "seed": true}', "seed: wanted a whole number, got True"),
        ('{"prompt": "a", "max_tokens": 2.5}', "max_tokens: wanted a whole number, got 2.5"),
        ('{"prompt": "a", "temperature": null}', "temperature: wanted a number, got None"),
        ('{"prompt": "a", "stop": [""]}', "stop: wanted a text or a list of texts, none of them empty"),
        ('{"prompt": "a", "temperature": -1}', "temperature is -1.0"),
    ],
)
def test_a_line_that_sets_nonsense_is_one_clear_error(
    model_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], line: str, expected: str
) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text(line)
    code, out, err = run(capsys, "--model", model_folder, "--prompts", file)
    assert (code, out) == (2, "")
    assert expected in err and len(err.strip().splitlines()) == 1


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("--stop", ""), "has an empty stop string"),
        (("--cache-pages", "-1"), "cache_pages is -1"),
        (("--cache-pages", "1", "--max-tokens", "200"), "needs 2 pages of the caches for 2 tokens"),
    ],
)
def test_options_that_cannot_be_served_are_one_clear_error(
    model_folder: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], expected: str
) -> None:
    code, out, err = run(capsys, "--model", model_folder, "--prompt", "a", *words)
    assert (code, out) == (2, "")
    assert expected in err
