"""The doctor on the plan: what a fault or a setting degrades, and why. Case O24."""

from __future__ import annotations

from typing import Any

from dspark_ops.api import RankClass
from dspark_ops.api.kernel import Package
from dspark_ops.api.reason import Reason, ReasonCode
from dspark_ops.api.region import axis
from dspark_ops.doctor import Severity
from dspark_ops.selection.settings import OperatorSettings, Policy, Settings


def test_o24_an_operator_that_a_fault_degrades_is_an_error_with_the_reason_and_the_fix(ask: Any, fakes: Any) -> None:
    link = Reason(ReasonCode.UNAVAILABLE, "link", "a linked helper", "-lcuda cannot be found", "install the stubs")
    helper = Package("helper", "helper")
    plan = fakes.plan(
        fakes.kernel(variant="fast", rank=RankClass.FUSED, packages=(helper,)),
        fakes.kernel(variant="slow"),
        packages=lambda package: link if package == helper else None,
    )
    (finding,) = [item for item in ask.found("plan", plan=plan) if item.severity is Severity.ERROR]
    assert finding.finding == (
        "a weaker class serves than this device could run, since link: wanted a linked helper, got -lcuda cannot be "
        "found: pick"
    )
    assert finding.evidence.splitlines()[0] == (
        "pick at verify, rows 1-64: served by plug/pick/slow (portable) instead of plug/pick/fast (fused)"
    )
    assert finding.fix == "install the stubs"


def test_a_kernel_that_is_for_other_sizes_degrades_nothing(ask: Any, fakes: Any) -> None:
    fast = fakes.kernel(variant="fast", rank=RankClass.FUSED, region=[axis("V").between(1, 2)])
    assert ask.found("plan", plan=fakes.plan(fast, fakes.kernel(variant="slow"))) == []


def test_a_missing_package_is_a_warning(ask: Any, fakes: Any) -> None:
    missing = Reason(ReasonCode.PKG_MISSING, "helper", "helper", "not installed", "pip install helper")
    plan = fakes.plan(
        fakes.kernel(variant="fast", rank=RankClass.FUSED, packages=(Package("helper", "helper"),)),
        fakes.kernel(variant="slow"),
        packages=lambda package: missing,
    )
    finding = ask.one("plan", plan=plan)
    assert (finding.severity, finding.fix) == (Severity.WARNING, "pip install helper")


def test_an_order_list_that_prefers_a_weaker_class_is_a_warning(ask: Any, fakes: Any) -> None:
    plan = fakes.plan(
        fakes.kernel(variant="fast", rank=RankClass.FUSED),
        fakes.kernel(variant="slow"),
        settings=Settings(operators={"pick": OperatorSettings(order=("plug/pick/slow", "*"))}),
    )
    findings = ask.found("plan", plan=plan)
    assert {item.fix for item in findings} == {"remove the pin or order list of ops.pick"}
    assert all(item.evidence == "eligible: plug/pick/fast (fused)" for item in findings)


def test_operators_without_any_kernel_of_the_required_class_are_one_warning(ask: Any, fakes: Any) -> None:
    plan = fakes.plan(settings=Settings(Policy(fallback="allow")))
    finding = ask.one("plan", plan=plan)
    assert finding.finding == "no kernel for sm_103 is of the required class, so a weaker one serves: pick"
    assert len(finding.evidence.splitlines()) == 2  # its two sites


def test_a_start_that_the_policy_refuses_is_found_in_short(ask: Any) -> None:
    finding = ask.one("plan", start_problem="\n".join(f"line {number}" for number in range(20)))
    assert finding.finding == "with this configuration a server does not start"
    assert finding.evidence.splitlines()[-2:] == ["line 7", "... and 12 lines more"]


def test_a_plan_that_cannot_be_made_is_found(ask: Any) -> None:
    assert ask.one("plan", plan_problem="argmax_rows: pinned to nothing").evidence == "argmax_rows: pinned to nothing"
