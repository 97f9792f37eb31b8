"""What is measured for the schedules: step rates, and temperatures from the fate of drafts."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch

from dspark_ops import Device
from dspark_ops.cli import main
from dspark_ops.decode import DecodeOptions, Model, Request, decode_plain
from dspark_ops.decode.calibration import Calibration, read_calibration
from dspark_ops.decode.options import Execution, RuntimeOptions
from dspark_ops.decode.sps import MeasuredRates, read_rates
from dspark_ops.decode.sps_profile import measure_rates, write_rates
from dspark_ops.decode.sts_collect import Blocks, fit_from_run
from dspark_ops.decode.v41.synthetic import random_weights, small_config
from dspark_ops.errors import ModelError

CONFIG = small_config()


@pytest.fixture(scope="module")
def model() -> Model:
    return Model(CONFIG, random_weights(CONFIG, seed=1), device=Device.simulate("cpu"))


def test_step_rates_are_measured_at_every_width_of_one_request_and_at_whole_blocks_of_more(model: Model) -> None:
    points: list[tuple[int, float]] = []
    options = DecodeOptions(2, max_batch=3, execution=Execution.STATIC, runtimes=RuntimeOptions(extra_widths=(2,)))
    rates = measure_rates(model, options, steps=1, prompt=4, on_point=lambda *point: points.append(point))
    assert rates.tokens == (1, 2, 3, 6, 9)
    assert dict(points) == dict(zip(rates.tokens, rates.steps_per_second, strict=True))
    assert all(0 < rate < 1e5 for rate in rates.steps_per_second) and rates.calibrated


def test_a_context_without_room_for_steps_is_refused(model: Model) -> None:
    with pytest.raises(ModelError, match="the context of 224 leaves room for 0"):
        measure_rates(model, prompt=220)


def test_written_rates_are_read_as_they_were(tmp_path: Path) -> None:
    rates = MeasuredRates((1, 6, 12), (30.5, 20.0, 12.25))
    write_rates(tmp_path / "sps.json", rates, {"device": "x"})
    assert read_rates(tmp_path / "sps.json") == rates
    data = json.loads((tmp_path / "sps.json").read_text())
    assert data["max_batch_tokens"] == 12 and data["origin"] == {"device": "x"}


def test_blocks_keep_logits_outcomes_and_how_much_of_them_counts() -> None:
    blocks = Blocks(eos=9)
    scheduler = blocks.scheduler(None, 3)
    confidence = torch.tensor([[0.5, 0.75, 1.0], [0.25, 0.5, 0.0], [0.5, 0.5, 0.5]])
    assert scheduler.verify_lens(confidence, confidence, [4, 7, 8]).tolist() == [4, 4, 4]
    blocks.emitted(4, (5, 6, 9))  # the third token, an accepted draft, ends the text
    blocks.emitted(7, (3,))
    scheduler.observe([4, 1, 3], [4, 4, 2])
    assert blocks.logits[0] == pytest.approx([0.0, math.log(3), math.log(1e7)], rel=1e-6)
    assert blocks.logits[1][2] == pytest.approx(-math.log(1e7), rel=1e-6)
    assert blocks.accepted == [3, 0, 2]
    assert blocks.known == [3, 3, 1]
    scheduler.verify_lens(confidence[:1], confidence[:1], [4])
    blocks.emitted(4, (9,))
    scheduler.observe([4], [4])
    assert blocks.known[-1] == 1


def test_a_fit_decodes_as_ever_and_counts_every_block(model: Model) -> None:
    generator = torch.Generator().manual_seed(2)
    asked = [Request(tuple(torch.randint(5, 97, (5,), generator=generator).tolist()), 9) for _ in range(3)]
    fitted, generation = fit_from_run(model, asked, DecodeOptions(max_batch=2), "three")
    plain = decode_plain(model, asked, DecodeOptions(max_batch=2))
    assert [result.tokens for result in generation.results] == [result.tokens for result in plain.results]
    assert (fitted.samples, fitted.dataset) == (generation.metrics.verify_steps, "three")
    assert len(fitted.temperatures) == 5
    assert all(
        after <= before + 1e-12 for before, after in zip(fitted.ece_before[:1], fitted.ece_after[:1], strict=True)
    )
    with pytest.raises(ModelError, match="leave the calibration out"):
        fit_from_run(model, asked, DecodeOptions(calibration=Calibration((1.0,) * 5)))
    with pytest.raises(ModelError, match="no block was verified"):
        fit_from_run(model, [Request((5,), 1)])


def test_the_verb_writes_both_files_and_reads_them_again(
    model_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(*words: object) -> dict[str, object]:
        code = main(["decode", "--model", str(model_folder), *map(str, words), "--json"])
        out, err = capsys.readouterr()
        assert (code, err) == (0, "")
        found: dict[str, object] = json.loads(out)
        return found

    rates, temperatures = tmp_path / "sps.json", tmp_path / "sts.json"
    found = run("--profile-sps", rates, "--max-batch", 1, "--gamma", 2)
    assert [tokens for tokens, _ in found["rates"]] == [1, 2, 3]  # type: ignore[attr-defined]
    assert read_rates(rates).calibrated
    found = run("--fit-sts", temperatures, "--prompt", "abc", "--max-tokens", 6)
    assert list(read_calibration(temperatures, 5).temperatures) == found["temperatures"]
    words = ("--prompt", "abc", "--max-tokens", 5, "--step-rates", rates, "--calibration", temperatures)
    for schedule in ("prefix", "uniform"):
        assert run(*words, "--policy", schedule)["identical"] is True
    assert run("--prompt", "abc", "--max-tokens", 5, "--verify-rows", 2, "--verify-mode", "cap-accept")["identical"]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("--verify-widths", "2,x"), "--verify-widths 2,x: wanted rows per request from 2, such as 2,3"),
        (("--verify-widths", "1"), "wanted rows per request from 2"),
        (("--verify-mode", "cap"), "--verify-mode cap: wanted one of compact, cap-accept"),
        (("--verify-rows", "2", "--schedule", "prefix"), "only --schedule static uses it"),
        (("--profile-sps", "x.json", "--tp", "2"), "--profile-sps and --fit-sts run on one rank, got --tp 2"),
        (("--schedule", "uniform", "--verify-mode", "cap-accept"), "verify mode is 'cap-accept'"),
    ],
)
def test_choices_that_do_not_go_together_are_one_clear_error(
    model_folder: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], expected: str
) -> None:
    code = main(["decode", "--model", str(model_folder), "--prompt", "a", *words])
    out, err = capsys.readouterr()
    assert (code, out) == (2, "") and expected in err
