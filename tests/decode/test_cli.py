"""``dspark-ops decode``: what it prints for people and programs, and that bad input is one error and exit code 2."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import safetensors.torch as safetensors_torch
import tokenizers

from dspark_ops.cli import main
from dspark_ops.decode.v41.synthetic import random_weights, small_config

CONFIG = small_config(vocab_size=300)


def byte_tokenizer() -> str:
    """A tokenizer whose vocabulary is the bytes, behind the special tokens."""
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    specials = ["<pad>", "<bos>", "<eos>", "<unk>", "<noise>"]
    vocab = {token: number for number, token in enumerate(specials + alphabet)}
    made = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=vocab, merges=[]))
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    made.add_special_tokens(specials)
    return str(made.to_str())


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    (folder / "config.json").write_text(json.dumps(CONFIG.raw))
    (folder / "tokenizer.json").write_text(byte_tokenizer())
    safetensors_torch.save_file(random_weights(CONFIG, seed=6), folder / "model.safetensors")
    return folder


def run(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str, str]:
    code = main(["decode", *map(str, words)])
    out, err = capsys.readouterr()
    return code, out, err


def test_a_prompt_is_continued_and_everything_a_person_wants_is_said(
    model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = run(capsys, "--model", model, "--prompt", r"def f(x):\n", "--max-tokens", 9)
    assert (code, err) == (0, "")
    assert out.startswith("def f(x):\n")
    for part in ("accept_tail", "core/sparse_mla_decode/reference", "triton_interpreter", "accepted lengths:"):
        assert part in out
    assert "tokens/s" in out and "DSpark" in out and "plain" in out
    assert "tokens: identical to plain decoding (9 tokens)" in out


def test_json_holds_the_same_facts_and_nothing_else_is_printed(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--model", model, "--prompt", "abc", "--max-tokens", 7, "--gamma", 3, "--json", "--check")
    code, out, err = run(capsys, *words)
    report = json.loads(out)
    assert (code, err) == (0, "")
    assert report["identical"] is True
    assert report["options"]["gamma"] == 3
    entry = report["prompts"][0]
    assert (entry["prompt"], len(entry["tokens"]), entry["finish"], entry["identical"]) == (
        "abc",
        7,
        "max_tokens",
        True,
    )
    assert report["dspark"]["emitted"] == report["plain"]["emitted"] == 7
    assert sum(report["dspark"]["histogram"].values()) == report["dspark"]["verify_steps"]
    assert {entry["operator"] for entry in report["plan"]["operators"]} >= {"argmax_rows", "markov_block", "mhc_post"}
    assert len(report["plan"]["digest"]) >= 32


def test_plain_decoding_runs_the_target_alone(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "--model", model, "--prompt", "abc", "--max-tokens", 4, "--plain", "--json")
    report = json.loads(out)
    assert code == 0
    assert (report["dspark"], report["identical"]) == (None, None)
    assert report["plain"]["forwards"] == 3
    code, out, _ = run(capsys, "--model", model, "--prompt", "abc", "--max-tokens", 4, "--plain")
    assert code == 0 and "accepted lengths" not in out


@pytest.mark.parametrize("schedule", ["threshold", "prefix", "prefix-global"])
def test_every_schedule_gives_the_same_text(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], schedule: str
) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text('{"prompt": "abc", "source": "x"}\n\n{"prompt": "one more"}\n')
    words = ("--model", model, "--prompts", file, "--max-tokens", 6, "--schedule", schedule, "--json")
    code, out, _ = run(capsys, *words)
    report = json.loads(out)
    assert code == 0 and report["identical"] is True
    assert [entry["prompt"] for entry in report["prompts"]] == ["abc", "one more"]


def test_a_text_file_holds_one_prompt_per_line(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "prompts.txt"
    file.write_text("first [line]\r\n\nsecond\n")
    code, out, _ = run(capsys, "--model", model, "--prompts", file, "--max-tokens", 2, "--no-compare")
    assert code == 0
    assert "first [line]" in out and "prompt 2" in out


def test_a_sampled_run_says_that_equality_is_one_in_law(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = (
        "--model",
        model,
        "--prompt",
        "abc",
        "--max-tokens",
        5,
        "--temperature",
        0.8,
        "--top-p",
        0.9,
        "--top-k",
        50,
    )
    code, first, _ = run(capsys, *words, "--seed", 3, "--json")
    assert code == 0 and json.loads(first)["identical"] is None
    _, again, _ = run(capsys, *words, "--seed", 3, "--json")
    assert json.loads(again)["prompts"] == json.loads(first)["prompts"]
    _, shown, _ = run(capsys, *words)
    assert "in law, not token by token" in shown


def test_the_plot_is_a_picture(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "figures.png"
    code, _, _ = run(capsys, "--model", model, "--prompt", "abc", "--max-tokens", 4, "--plot", target)
    assert code == 0
    assert target.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"


def damaged(model: Path, folder: Path, name: str, data: bytes | None) -> Path:
    for file in model.iterdir():
        if file.name != name:
            (folder / file.name).write_bytes(file.read_bytes())
    if data is not None:
        (folder / name).write_bytes(data)
    return folder


@pytest.mark.parametrize(
    ("name", "data", "expected"),
    [
        ("model.safetensors", None, "model.safetensors: missing"),
        ("model.safetensors", b"\x10\x00\x00", "wanted a complete safetensors file, got 3 bytes"),
        ("config.json", None, "config.json: missing"),
        ("config.json", b"{}", "hidden_size: missing"),
        ("tokenizer.json", None, "tokenizer.json: missing"),
        ("tokenizer.json", b"{}", "wanted a tokenizer of the tokenizers library"),
    ],
)
def test_a_damaged_model_directory_is_refused(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, data: bytes | None, expected: str
) -> None:
    code, out, err = run(capsys, "--model", damaged(model, tmp_path, name, data), "--prompt", "a", "--json")
    assert (code, out) == (2, "")
    assert expected in err and "Traceback" not in err


def test_weights_of_another_shape_are_refused_by_name(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = json.dumps({**CONFIG.raw, "hidden_size": 128})
    code, out, err = run(capsys, "--model", damaged(model, tmp_path, "config.json", other.encode()), "--prompt", "a")
    assert (code, out) == (2, "")
    assert "embed.weight: wanted bfloat16[300, 128], got bfloat16[300, 64]" in err


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("--prompt", ""), "--prompt is empty"),
        (("--prompt", "\udcff"), "wanted UTF-8 text"),
        ((), "wanted either --prompt TEXT or --prompts FILE, got neither"),
        (("--prompt", "a", "--prompts", "b"), "got both"),
        (("--prompt", "a", "--gamma", "0"), "gamma is 0: wanted 1 to 8"),
        (("--prompt", "a", "--gamma", "9"), "gamma is 9: wanted 1 to 8"),
        (("--prompt", "a" * 224), "has 225 tokens: wanted at most 223"),
        (("--prompt", "a", "--max-tokens", "0"), "asks for 0 tokens"),
        (("--prompt", "a", "--max-batch", "0"), "max_batch is 0"),
        (("--prompt", "a", "--temperature", "-1"), "temperature is -1.0"),
        (("--prompt", "a", "--temperature", "nan"), "temperature is nan"),
        (("--prompt", "a", "--top-p", "0"), "top_p is 0.0"),
        (("--prompt", "a", "--top-k", "-1"), "top_k is -1"),
        (("--prompt", "a", "--schedule", "statc"), "did you mean 'static'?"),
        (("--prompt", "a", "--schedule", "threshold", "--threshold", "2"), "threshold is 2.0"),
        (("--prompt", "a", "--step-rates", "x.json"), "only --schedule prefix"),
        (("--prompt", "a", "--schedule", "prefix", "--step-rates", "none.json"), "cannot read step rates"),
        (("--prompt", "a", "--calibration", "none.json"), "cannot read confidence temperatures"),
        (("--prompt", "a", "--device", "tpu"), "device is 'tpu': wanted cpu or cuda"),
        (("--prompt", "a", "--plot", "nowhere/x.png"), "does not exist"),
        (("--prompt", "a", "--plot", "x.jpeg"), "ends in .png"),
        (("--prompts", "nowhere.txt"), "there is no such file"),
    ],
)
def test_bad_input_is_one_clear_error(
    model: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], expected: str
) -> None:
    code, out, err = run(capsys, "--model", model, *words)
    assert (code, out) == (2, "")
    assert expected in err
    assert "Traceback" not in err and len(err.strip().splitlines()) == 1


@pytest.mark.parametrize(
    ("name", "data", "expected"),
    [
        ("prompts.txt", b"good\n\xff\xfe bad", "wanted UTF-8 text, got byte 0xff at offset 5"),
        ("prompts.txt", b" \n\n", "holds no prompt"),
        ("prompts.jsonl", b'{"prompt": "a"}\n{"prompt": ""}\n', 'prompts.jsonl:2: wanted an object whose "prompt"'),
        ("prompts.jsonl", b"plain text\n", "prompts.jsonl:1: wanted one JSON object per line"),
    ],
)
def test_a_prompts_file_that_cannot_be_used_is_refused_with_the_place(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, data: bytes, expected: str
) -> None:
    (tmp_path / name).write_bytes(data)
    code, out, err = run(capsys, "--model", model, "--prompts", tmp_path / name, "--json")
    assert (code, out) == (2, "")
    assert expected in err


def test_a_missing_directory_is_one_error(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "--model", "no/such/model", "--prompt", "a")
    assert (code, out) == (2, "")
    assert "wanted a model directory" in err


def test_different_tokens_are_a_finding(
    model: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import dspark_ops.decode
    from dspark_ops.decode import Generation, Result

    def wrong(*arguments: object, **options: object) -> Generation:
        found = dspark_ops.decode.plain.decode_plain(*arguments, **options)  # type: ignore[attr-defined]
        first = found.results[0]
        tokens = (*first.tokens[:-1], (first.tokens[-1] + 1) % 300)
        return Generation((Result(tokens, first.finish, first.metrics),), found.metrics)

    monkeypatch.setattr(dspark_ops.decode, "decode_plain", wrong)
    code, out, _ = run(capsys, "--model", model, "--prompt", "abc", "--max-tokens", 3)
    assert code == 1
    assert "tokens: DIFFERENT from plain decoding for prompt 1" in out
