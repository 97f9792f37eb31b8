"""One launch from the inside: counted, checked, timed; and the process that runs it."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from statistics import median

import pytest
import safetensors.torch as safetensors_torch
import tokenizers
import torch

from dspark_ops.bench import runs
from dspark_ops.bench.calls import KnockOut
from dspark_ops.bench.launching import ALL_CHECKS, ArmSpec, launch_arm
from dspark_ops.bench.measurement import Measurement
from dspark_ops.bench.runs import Work
from dspark_ops.bench.workload import LaunchSpec, run_launch
from dspark_ops.binding.observed import Place
from dspark_ops.cli._bench_child import main as child
from dspark_ops.decode import Model, load_model
from dspark_ops.decode.v41.synthetic import random_weights, small_config
from dspark_ops.errors import ConfigError

CONFIG = small_config(vocab_size=300)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    vocab = {token: number for number, token in enumerate(["<pad>", "<bos>", "<eos>", "<unk>", "<noise>", *alphabet])}
    made = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=vocab, merges=[]))
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    path = tmp_path_factory.mktemp("model")
    (path / "config.json").write_text(json.dumps(CONFIG.raw))
    (path / "tokenizer.json").write_text(str(made.to_str()))
    safetensors_torch.save_file(random_weights(CONFIG, seed=6), path / "model.safetensors")
    return path


@pytest.fixture(scope="module")
def model(folder: Path) -> Model:
    return load_model(folder)


@pytest.fixture(scope="module")
def spec(folder: Path) -> LaunchSpec:
    return LaunchSpec(str(folder), ("ab", "def f"), gamma=3, max_tokens=5, batch=1, warmups=0, runs=2)


@pytest.fixture(scope="module")
def measured(spec: LaunchSpec, model: Model) -> Measurement:
    return run_launch(replace(spec, gate=True), model)


def calls(found: Measurement) -> dict[str, int]:
    return {item.operator: item.calls for item in found.dispatch or ()}


def test_the_figures_of_a_launch_agree_with_each_other(measured: Measurement) -> None:
    assert len(measured.cycle_us) == len(measured.output_tps) == len(measured.ttft_ms) == 2
    assert measured.gate == "passed"
    assert (measured.cached_tokens, measured.warmups, measured.requests_per_step) == (0, 1, 1.0)
    assert sum(measured.histogram.values()) == measured.verify_steps
    mean = sum(length * count for length, count in measured.histogram.items()) / measured.verify_steps
    assert measured.accept_len == pytest.approx(mean)
    # two prompts of five tokens, the first of each from its prefill
    assert measured.verify_steps * mean - measured.trimmed == 8
    error = measured.identity_error()
    assert error is not None and math.isfinite(error)


def test_calls_are_counted_in_a_run_of_its_own(measured: Measurement) -> None:
    counted = calls(measured)
    assert counted["accept_tail"] == measured.verify_steps
    assert counted["markov_block"] == measured.verify_steps
    # the prefills take an argmax too
    assert counted["argmax_rows"] == measured.verify_steps + 2
    assert counted["accept_sampled"] == 0
    timed = {item.operator: item.seconds for item in measured.dispatch or ()}
    assert (timed["markov_block"] or 0) > 0


def test_prompts_of_a_batch_share_their_cycles(spec: LaunchSpec, model: Model, measured: Measurement) -> None:
    found = run_launch(replace(spec, batch=2), model)
    assert found.tokens_digest == measured.tokens_digest
    assert found.histogram == measured.histogram
    assert 1.0 < found.requests_per_step <= 2.0
    assert calls(found)["markov_block"] == pytest.approx(found.verify_steps / found.requests_per_step)


def test_tokens_that_differ_from_plain_decoding_fail_the_check(
    spec: LaunchSpec, model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    import dspark_ops.decode.plain as plain

    original = plain.decode_plain

    def other(served: Model, requests: list, options: object) -> object:  # type: ignore[type-arg]
        generation = original(served, requests, options)  # type: ignore[arg-type]
        wrong = replace(generation.results[0], tokens=(0,) * 5)
        return replace(generation, results=(wrong, *generation.results[1:]))

    monkeypatch.setattr("dspark_ops.decode.decode_plain", other, raising=False)
    found = run_launch(replace(spec, gate=True), model)
    assert found.gate == "failed: prompts [1, 2] give other tokens than plain decoding"
    assert any("the check before the timed runs failed" in text for text in found.faults())


def test_an_operator_taken_out_costs_nothing_and_holds_tokens_and_acceptance(
    spec: LaunchSpec, model: Model, measured: Measurement
) -> None:
    found = run_launch(replace(spec, knock_out="sparse_mla_decode"), model)
    assert found.ceiling == "sparse_mla_decode"
    assert found.tokens_digest == measured.tokens_digest
    assert found.histogram == measured.histogram
    assert calls(found) == calls(measured)


def test_an_operator_that_writes_state_cannot_be_taken_out_without_changing_the_tokens(
    spec: LaunchSpec, model: Model, measured: Measurement
) -> None:
    found = run_launch(replace(spec, knock_out="k_norm_rope_store"), model)
    assert found.tokens_digest != measured.tokens_digest


def test_an_operator_that_the_model_does_not_have_cannot_be_taken_out(spec: LaunchSpec, model: Model) -> None:
    with pytest.raises(ConfigError, match=r"knock out 'argmax_row': wanted one of .*did you mean 'argmax_rows'"):
        run_launch(replace(spec, knock_out="argmax_row"), model)


def test_a_knock_out_gives_back_each_call_of_the_first_run_in_order_and_untouched() -> None:
    made: list[torch.Tensor] = []

    def add(x: torch.Tensor) -> torch.Tensor:
        made.append(x)
        return x + len(made)

    knock_out = KnockOut("add")
    around = knock_out.around(Place("add", "core/add/reference", "reference", False), add)
    other = knock_out.around(Place("mul", "core/mul/reference", "reference", False), add)
    assert other is add
    zero, wide = torch.zeros(2), torch.zeros(3)
    knock_out.begin_run()
    assert [around(zero).tolist(), around(wide).tolist(), around(zero).tolist()] == [[1, 1], [2, 2, 2], [3, 3]]
    for _ in range(2):
        knock_out.begin_run()
        first = around(zero)
        assert first.tolist() == [1, 1]
        first.fill_(9)
        assert around(zero).tolist() == [3, 3]
        assert around(wide).tolist() == [2, 2, 2]
    assert len(made) == 3


def test_the_process_of_a_launch_writes_what_it_measured_and_where(spec: LaunchSpec, tmp_path: Path) -> None:
    (tmp_path / "spec.json").write_text(json.dumps(spec.to_json()))
    assert child(tmp_path / "spec.json", tmp_path / "result.json") == 0
    data = json.loads((tmp_path / "result.json").read_text())
    found = Measurement.from_json(data["measurement"])
    assert found.cycle == median(found.cycle_us) > 0
    fingerprint = data["fingerprint"]
    assert fingerprint["plan"]["dispatch"] == found.dispatch_hash != ""
    assert fingerprint["plan"]["digest"].startswith("sha256:")
    assert len(fingerprint["code"]["dspark_ops"]) == 16
    assert fingerprint["versions"]["torch"] and fingerprint["device"]["arch"] == "cpu"
    assert data["conditions"]["load"] >= 0


def test_a_fresh_process_gives_the_tokens_of_this_one(spec: LaunchSpec, measured: Measurement) -> None:
    outcome = launch_arm(ArmSpec(replace(spec, runs=1)), 120.0, ALL_CHECKS)
    assert outcome.error == ""
    assert outcome.measurement is not None
    assert outcome.measurement.tokens_digest == measured.tokens_digest
    assert outcome.measurement.gate == "passed"


def test_a_launch_whose_configuration_is_wrong_says_why(
    spec: LaunchSpec, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "bad.toml").write_text('[ops.argmax_rows]\npin = "none/argmax_rows/none"\n')
    given = replace(spec, config=str(tmp_path / "bad.toml"))
    (tmp_path / "spec.json").write_text(json.dumps(given.to_json()))
    assert child(tmp_path / "spec.json", tmp_path / "result.json") == 1
    assert "none/argmax_rows/none" in capsys.readouterr().err
    assert not (tmp_path / "result.json").exists()


def test_a_launch_with_drawn_acceptance_draws_the_same_lengths_each_time_and_is_labelled(
    spec: LaunchSpec, model: Model
) -> None:
    drawn = {"mean": 2.5, "law": "two_point", "scope": "per_request", "seed": 3}
    made = replace(spec, prompts=("ab",), simulated=drawn, max_tokens=7, runs=1, gate=True, conformance=True)
    first, again = run_launch(made, model), Work(made, model)
    assert first.simulated and first.histogram == dict(again.run(again.ops).accept.histogram)
    assert set(first.histogram) <= {2, 3}
    # the tokens of the real run are what is compared with plain decoding
    assert first.gate == "passed"
    assert first.conformance == "passed: core's references served every call"
    assert calls(first)["accept_forced"] == first.verify_steps and calls(first)["accept_tail"] == 0
    assert made.workload()["simulated"] == drawn


def test_sampled_tokens_are_held_against_the_law_of_plain_decoding(
    spec: LaunchSpec, model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs, "_DRAWS", 12)
    sampled = Work(replace(spec, prompts=("ab",), temperature=1.0, batch=4), model)
    counted = runs.Run([], None, 1.0, 1.0, 1.0)
    assert sampled.gate(counted).startswith("passed: one law as far as 12 draws of the first prompt each way")
    monkeypatch.setattr(runs, "same_law", lambda *_: (1e-9, 2))
    monkeypatch.setattr(runs, "_DRAWS", 1)
    assert sampled.gate(counted).startswith("failed: sampled tokens do not follow the law of plain decoding")
