"""Runs whose accept lengths are drawn: the lengths that come out, the place of the operator, and what is said of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from dspark_ops import Device
from dspark_ops.cli import main
from dspark_ops.decode import (
    DecodeOptions,
    Generation,
    Model,
    Request,
    SamplingParams,
    StaticPolicy,
    decode_plain,
    generate,
)
from dspark_ops.decode.forced import ForcedAcceptance
from dspark_ops.decode.options import Execution
from dspark_ops.decode.runtimes.runtime_set import RuntimeSet
from dspark_ops.decode.serving import Service
from dspark_ops.decode.uniform_policy import UniformPolicy
from dspark_ops.decode.v41.synthetic import random_weights, small_config
from dspark_ops.errors import ConfigError, ModelError

CONFIG = small_config()


@pytest.fixture(scope="module")
def model() -> Model:
    return Model(CONFIG, random_weights(CONFIG, seed=1), device=Device.simulate("cpu"))


def run(model: Model, forced: ForcedAcceptance, *, tokens: int = 16, temperatures: tuple[float, ...] = (0.0, 0.0),
        execution: Execution = Execution.PACKED, check: bool = False) -> Generation:  # fmt: skip
    generator = torch.Generator().manual_seed(8)
    asked = [
        Request(tuple(torch.randint(5, 97, (5,), generator=generator).tolist()), tokens, SamplingParams(heat, seed=row))
        for row, heat in enumerate(temperatures)
    ]
    options = DecodeOptions(max_batch=4, forced=forced, ignore_eos=True, execution=execution, check_invariants=check)
    return generate(model, asked, options)


LAWS = ("two_point", "per_position", "normal_clamped")
SCOPES = ("per_request", "per_step")


@pytest.mark.parametrize("scope", SCOPES)
@pytest.mark.parametrize("law", LAWS)
def test_folded_steps_emit_the_lengths_and_tokens_of_others_whatever_the_target_says(
    model: Model, law: str, scope: str
) -> None:
    forced = ForcedAcceptance(3.4, law, scope, seed=4)
    found, folded = (run(model, forced, execution=way) for way in (Execution.PACKED, Execution.FOLDED))
    assert [result.tokens for result in folded.results] == [result.tokens for result in found.results]
    assert [result.metrics for result in folded.results] == [result.metrics for result in found.results]
    assert all(result.simulated for result in (*found.results, *folded.results))
    assert found.simulated is not None and folded.simulated is not None
    assert (found.simulated["folded"], found.metrics.folded) == (0, 0)
    assert folded.simulated["folded"] == folded.metrics.folded == folded.metrics.forwards > 0
    assert {**folded.simulated, "folded": 0} == found.simulated
    assert {length: found.metrics.histogram[length] for length in range(1, 7)} == found.simulated["histogram"]
    assert found.metrics.mean_accept_len == pytest.approx(found.simulated["realised_mean"])
    assert found.simulated["realised_mean"] == found.simulated["drawn_mean"]
    assert [len(result.tokens) for result in found.results] == [16, 16]


@pytest.mark.parametrize(("scope", "batch"), [("per_request", 2), ("per_step", 3)])
def test_a_host_that_reads_one_step_late_draws_the_same_for_every_request(
    model: Model, scope: str, batch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = [Request((5 + number, 6, 7), 9 + 4 * number) for number in range(3)]
    forced = ForcedAcceptance(3.4, "normal_clamped", scope, seed=2)
    wanted = generate(model, asked, DecodeOptions(max_batch=batch, forced=forced, ignore_eos=True))
    monkeypatch.setattr(RuntimeSet, "captured", True)
    options = DecodeOptions(max_batch=batch, forced=forced, ignore_eos=True, execution=Execution.FOLDED)
    found = generate(model, asked, options)
    assert [result.tokens for result in found.results] == [result.tokens for result in wanted.results]
    assert found.simulated is not None and wanted.simulated is not None
    assert found.simulated["histogram"] == wanted.simulated["histogram"]
    assert found.metrics.folded == found.metrics.forwards > wanted.metrics.forwards


def test_a_folded_run_is_unfolded_for_the_reasons_of_a_real_one_only(model: Model) -> None:
    asked = [Request((5, 6, 7), 9, SamplingParams(0.8, seed=1)), Request((8, 9), 30)]
    for forced in (None, ForcedAcceptance(2.0)):
        options = DecodeOptions(max_batch=2, forced=forced, ignore_eos=True, execution=Execution.FOLDED)
        metrics = generate(model, asked, options).metrics
        assert set(metrics.unfolded) == {"a request is sampled"} and metrics.folded > 0


def test_fewer_rows_than_were_drawn_are_what_is_realised(model: Model) -> None:
    options = DecodeOptions(1, StaticPolicy(2), forced=ForcedAcceptance(2.0), ignore_eos=True)
    assert generate(model, [Request((5, 6), 9)], options).simulated["realised_mean"] == 2.0  # type: ignore[index]
    forced = ForcedAcceptance(4.0)
    found = generate(model, [Request((5, 6), 9)], DecodeOptions(policy=StaticPolicy(2), forced=forced, ignore_eos=True))
    assert found.simulated is not None
    assert (found.simulated["drawn_mean"], found.simulated["realised_mean"]) == (4.0, 2.0)
    assert found.simulated["histogram"] == {1: 0, 2: 4, 3: 0, 4: 0, 5: 0, 6: 0}


def test_a_whole_number_is_accepted_in_every_step_of_greedy_and_sampled_requests_alike(model: Model) -> None:
    found = run(model, ForcedAcceptance(4.0), tokens=9, temperatures=(0.0, 0.8), check=True)
    assert set(found.metrics.histogram) == {4}
    assert all(result.metrics.verify_steps == 2 and result.simulated for result in found.results)


def test_the_operator_that_forces_is_in_the_plan_of_a_simulated_run_only(model: Model) -> None:
    assert "accept_forced" in model.plan(simulated=True).operators
    assert "accept_forced" not in model.plan().operators


def test_real_runs_are_not_called_simulated(model: Model) -> None:
    asked = [Request((5, 6, 7), 4)]
    for found in (generate(model, asked), decode_plain(model, asked, DecodeOptions(forced=ForcedAcceptance(2.0)))):
        assert found.simulated is None and not found.results[0].simulated


def test_a_service_says_it_too_and_a_cancelled_request_is_marked(model: Model) -> None:
    service = Service(model, DecodeOptions(max_batch=1, forced=ForcedAcceptance(2.0)))
    numbers = [service.submit(Request((5, 6, 7), 5)) for _ in range(2)]
    service.cancel(numbers[1])
    results = [update.result for _ in range(4) if service for update in service.step() if update.result]
    assert len(results) == 2 and all(result.simulated for result in results)
    simulated = service.simulated()
    assert simulated is not None and simulated["histogram"][2] == 2


def test_what_cannot_be_simulated_is_refused(model: Model) -> None:
    with pytest.raises(ConfigError, match=r"forced acceptance of 7\.0 tokens per step: wanted 1 to 6"):
        run(model, ForcedAcceptance(7.0))
    options = DecodeOptions(policy=UniformPolicy(), forced=ForcedAcceptance(2.0))
    with pytest.raises(ModelError, match="cannot be chosen: acceptance is simulated"):
        generate(model, [Request((5,), 3)], options)


def test_the_verb_marks_everything_and_compares_with_nothing(
    model_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--model", str(model_folder), "--prompt", "abc", "--max-tokens", "13", "--ignore-eos", "--seed", "3"]
    file = tmp_path / "run.json"
    simulated = ["--simulate-accept", "per-position:3:per-step", "--metrics", str(file)]
    assert main(["decode", *words, *simulated, "--json"]) == 0
    report = json.loads(capsys.readouterr()[0])
    assert (report["plain"], report["identical"]) == (None, None)
    assert report["simulated"]["realised_mean"] == 3.0 and report["simulated"]["simulated"] is True
    assert report["figures"]["simulated"] is True and report["prompts"][0]["simulated"] is True
    assert json.loads(file.read_text())["simulated"]["law"] == "per_position"
    assert main(["decode", *words, *simulated, "--execution", "folded"]) == 0
    out = capsys.readouterr()[0]
    assert "folded: 4 of 4 verify steps accepted on the device" in out
    assert "SIMULATED acceptance (per_position, per_step, seed 3): 3.000 tokens per step, 3.000 drawn on average" in out
    assert ", 3 asked for; steps by length 1: 0, 2: 0, 3: 4" in out
    assert "not as in a real run: the text means nothing" in out and "accept_forced" in out


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("--simulate-accept", "poisson:3"), "law of forced acceptance is 'poisson'"),
        (("--simulate-accept", "3:per-row"), "scope of forced acceptance is 'per_row'"),
        (("--simulate-accept", "two-point"), "wanted [LAW:]MEAN[:SCOPE]"),
        (("--simulate-accept", "9"), "wanted 1 to 6"),
        (("--simulate-accept", "2", "--plain"), "wanted a run with DSpark"),
        (("--simulate-accept", "2", "--schedule", "uniform"), "acceptance is simulated"),
    ],
)
def test_bad_laws_are_one_clear_error(
    model_folder: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], expected: str
) -> None:
    code = main(["decode", "--model", str(model_folder), "--prompt", "a", *words])
    out, err = capsys.readouterr()
    assert (code, out) == (2, "") and expected in err
