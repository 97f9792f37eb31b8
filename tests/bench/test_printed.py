"""Metrics that a foreign command printed."""

from __future__ import annotations

import json

import pytest

from dspark_ops.bench.measurement import Measurement
from dspark_ops.bench.printed import read_printed
from dspark_ops.errors import EvidenceError

FIGURES = {
    "cycle_us": [6205.6, 6210.0, 6190.0],
    "output_tps": 887.1,
    "accept_len": 5.505,
    "verify_steps": 186,
    "histogram": {"6": 100, "3": 86},
    "warmups": 1,
    "cached_tokens": 0,
    "simulated": True,
    "dispatch": [{"operator": "argmax_rows", "kernel": "nvidia_sm10x/argmax_rows/one_launch", "calls": 80}],
    "gpu_name": "whatever",
}


@pytest.mark.parametrize("lead", ["", "loading weights ...\n{not json}\n"])
def test_json_is_read_alone_or_as_the_last_line(lead: str) -> None:
    found = read_printed(lead + json.dumps(FIGURES))
    assert found.cycle == 6205.6
    assert (found.tps, found.accept_len, found.verify_steps) == (887.1, 5.505, 186)
    assert found.simulated and found.histogram == {6: 100, 3: 86}
    assert found.dispatch is not None and found.dispatch[0].calls == 80
    assert found.ignored == ("gpu_name",)
    assert list(found.faults()) == []


def test_prometheus_text_is_read_with_its_calls_per_kernel() -> None:
    found = read_printed(
        "# HELP dspark_ops_cycle_us Microseconds.\n# TYPE dspark_ops_cycle_us gauge\n"
        "dspark_ops_cycle_us 4716.7\ndspark_ops_cycle_us 4720.5 1700000000\n"
        "dspark_ops_accept_len 5.505376\ndspark_ops_output_tps 1167.22\n"
        'dspark_ops_dispatch_calls_total{operator="rope_wo_a",kernel="x/rope_wo_a/y"} 800\n'
        'dspark_ops_dispatch_calls_total{operator="moe_sort",kernel="x/moe_sort/y"} 0\n'
    )
    assert found.cycle_us == (4716.7, 4720.5)
    assert found.accept_len == 5.505376
    assert [(item.operator, item.calls) for item in found.dispatch or ()] == [("rope_wo_a", 800), ("moe_sort", 0)]


def test_lines_of_name_and_value_are_read_and_the_cycle_follows_from_its_definition() -> None:
    found = read_printed("elapsed = 1.25\nttft: 0.25\nverify_steps=200\nAL = 5.5\ntokens_digest: ab12\nselection = 1\n")
    assert found.cycle_us == (5000.0,)
    assert (found.accept_len, found.ttft_ms, found.tokens_digest, found.selection) == (5.5, (250.0,), "ab12", True)


def test_the_figures_of_s0_turn_into_each_other() -> None:
    """887.10 tokens/s at accept length 5.505 is a cycle of 6205.6 us, and 905.40 one of 6080.2 us (C4.1 item 6)."""
    before, after = (read_printed(f"output_tps = {rate}\naccept_len = 5.505") for rate in (887.10, 905.40))
    assert before.cycle == pytest.approx(6205.6, abs=0.1)
    assert after.cycle == pytest.approx(6080.2, abs=0.1)


def test_the_accept_length_follows_from_the_histogram() -> None:
    assert read_printed(json.dumps({"cycle_us": 10, "histogram": {"1": 1, "6": 3}})).accept_len == 4.75


@pytest.mark.parametrize(
    ("output", "text"),
    [
        ("", "wanted cycle_us, or elapsed, ttft and verify_steps"),
        ("output_tps = 900", "got output_tps"),
        ("cycle_us = -3", "all positive"),
        ("cycle_us = fast", "cycle_us.0: .* got 'fast'"),
        ("elapsed = 3\nttft = 1", "got 1, 1 and 0 figures"),
        ("elapsed = 3\nttft = 1\nverify_steps = 0", "at least one verify step"),
    ],
)
def test_output_without_a_cycle_time_is_refused(output: str, text: str) -> None:
    with pytest.raises(EvidenceError, match=text):
        read_printed(output)


def test_counters_that_disagree_by_more_than_2_percent_are_a_fault() -> None:
    right = Measurement(cycle_us=(5000.0,), output_tps=(1100.0,), accept_len=5.5)
    assert right.identity_error() == pytest.approx(0.0)
    assert list(right.faults()) == []
    wrong = Measurement(cycle_us=(5000.0,), output_tps=(1130.0,), accept_len=5.5)
    (fault,) = wrong.faults()
    assert "the counters disagree: 1130.00 tokens/s is +2.7 %" in fault


def test_a_run_of_few_cycles_may_end_a_part_of_one_behind_its_last_token() -> None:
    short, long = (
        Measurement(cycle_us=(5000.0,), output_tps=(1130.0,), accept_len=5.5, verify_steps=steps) for steps in (4, 10)
    )
    assert short.identity_tolerance() == pytest.approx(0.05)
    assert list(short.faults()) == []
    assert "wanted within 2 %" in next(long.faults())


def test_tokens_dropped_behind_the_end_are_taken_off_before_counters_are_held_against_each_other() -> None:
    found = Measurement(
        cycle_us=(1e6,), output_tps=(8.0,), accept_len=5.0, verify_steps=10, trimmed=10, requests_per_step=2.0
    )
    assert found.identity_error() == pytest.approx(0.0)


def test_cached_tokens_no_warm_up_and_a_failed_check_are_faults() -> None:
    found = Measurement(cycle_us=(1.0,), cached_tokens=3, warmups=0, gate="failed: prompts [2] give other tokens")
    texts = " | ".join(found.faults())
    for part in ("3 prompt tokens came from a prefix cache", "no warm-up run", "failed: prompts [2]"):
        assert part in texts


def test_what_a_command_checked_and_how_often_its_host_waited_is_taken_and_nothing_is_assumed() -> None:
    checks = {"conformance": "passed: 12 calls", "gate": "failed: prompt 2", "host_syncs": 41}
    found = read_printed(json.dumps({**FIGURES, **checks}))
    assert (found.conformance, found.gate, found.host_syncs) == ("passed: 12 calls", "failed: prompt 2", 41)
    assert list(found.faults()) == ["the check before the timed runs failed: prompt 2"]
    silent = read_printed(json.dumps(FIGURES))
    assert (silent.conformance, silent.gate, silent.host_syncs) == ("", "", None)
