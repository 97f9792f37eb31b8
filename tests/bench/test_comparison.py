"""The verdict of two arms: when it is given, when it is refused, and what is said beside it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from dspark_ops.bench.comparable import incomparable
from dspark_ops.bench.comparison import Comparison, Verdict, compare_arms
from dspark_ops.bench.measurement import Dispatch
from dspark_ops.bench.record import ArmRecord

Arms = Callable[..., tuple[ArmRecord, ArmRecord]]
Change = Callable[..., ArmRecord]


def fault(comparison: Comparison) -> str:
    assert comparison.verdict is Verdict.VOID
    assert comparison.text.startswith("no statement")
    return " | ".join(comparison.faults)


def test_an_effect_beyond_zero_and_beyond_the_control_is_found(arms: Arms) -> None:
    found = compare_arms(*arms())
    assert found.verdict is Verdict.FASTER
    assert found.effect is not None and found.control is not None
    assert found.effect.mean == pytest.approx(0.02)
    assert found.control.mean == pytest.approx(0.0)
    assert [pair.ratio for pair in found.pairs] == pytest.approx([0.021, 0.019, 0.022, 0.018])
    assert found.text.startswith("B is faster: +2.02 % [")
    assert "A/A +0.00 % [" in found.text
    assert found.treated == (("argmax_rows", "core/argmax_rows/reference", "fast/argmax_rows/one_launch"),)
    assert found.tps is not None and found.tps.mean == pytest.approx(0.02)
    assert compare_arms(*arms(ratios=(-0.021, -0.019, -0.022, -0.018))).verdict is Verdict.SLOWER


def test_an_effect_inside_the_control_is_not_distinguishable_from_noise(arms: Arms) -> None:
    found = compare_arms(*arms(control=(0.02, -0.02, 0.015, -0.015)))
    assert found.effect is not None and not found.effect.includes_zero
    assert found.verdict is Verdict.NOISE
    assert found.text.startswith("not distinguishable from noise (inside the A/A interval): +2.02 %")


def test_an_interval_around_zero_is_not_distinguishable_from_noise(arms: Arms) -> None:
    found = compare_arms(*arms(ratios=(0.05, -0.01, 0.03, -0.02)))
    assert found.text.startswith("not distinguishable from noise (the interval includes 0)")


def test_without_a_control_the_report_says_that_the_noise_was_not_measured(arms: Arms) -> None:
    found = compare_arms(*arms(control=()))
    assert found.verdict is Verdict.FASTER
    assert found.text.endswith("no A/A control")
    assert any("no A/A control was run" in text for text in found.not_shown)


def test_a_kernel_that_was_never_called_is_an_error_and_not_a_zero_effect(arms: Arms) -> None:
    silent = Dispatch("argmax_rows", "fast/argmax_rows/one_launch", 0, "fused")
    fallback = Dispatch("argmax_rows", "core/argmax_rows/reference", 80, "reference")
    found = compare_arms(*arms(second={"dispatch": (silent, fallback)}))
    assert "arm B: fast/argmax_rows/one_launch, which only this arm chose, was called 0 times" in fault(found)


def test_parts_that_one_arm_calls_for_a_fused_kernel_of_the_other_are_no_missing_calls(arms: Arms) -> None:
    parts = ("argmax_rows", "accept_greedy", "accept_finalize")
    composed = (
        Dispatch("accept_tail", "core/accept_tail/composed", 80, composed=True),
        *(Dispatch(name, f"core/{name}/reference", 81 if name == "argmax_rows" else 80) for name in parts),
    )

    def fused(argmax: int) -> tuple[Dispatch, ...]:
        calls = {"accept_tail": 80, "argmax_rows": argmax, "accept_greedy": 0, "accept_finalize": 0}
        return tuple(Dispatch(name, f"fast/{name}/one_launch", count) for name, count in calls.items())

    assert compare_arms(*arms(first={"dispatch": composed}, second={"dispatch": fused(1)})).faults == ()
    found = compare_arms(*arms(first={"dispatch": composed}, second={"dispatch": fused(0)}))
    assert "fast/argmax_rows/one_launch, which only this arm chose, was called 0 times" in fault(found)


def test_one_launch_without_the_kernel_is_enough_for_an_error(arms: Arms, changed: Change) -> None:
    first, second = arms()
    measured = second.launches[2].measurement
    assert measured is not None
    silent = replace(measured, dispatch=(Dispatch("argmax_rows", "fast/argmax_rows/one_launch", 0),))
    assert "called 0 times" in fault(compare_arms(first, changed(second, 2, measurement=silent)))


def test_an_operator_that_the_workload_never_reaches_is_not_covered_by_the_verdict(arms: Arms) -> None:
    unreached = {side: Dispatch("accept_sampled", f"{side}/accept_sampled/x", 0) for side in ("core", "fast")}
    first, second = arms()
    records = []
    for record, extra in ((first, unreached["core"]), (second, unreached["fast"])):
        items = [
            replace(item, measurement=replace(item.measurement, dispatch=(*item.measurement.dispatch, extra)))
            for item in record.launches
        ]
        records.append(replace(record, launches=tuple(items)))
    found = compare_arms(*records)
    assert found.verdict is Verdict.FASTER
    assert "accept_sampled: served by different kernels, and never called by this workload" in found.not_shown


def test_two_configurations_that_choose_the_same_kernels_have_no_difference_to_measure(arms: Arms) -> None:
    same = {"dispatch": (Dispatch("argmax_rows", "core/argmax_rows/reference", 80),)}
    assert "both configurations chose the same kernels everywhere" in fault(
        compare_arms(*arms(first=same, second=same))
    )
    found = compare_arms(*arms(first=same, second=same, treatments=({"environment": {"X": "1"}}, {"environment": {}})))
    assert found.verdict is Verdict.FASTER


def test_a_kernel_that_was_expected_must_be_shown_to_be_called(arms: Arms) -> None:
    assert compare_arms(*arms(expected=("*/argmax_rows/*",))).verdict is Verdict.FASTER
    assert "slow/* was expected and called 0 times" in fault(compare_arms(*arms(expected=("slow/*",))))
    first, second = arms(expected=("*/argmax_rows/*",), first={"dispatch": None}, second={"dispatch": None})
    assert "there is no dispatch evidence" in fault(compare_arms(first, second))


def test_a_command_without_dispatch_evidence_gets_a_verdict_that_says_so(arms: Arms) -> None:
    found = compare_arms(*arms(first={"dispatch": None}, second={"dispatch": None}))
    assert found.verdict is Verdict.FASTER
    assert any("a fallback cannot be told from the kernel" in text for text in found.not_shown)


def test_a_failed_launch_takes_its_partner_with_it_and_both_are_listed(arms: Arms, changed: Change) -> None:
    first, second = arms()
    found = compare_arms(first, changed(second, 1, measurement=None, error="exit code 1: out of memory"))
    assert found.effect is not None and found.effect.pairs == 3
    assert found.left_out == (
        "launch 2 (arm B): failed: exit code 1: out of memory",
        "launch 3 (arm A): its partner in the pair does not count",
    )
    assert any("3 pairs count, 4 or more are asked for" in text for text in found.not_shown)


def test_launches_that_chose_a_configuration_are_no_evidence_for_it(arms: Arms, changed: Change) -> None:
    found = compare_arms(*arms(selection=True))
    assert "fewer than 2 launches of each arm count" in fault(found)
    assert len(found.left_out) == 16
    first, second = arms()
    measured = second.launches[0].measurement
    assert measured is not None
    found = compare_arms(first, changed(second, 0, measurement=replace(measured, selection=True)))
    assert found.effect is not None and found.effect.pairs == 3
    assert "launch 1 (arm B): was used to choose a configuration, so it is no evidence for it" in found.left_out


def test_a_field_that_differs_and_is_no_treatment_is_named(arms: Arms) -> None:
    first, second = arms()
    newer = tuple(
        replace(item, fingerprint={**item.fingerprint, "versions": {"torch": "2.14"}}) for item in second.launches
    )
    second = replace(second, launches=newer)
    (difference,) = incomparable(first, second)
    assert str(difference) == "versions.torch differs between the arms: 2.13 and 2.14"
    assert "versions.torch" in fault(compare_arms(first, second))
    assert incomparable(replace(first, declared=("versions.torch",)), second) == []
    assert incomparable(replace(first, declared=("versions",)), second) == []


def test_a_machine_that_changed_between_two_launches_is_named_with_them(arms: Arms, changed: Change) -> None:
    first, second = arms()
    first = changed(first, 3, fingerprint={**first.launches[3].fingerprint, "code": {"dspark_ops": "edited"}})
    (difference,) = incomparable(first, second)
    number = first.launches[3].number
    assert str(difference) == f"code.dspark_ops differs between launches 0 and {number} of arm A: c and edited"


def test_other_prompts_are_another_workload(arms: Arms) -> None:
    first, second = arms()
    second = replace(second, workload={**second.workload, "prompts": 3})
    assert [item.field for item in incomparable(first, second)] == ["workload.prompts"]


def test_a_variable_of_one_arm_is_its_treatment_and_any_other_is_not(arms: Arms) -> None:
    first, second = arms(treatments=({"environment": {}}, {"environment": {"OMP_NUM_THREADS": "2"}}))

    def with_variables(record: ArmRecord, **variables: str) -> ArmRecord:
        items = [replace(item, fingerprint={**item.fingerprint, "environment": variables}) for item in record.launches]
        return replace(record, launches=tuple(items))

    a = with_variables(first, OMP_NUM_THREADS="1")
    assert incomparable(a, with_variables(second, OMP_NUM_THREADS="2")) == []
    (difference,) = incomparable(a, with_variables(second, OMP_NUM_THREADS="2", NCCL_ALGO="ring"))
    assert difference.field == "environment.NCCL_ALGO"


def test_tokens_per_second_are_also_given_at_the_accept_length_of_a(arms: Arms) -> None:
    """A text with 10 % longer runs gives 10 % more tokens per second, and no kernel did that."""
    longer = {"accept_len": 5.5, "tokens_digest": "other"}
    first, second = arms(ratios=(0.021, 0.019, 0.022, 0.018), second=longer)
    items = [
        replace(item, measurement=replace(item.measurement, output_tps=(1.1 * item.measurement.tps,)))
        for item in second.launches
    ]
    found = compare_arms(first, replace(second, launches=tuple(items)))
    assert found.verdict is Verdict.FASTER
    assert found.effect is not None and found.tps is not None and found.tps_normalised is not None
    assert found.effect.mean == pytest.approx(0.02)
    assert found.tps.mean == pytest.approx(0.02 + 0.09531, abs=1e-5)
    assert found.tps_normalised.mean == pytest.approx(0.02)
    assert any("the arms gave different tokens" in text for text in found.notes)
    assert any("accept length differs" in text for text in found.notes)


def test_a_knocked_out_operator_gives_a_ceiling_and_never_a_gain(arms: Arms) -> None:
    same = {"dispatch": (Dispatch("argmax_rows", "core/argmax_rows/reference", 80),)}
    treatments: tuple[dict[str, Any], ...] = ({"config": ""}, {"config": "", "knock_out": "argmax_rows"})
    found = compare_arms(*arms(first=same, second={**same, "ceiling": "argmax_rows"}, treatments=treatments))
    assert found.verdict is Verdict.CEILING
    assert found.text.startswith("ceiling of argmax_rows, which was taken out (no kernel for it can gain more")
    never = compare_arms(*arms(first=same, second={**same, "ceiling": "moe_sort"}, treatments=treatments))
    assert "moe_sort, which was to be taken out, was called 0 times" in fault(never)


def test_simulated_acceptance_is_said_first(arms: Arms) -> None:
    drawn = {"simulated": True}
    found = compare_arms(*arms(first=drawn, second=drawn))
    assert found.simulated
    records = arms(first=drawn, second=drawn)
    assert [record.to_json()["simulated"] for record in records] == [True, True]
    mixed = compare_arms(*arms(second=drawn))
    assert "acceptance was drawn in some launches and found in others" in fault(mixed)
    assert found.text.startswith("simulated acceptance: B is faster")


def test_fallbacks_host_waits_and_busy_machines_are_said(arms: Arms, changed: Change) -> None:
    more = {"eager_fallbacks": 3, "first_fallback": "rows 7 not captured", "host_syncs": 2, "folded_share": 0.97}
    first, second = arms(first=more, second=more)
    found = compare_arms(first, changed(second, 0, conditions={"load": 6.5}))
    text = " | ".join(found.notes)
    for part in (
        "arm A: 12 cycles of runs that fold accepted outside the step; first reason: rows 7 not captured",
        "arm B: the host waits for the device 2 to 2 times in one run, 0.02 per cycle",
        "arm B: 0.970 to 0.970 of the cycles accept on the device",
        "load 6.5",
    ):
        assert part in text


def test_waits_that_one_arm_did_not_count_are_not_shown_and_never_zero(arms: Arms) -> None:
    found = compare_arms(*arms(first={"host_syncs": 300}))
    assert found.arms is not None
    assert [(arm.host_syncs, arm.host_syncs_per_cycle) for arm in found.arms] == [(300, 3.0), (None, None)]
    assert any(text.startswith("how often the host waited for the device in arm B: not") for text in found.not_shown)
    both = compare_arms(*arms())
    assert any("in arms A and B: not counted" in text for text in both.not_shown)


def test_what_was_checked_before_the_timed_runs_is_said_for_each_arm(arms: Arms) -> None:
    held = {"conformance": "passed: 8 calls of 2 kernels give what the references give"}
    found = compare_arms(*arms(first=held, second={**held, "gate": ""}))
    assert "arm B, kernels before the timed runs: passed: 8 calls of 2 kernels give what" in " | ".join(found.notes)
    assert found.arms is not None and [arm.gate for arm in found.arms] == ["passed", ""]
    shown = " | ".join(found.not_shown)
    assert "that the tokens of arm B are right: no launch" in shown
    assert "argmax_rows keep its contract on other calls than this workload's: run  dspark-ops check" in shown
    assert "argmax_rows keep its contract: run" in " | ".join(compare_arms(*arms(second=held)).not_shown)
    wrong = compare_arms(*arms(second={"conformance": "failed: fast/argmax_rows/one_launch: ids"}))
    assert "the check before the timed runs failed: fast/argmax_rows/one_launch" in fault(wrong)


def test_accept_lengths_must_be_equal_where_all_that_differs_is_exact_to_the_bit(arms: Arms) -> None:
    ids = ("core/argmax_rows/reference", "fast/argmax_rows/one_launch")
    served = [Dispatch("argmax_rows", kernel, 80, bitwise=True) for kernel in ids]
    same = compare_arms(*arms(first={"dispatch": (served[0],)}, second={"dispatch": (served[1],)}))
    assert same.verdict is Verdict.FASTER
    other = {"dispatch": (served[1],), "histogram": {4: 49, 6: 51}}
    found = compare_arms(*arms(first={"dispatch": (served[0],)}, second=other))
    assert "accept lengths differ between launches" in fault(found) and "(argmax_rows)" in fault(found)
    loose = compare_arms(*arms(second={"histogram": {4: 49, 6: 51}}))
    assert loose.verdict is Verdict.FASTER


def test_arms_of_two_sessions_are_two_samples_and_drift_is_not_ruled_out(arms: Arms) -> None:
    first, _ = arms(session="monday")
    _, second = arms(session="tuesday")
    found = compare_arms(first, second)
    assert not found.interleaved and found.pairs == ()
    assert found.effect is not None and found.effect.mean == pytest.approx(0.02)
    assert found.not_shown[0].startswith("that drift plays no part")
    assert found.tps is None and found.sensitivity is None


def test_a_record_is_read_back_as_it_was_and_gives_the_same_comparison(arms: Arms) -> None:
    records = arms()
    again = [ArmRecord.from_json(json.loads(json.dumps(record.to_json()))) for record in records]
    assert [record.to_json() for record in again] == [record.to_json() for record in records]
    assert json.dumps(compare_arms(*again).to_json()) == json.dumps(compare_arms(*records).to_json())
