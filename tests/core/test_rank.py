"""Ranking: pin, then order list, then class, then evidence, then id; the order of registration plays no part."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dspark_ops.api import Evidence, RankClass, axis, family
from dspark_ops.selection.knowledge import Knowledge
from dspark_ops.selection.registry import Registry
from dspark_ops.selection.settings import OperatorSettings


def ranked(plan: Any) -> list[str]:
    """Ids of the eligible candidates of `pick` at its first site, in order."""
    choice = plan.of("pick")[0].choices[0]
    return [choice.kernel.id, *(item.id for item in choice.standby)]


def test_a_fused_kernel_comes_before_a_portable_one_and_the_reference_last(fakes: Any) -> None:
    plan = fakes.plan(
        fakes.kernel(variant="a", rank=RankClass.PORTABLE), fakes.kernel(variant="b", rank=RankClass.FUSED)
    )
    assert ranked(plan) == ["plug/pick/b", "plug/pick/a", "core/pick/reference"]


def test_an_order_list_goes_before_the_class_and_a_pin_before_both(fakes: Any) -> None:
    kernels = [
        fakes.kernel(variant="a", rank=RankClass.FUSED),
        fakes.kernel(variant="b"),
        fakes.kernel(variant="c"),
    ]
    ordered = fakes.settings(pick=OperatorSettings(order=("*/c", "*/b", "plug/*")))
    assert ranked(fakes.plan(*kernels, settings=ordered)) == ["plug/pick/c", "plug/pick/b", "plug/pick/a"]
    pinned = fakes.settings(pick=OperatorSettings(order=("*/c", "*/b"), pin="plug/pick/a"))
    assert ranked(fakes.plan(*kernels, settings=pinned)) == ["plug/pick/a", "plug/pick/c", "plug/pick/b"]


def test_two_kernels_that_differ_by_name_only_are_a_tie_that_the_plan_records(fakes: Any) -> None:
    choice = fakes.plan(fakes.kernel(variant="b"), fakes.kernel(variant="a")).of("pick")[0].choices[0]
    assert (choice.kernel.id, choice.tie) == ("plug/pick/a", "plug/pick/b")
    alone = fakes.plan(fakes.kernel(variant="b")).of("pick")[0].choices[0]
    assert alone.tie == ""


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 10**6), count=st.integers(1, 8))
def test_registration_order_never_matters(fakes: Any, seed: int, count: int) -> None:
    generator = random.Random(seed)
    kernels = [
        fakes.kernel(
            variant=f"v{index}",
            plugin=generator.choice(["alpha", "beta"]),
            rank=generator.choice([RankClass.FUSED, RankClass.PORTABLE]),
            arch=generator.choice([None, family("sm_10x"), family("gfx95x")]),
            region=generator.choice([[], [axis("R").at_most(8)], [axis("R").multiple_of(4)]]),
        )
        for index in range(count)
    ]
    first = fakes.plan(registry=fakes.registry(kernels))
    shuffled = generator.sample(kernels, k=count)
    # A registry sorts by id; planning must not depend on that either.
    unsorted = Registry({"pick": tuple(shuffled)}, fakes.registry(shuffled).plugins)
    assert fakes.plan(registry=unsorted).to_json() == first.to_json()


@pytest.mark.parametrize("device", ["cpu", "b300", "h200", "mi355x"])
def test_the_reference_is_a_candidate_everywhere(fakes: Any, device: str) -> None:
    assert ranked(fakes.plan(device=getattr(fakes, device))) == ["core/pick/reference"]


def test_within_a_class_a_kernel_that_was_checked_comes_before_one_that_nobody_ran(fakes: Any) -> None:
    proven = fakes.kernel(variant="z", evidence={"sm_103": Evidence.CONFORMANT})
    unrun, fused = fakes.kernel(variant="a"), fakes.kernel(variant="b", rank=RankClass.FUSED)
    plan = fakes.plan(proven, unrun)
    assert ranked(plan) == ["plug/pick/z", "plug/pick/a", "core/pick/reference"]
    assert plan.of("pick")[0].choices[0].tie == "", "its name did not decide"
    assert "plug/pick/a          portable   declared     stand-by, EVIDENCE: declared against conformant" in (
        plan.explain("pick")
    )
    # the class goes before the evidence, and so does what the configuration says
    assert ranked(fakes.plan(proven, fused))[0] == "plug/pick/b"
    ordered = fakes.settings(pick=OperatorSettings(order=("*/a", "*")))
    explained = fakes.plan(proven, unrun, settings=ordered).explain("pick")
    assert "1 * plug/pick/a" in explained and "EVIDENCE" not in explained


def test_evidence_of_another_architecture_puts_nobody_first(fakes: Any) -> None:
    elsewhere = fakes.kernel(variant="z", evidence={"sm_90": Evidence.MEASURED})
    assert ranked(fakes.plan(elsewhere, fakes.kernel(variant="a")))[0] == "plug/pick/a"


def test_a_measured_time_goes_before_evidence_and_says_so(fakes: Any) -> None:
    kernels = [fakes.kernel(variant="a"), fakes.kernel(variant="z", evidence={"sm_103": Evidence.CONFORMANT})]
    place = ("pick", fakes.plan(*kernels).of("pick")[0].problem.place)
    times = {count: {"plug/pick/a": 3.0, "plug/pick/z": 4.0} for count in (1, 64)}
    plan = fakes.plan(*kernels, knowledge=Knowledge(times={place: times}, times_origin="measured.json of today"))
    assert ranked(plan)[0] == "plug/pick/a"
    assert "stand-by, EVIDENCE" not in plan.explain("pick").split("site ")[1]
