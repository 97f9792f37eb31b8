"""docs/performance.md says what the recorded figures say."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"


def module(name: str):
    spec = importlib.util.spec_from_file_location(name, DOCS / f"{name}.py")
    made = importlib.util.module_from_spec(spec)
    sys.modules[name] = made  # dataclasses look their module up
    try:
        spec.loader.exec_module(made)
    finally:
        del sys.modules[name]
    return made


figures = module("performance_figures")
shared = module("performance_shared")


def group(op: str, rows: int, own: float, **peers: float):
    arms = {"own": {"median_us": own}}
    for name, value in peers.items():
        arms[name] = {"median_us": value, "own_is_faster": {"ratio": value / own}}
    return {"op": op, "rows": rows, "arms": arms, "unfit": {}, "bytes": 1000}


def test_a_standing_is_the_geometric_mean_with_what_is_slower_by_name():
    found = figures.standing([group("a", 6, 1.0, sglang=4.0), group("b", 6, 2.0, sglang=1.0)], "sglang")
    assert found.mean == pytest.approx(2**0.5)
    assert found.slower == ("`b` 6 (2.00x)",)


def test_a_ratio_that_the_spread_hides_calls_nobody_slower():
    one = group("a", 6, 1.0, sglang=0.99)
    one["arms"]["sglang"]["own_is_faster"]["ratio"] = None
    found = figures.standing([one], "sglang")
    assert (found.slower, found.not_told) == ((), 1)


def test_what_was_not_measured_has_no_standing_and_meets_no_target():
    failed = {"op": "argmax_rows", "rows": 6, "arms": {}, "unfit": {}, "failed": "the GPU was lost"}
    assert figures.standing([failed], "torch") is None
    first = next(iter(figures.targets([failed])))
    assert (first.found, first.text) == (None, "not measured")
    assert figures.failures([failed]) == {"argmax_rows": {"the GPU was lost": [6]}}


def test_targets_are_met_at_their_bound_and_missed_above():
    met, missed = (next(iter(figures.targets([group("argmax_rows", 6, value)]))) for value in (4.73, 4.74))
    assert (met.text, missed.text) == ("met", "missed")


def test_the_page_is_what_the_recorded_figures_give(monkeypatch):
    monkeypatch.syspath_prepend(str(DOCS))
    build = module("build_performance")
    names = ("h200.json", "decode_h200.json", "cycle_h200.json", "cycle_reference_h200.json")
    report, decode, *cycles = [build._read(name) for name in names]
    reasons = build.tomllib.loads(build.REASONS.read_text(encoding="utf-8"))
    schedule = build._read("flashmla_schedule_h200.json")
    text = "\n".join(build.page(report, [one for one in cycles if one], decode, reasons, schedule)) + "\n"
    assert build.PAGE.read_text(encoding="utf-8") == text, "run  python docs/build_performance.py"


def test_a_recording_with_failed_operators_still_gives_a_page_that_names_them():
    recorded = json.loads((DOCS.parent / "benchmarks/results/h200.json").read_text(encoding="utf-8"))
    sys.path.insert(0, str(DOCS))
    try:
        build = module("build_performance")
    finally:
        sys.path.remove(str(DOCS))
    failed = [{"op": "mhc_post", "rows": 6, "arms": {}, "unfit": {}, "failed": "the worker ended"}]
    page = "\n".join(build.page({**recorded, "groups": failed}, [], None, {}))
    assert "- `mhc_post`, rows 6: the worker ended" in page
    assert "| SGLang 0.5.23 | 0 | - | - | not measured |" in page


def schedule_record(handed: float, ours: float):
    arms = ("flashmla_own", "flashmla_handed", "flashmla_walked", "adapter", "adapter_handed", "portable")
    found = {name: {"median_us": value} for name, value in zip(arms, (30, handed, 14, 14, ours, 8), strict=True)}
    bits = {"full rows": {"adapter": True}}
    size = {"rows": 1, "topk": 512, "inputs": "rotating", "bits_of_flashmla_own": bits, "arms": found}
    return {"sizes": [size, {**size, "inputs": "repeated"}]}


def test_a_schedule_handed_over_is_held_against_its_bound_once_with_what_the_launch_in_front_adds(monkeypatch):
    monkeypatch.syspath_prepend(str(DOCS))
    schedule = module("performance_schedule")
    (target, reason), *others = schedule.targets(schedule_record(12.0, 13.5))
    assert (target.text, target.found, others) == ("missed", 13.5, [])
    assert "alone take 12.00 here" in reason and "adds 1.50, of 2.5" in reason
    assert next(schedule.targets(schedule_record(10.5, 13.0)))[0].text == "met"
    assert list(schedule.targets(None)) == []


def test_outputs_that_are_not_to_the_bit_are_called_so(monkeypatch):
    monkeypatch.syspath_prepend(str(DOCS))
    schedule = module("performance_schedule")
    record = schedule_record(12.0, 13.0)
    assert schedule._bits(record) == "equal to FlashMLA with its own schedule to the bit (full rows)"
    record["sizes"][0]["bits_of_flashmla_own"]["full rows"]["adapter"] = False
    assert schedule._bits(record).startswith("NOT equal")


def test_a_gpu_alone_and_a_shared_one_stand_side_by_side_with_a_dash_where_a_peer_is_missing():
    machine = {"device": "GPU", "driver": "1", "torch": "2", "triton": "3"}
    arms = {"a": {"own": {"median_us": 1.0}, "sglang": {"median_us": 1.26}}, "b": {"own": {"median_us": 2.0}}}
    states = {"alone": arms, "after_another_process": {**arms, "a": {**arms["a"], "own": {"median_us": 0.5}}}}
    lines = list(shared.section({"what": "us", "rows": 6, "rounds": 12, "machine": machine, "states": states}))
    assert "| `a` | 1.00 | 1.26 | 0.50 | 1.26 |" in lines
    assert "| `b` | 2.00 | - | 2.00 | - |" in lines
