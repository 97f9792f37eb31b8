"""Runs whose accept lengths are drawn: the lengths that come out, the place of the operator, and what is said of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from dspark_ops import Device
from dspark_ops.cli import main
from dspark_ops.decode import DecodeOptions, Generation, Model, Request, SamplingParams, decode_plain, generate
from dspark_ops.decode.forced import ForcedAcceptance
from dspark_ops.decode.options import Execution
from dspark_ops.decode.serving import Service
from dspark_ops.decode.uniform_policy import UniformPolicy
from dspark_ops.decode.v41.synthetic import random_weights, small_config
from dspark_ops.errors import ConfigError, ModelError

CONFIG = small_config()


@pytest.fixture(scope="module")
def model() -> Model:
    return Model(CONFIG, random_weights(CONFIG, seed=1), device=Device.simulate("cpu"))


def run(model: Model, forced: ForcedAcceptance, *, tokens: int = 25, temperatures: tuple[float, ...] = (0.0, 0.0),
        execution: Execution = Execution.PACKED, check: bool = False) -> Generation:  # fmt: skip
    generator = torch.Generator().manual_seed(8)
    asked = [
        Request(tuple(torch.randint(5, 97, (5,), generator=generator).tolist()), tokens, SamplingParams(heat, seed=row))
        for row, heat in enumerate(temperatures)
    ]
    options = DecodeOptions(max_batch=4, forced=forced, ignore_eos=True, execution=execution, check_invariants=check)
    return generate(model, asked, options)


@pytest.mark.parametrize("execution", [Execution.PACKED, Execution.FOLDED])
@pytest.mark.parametrize(("law", "scope"), [("two_point", "per_request"), ("normal_clamped", "per_step")])
def test_steps_emit_the_lengths_that_were_drawn_whatever_the_target_says(
    model: Model, execution: Execution, law: str, scope: str
) -> None:
    forced = ForcedAcceptance(3.4, law, scope, seed=4)
    found = run(model, forced, execution=execution)
    again = run(model, forced, execution=execution)
    assert again.simulated == found.simulated and again.metrics.histogram == found.metrics.histogram
    assert found.simulated is not None
    assert {length: found.metrics.histogram[length] for length in range(1, 7)} == found.simulated["histogram"]
    assert found.metrics.mean_accept_len == pytest.approx(found.simulated["realised_mean"])
    assert [len(result.tokens) for result in found.results] == [25, 25]
    assert found.metrics.folded == 0
    if execution is Execution.FOLDED:
        assert set(found.metrics.unfolded) == {"acceptance is simulated"}


def test_a_whole_number_is_accepted_in_every_step_of_greedy_and_sampled_requests_alike(model: Model) -> None:
    found = run(model, ForcedAcceptance(4.0), temperatures=(0.0, 0.8, 0.0), check=True)
    assert set(found.metrics.histogram) == {4}
    assert all(result.metrics.verify_steps == 6 and result.simulated for result in found.results)


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
    assert main(["decode", *words, *simulated]) == 0
    out = capsys.readouterr()[0]
    assert "SIMULATED acceptance (per_position, per_step, seed 3): 3.000 drawn on average, 3 asked for" in out
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
