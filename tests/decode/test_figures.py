"""Figures of a run: their definitions, their identity, and the two forms in which they are written."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from dspark_ops.cli import main
from dspark_ops.decode import DecodeMetrics, DecodeOptions, Finish, Request, Result, engine, generate, load_model
from dspark_ops.decode.figures import figures_of, prometheus_text
from dspark_ops.decode.ranges import ranges_for
from dspark_ops.decode.request import Timing
from dspark_ops.decode.serving import ServiceLoad
from dspark_ops.errors import InvariantError, ModelError


def counted() -> DecodeMetrics:
    """Two requests of blocks of 3: cycles over both, then one over one of them; its last block is cut by two tokens."""
    metrics = DecodeMetrics(forwards=2, seconds=0.004)
    metrics.prefill(4)
    metrics.prefill(5)
    metrics.step(3, 4, 2, 3)
    metrics.step(3, 3, 0, 1)
    metrics.step(3, 4, 3, 2)
    return metrics


def test_figures_follow_their_definitions() -> None:
    found = figures_of(counted())
    assert found.accept_len == pytest.approx((3 + 1 + 4) / 3)
    assert found.accept_rate == pytest.approx(5 / 9)
    assert (found.cycle_us, found.requests_per_cycle) == (pytest.approx(2000.0), 1.5)
    assert found.verify_rate == pytest.approx(11 / 12)
    assert found.accepted_share == pytest.approx(8 / 11)
    assert found.output_tps == pytest.approx(6 / 0.004) == found.expected_tps
    assert found.client_tps == 0.0
    assert [(rate.proposed, rate.judged, rate.accepted) for rate in found.positions] == [
        (3, 3, 2),
        (3, 2, 2),
        (3, 2, 1),
    ]
    assert [rate.unconditional for rate in found.positions] == pytest.approx([2 / 3, 2 / 3, 1 / 3])
    assert [rate.conditional for rate in found.positions] == pytest.approx([2 / 3, 1.0, 1 / 2])


def test_one_request_at_a_time_is_also_timed_as_its_reader_sees_it() -> None:
    metrics = DecodeMetrics(forwards=1, seconds=0.002)
    metrics.prefill(4)
    metrics.step(3, 4, 3, 4)
    result = Result((5, 6, 7, 8, 9), Finish.MAX_TOKENS, metrics, timing=Timing(1.0, 0.004))
    assert figures_of(metrics, [result]).client_tps == pytest.approx(1000.0)


def test_counters_that_disagree_are_an_error_and_no_steps_have_no_rates() -> None:
    metrics = counted()
    metrics.emitted += 1
    with pytest.raises(InvariantError, match=r"9 tokens were emitted, and prefills, .* are 8"):
        figures_of(metrics)
    empty = figures_of(DecodeMetrics())
    assert (empty.accept_len, empty.cycle_us, empty.verify_rate, empty.positions) == (0.0, 0.0, 0.0, ())


def test_json_says_of_what_each_rate_is_a_share() -> None:
    found = figures_of(counted(), simulated=True).to_json()
    assert json.loads(json.dumps(found)) == found
    assert found["simulated"] is True
    assert found["per_position"][1]["accepted_of_judged"] == 1.0
    assert found["per_position"][1]["accepted_of_proposed"] == pytest.approx(2 / 3)


def test_prometheus_text_has_counters_a_cumulative_histogram_and_labels() -> None:
    text = prometheus_text(counted(), {"model": 'a "b"\\'}, simulated=True)
    lines = text.splitlines()
    labels = 'model="a \\"b\\"\\\\",simulated="true"'
    assert f"dspark_ops_decode_emitted_total{{{labels}}} 8" in lines
    assert "# TYPE dspark_ops_decode_accept_len_tokens histogram" in lines
    buckets = [line.rpartition(" ")[2] for line in lines if "_bucket" in line]
    assert buckets == ["1", "1", "2", "3", "3"]
    assert f"dspark_ops_decode_accept_len_tokens_sum{{{labels}}} 8" in lines
    assert f'dspark_ops_decode_position_judged_total{{{labels},position="2"}} 2' in lines
    assert sum(line.startswith("# TYPE dspark_ops_decode_cycle_us gauge") for line in lines) == 1
    load = ServiceLoad(running=3, waiting=2, used_pages=5, pages=8, short_of_pages=1)
    busy = prometheus_text(counted(), load=load).splitlines()
    gauges = ("waiting 2", "used_pages 5", "short_of_pages 1")
    assert {f"dspark_ops_decode_{gauge}" for gauge in gauges} <= set(busy)
    assert text.endswith("\n") and "dspark_ops_decode_emitted_total 8" in prometheus_text(counted()).splitlines()


@pytest.mark.parametrize("name", ["run.json", "run.prom"])
def test_the_verb_writes_what_it_counted(
    model_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    words = ["--model", str(model_folder), "--prompt", "abc", "--max-tokens", "6", "--no-compare"]
    code = main(["decode", *words, "--metrics", str(tmp_path / name)])
    out, _ = capsys.readouterr()
    assert code == 0 and "acceptance by draft" in out and "given those before" in out
    text = (tmp_path / name).read_text()
    if name.endswith(".json"):
        data = json.loads(text)
        assert data["counts"]["emitted"] == 6
        assert data["figures"]["client_tps"] > 0 and len(data["figures"]["per_position"]) == 5
    else:
        assert 'dspark_ops_decode_emitted_total{model="' in text


def test_a_metrics_file_with_another_ending_is_refused(model_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, expected in (("x.csv", "ends in .json, or in .prom"), ("none/x.json", "the folder none does not exist")):
        code = main(["decode", "--model", str(model_folder), "--prompt", "a", "--metrics", name])
        assert code == 2 and expected in capsys.readouterr()[1]


def test_ranges_are_off_unless_asked_for_and_mark_every_part_of_a_cycle(
    model_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []

    @contextmanager
    def record(name: str) -> Iterator[None]:
        seen.append(name)
        yield

    wanted: list[bool] = []
    monkeypatch.setattr(engine, "ranges_for", lambda nvtx: wanted.append(nvtx) or record)
    generate(load_model(model_folder), [Request((5, 6), 3)], DecodeOptions())
    assert wanted == [False]
    assert seen[:5] == ["prefill", "draft", "verify", "accept", "commit"]
    with ranges_for(False)("anything"):
        pass


def test_ranges_without_a_gpu_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(ModelError, match="NVTX ranges need a CUDA device"):
        ranges_for(True)
