"""Evaluation: every reason, with what was wanted, what was got, and at which row counts."""

from __future__ import annotations

from typing import Any

import pytest

from dspark_ops.api import (
    Constraint,
    Package,
    RankClass,
    Reason,
    ReasonCode,
    Traits,
    axis,
    contiguous,
    dtype,
    elements,
    family,
    option,
    unit_last_stride,
)
from dspark_ops.contracts import Site
from dspark_ops.selection.device import Device
from dspark_ops.selection.evaluate import Question, evaluate
from dspark_ops.selection.policy import operator_policy
from dspark_ops.selection.problem import Problem
from dspark_ops.selection.settings import OperatorSettings, Policy, Settings

NO_ROWS_NEEDED = (1, 2, 3)


def reasons(
    fakes: Any,
    *,
    device: Device | None = None,
    site: Site | None = None,
    settings: Settings | None = None,
    check: Any = lambda package: None,
    rows: tuple[int, ...] = NO_ROWS_NEEDED,
    **fields: Any,
) -> list[tuple[ReasonCode, str, str, str]]:
    """The reasons that hold at the first row count, as (code, field, wanted, got)."""
    device, settings = device or fakes.b300, settings or Settings()
    contract = fakes.contracts["pick"]
    problem = Problem.at(contract, site or Site("verify", axes={"V": 4096}))
    question = Question(contract, problem, rows, settings, operator_policy(settings, device, "pick", small=False))
    result = evaluate(fakes.kernel(**fields), question, device, check)
    return [
        (reason.code, reason.field, reason.wanted, reason.got)
        for finding in result.findings
        if finding.mask & 1
        for reason in [finding.on(question, 1)]
    ]


def test_a_kernel_without_requirements_has_no_reason(fakes: Any) -> None:
    assert reasons(fakes) == []


def test_all_reasons_are_collected_not_the_first(fakes: Any) -> None:
    found = reasons(
        fakes,
        device=fakes.mi355x,
        arch=family("sm_10x"),
        features=("pdl",),
        contract_versions=(2,),
        traits=Traits(nan="ignored"),
        region=[dtype("x", "bfloat16"), axis("V").at_most(64), axis("R").at_least(2)],
        settings=fakes.settings(pick=OperatorSettings(deny=("plug/*",))),
    )
    assert [code.value for code, *_ in found] == [
        "DEVICE_VENDOR", "FEATURE", "CONTRACT", "SEMANTICS", "DENIED", "DTYPE", "SHAPE", "SHAPE",
    ]  # fmt: skip


def test_another_vendor_is_a_vendor_reason_and_another_chip_an_arch_reason(fakes: Any) -> None:
    assert reasons(fakes, device=fakes.mi355x, arch=family("sm_10x")) == [
        (ReasonCode.DEVICE_VENDOR, "vendor", "nvidia (sm_10x)", "amd (gfx950)")
    ]
    assert reasons(fakes, device=fakes.h200, arch=family("sm_10x")) == [
        (ReasonCode.DEVICE_ARCH, "arch", "sm_10x", "sm_90")
    ]


@pytest.mark.parametrize(
    ("constraint", "code", "wanted", "got"),
    [
        (axis("V").at_most(64), ReasonCode.SHAPE, "V <= 64", "4096"),
        (axis("K").at_least(1), ReasonCode.SHAPE, "K >= 1", "not stated by the problem"),
        (dtype("x", "bfloat16"), ReasonCode.DTYPE, "bfloat16", "float32"),
        (contiguous("x")[0], ReasonCode.STRIDE, "contiguous", "unit_last"),
        (option("top").is_(8), ReasonCode.OPTION, "top = 8", "1"),
        (option("ties").is_("any"), ReasonCode.OPTION, "ties = any", "lowest"),
        (elements("R*V", 4096), ReasonCode.SHAPE, "R*V < 4096 (int32 offsets)", "4096"),
    ],
)
def test_each_kind_of_constraint_says_what_it_wanted_and_got(
    fakes: Any, constraint: Constraint, code: ReasonCode, wanted: str, got: str
) -> None:
    site = Site("verify", axes={"V": 4096}, strides={"x": "unit_last"})
    assert reasons(fakes, site=site, region=[constraint]) == [(code, constraint.subject, wanted, got)]


def test_a_unit_last_stride_admits_rows_of_a_wider_buffer(fakes: Any) -> None:
    site = Site("verify", axes={"V": 4096}, strides={"x": "unit_last"})
    assert reasons(fakes, site=site, region=[unit_last_stride("x")]) == []


def test_a_caller_that_takes_any_rule_is_served_by_every_rule(fakes: Any) -> None:
    lenient = Site("verify", axes={"V": 4096}, semantics={"ties": "any"})
    assert reasons(fakes, site=lenient, traits=Traits(ties="lowest")) == []
    assert reasons(fakes, site=lenient, traits=Traits(ties="any")) == []
    assert reasons(fakes, traits=Traits(ties="any")) == [(ReasonCode.SEMANTICS, "ties", "lowest", "any")]


def test_a_constraint_that_raises_refuses_its_kernel_and_no_other(fakes: Any) -> None:
    broken = Constraint("axis", "V", "multiple_of", ("eight",), "V divisible by eight")
    found = reasons(fakes, region=[broken, axis("V").at_most(64)])
    assert [code.value for code, *_ in found] == ["PREDICATE_RAISED", "SHAPE"]
    assert "TypeError" in found[0][3]


def test_an_order_list_refuses_what_it_does_not_list_but_not_the_pin(fakes: Any) -> None:
    ordered = fakes.settings(pick=OperatorSettings(order=("other/*",)))
    assert reasons(fakes, settings=ordered) == [(ReasonCode.NOT_LISTED, "ops.pick.order", "other/*", "plug/pick/one")]
    pinned = fakes.settings(pick=OperatorSettings(order=("other/*",), pin="plug/pick/one"))
    assert reasons(fakes, settings=pinned) == []


@pytest.mark.parametrize(
    ("rank", "own", "policy", "barred"),
    [
        (RankClass.REFERENCE, None, None, True),
        (RankClass.PORTABLE, None, None, False),
        (RankClass.PORTABLE, RankClass.FUSED, None, True),
        (RankClass.REFERENCE, RankClass.REFERENCE, None, False),
        (RankClass.PORTABLE, None, RankClass.FUSED, True),
        (RankClass.PORTABLE, RankClass.PORTABLE, RankClass.FUSED, False),
        (RankClass.COMPOSED, None, None, False),  # its parts have their own requirement
        (RankClass.COMPOSED, RankClass.FUSED, None, True),
    ],
)
def test_a_weaker_class_than_required_is_barred_on_a_real_accelerator(
    fakes: Any, rank: RankClass, own: RankClass | None, policy: RankClass | None, barred: bool
) -> None:
    settings = fakes.settings(Policy(require_class=policy), pick=OperatorSettings(require_class=own))
    codes = [code for code, *_ in reasons(fakes, device=fakes.real(fakes.b300), rank=rank, settings=settings)]
    assert codes == ([ReasonCode.CLASS] if barred else [])
    assert reasons(fakes, device=fakes.b300, rank=rank, settings=settings) == []


@pytest.mark.parametrize(
    ("constraint", "violated"),
    [
        (axis("R").between(3, 5), {1, 2, 6, 7, 8}),
        (axis("R").at_most(1), {2, 3, 4, 5, 6, 7, 8}),
        (axis("R").at_least(9), {1, 2, 3, 4, 5, 6, 7, 8}),
        (axis("R").multiple_of(4), {1, 2, 3, 5, 6, 7}),
        (axis("R").power_of_two(), {3, 5, 6, 7}),
        (axis("R").one_of(2, 6), {1, 3, 4, 5, 7, 8}),
        (elements("R*V", 4 * 4096), {4, 5, 6, 7, 8}),
        (elements("R*V", 4 * 4096 + 1), {5, 6, 7, 8}),
        (elements("R*R", 17), {5, 6, 7, 8}),
        (elements("R*K", 17), {1, 2, 3, 4, 5, 6, 7, 8}),
    ],
)
def test_a_constraint_on_rows_holds_exactly_where_checking_each_row_count_says(
    fakes: Any, constraint: Constraint, violated: set[int]
) -> None:
    contract, rows = fakes.contracts["pick"], tuple(range(1, 9))
    problem = Problem.at(contract, Site("verify", axes={"V": 4096}))
    question = Question(
        contract, problem, rows, Settings(), operator_policy(Settings(), fakes.b300, "pick", small=False)
    )
    result = evaluate(fakes.kernel(region=[constraint]), question, fakes.b300, lambda package: None)
    by_mask = {count for index, count in enumerate(rows) for finding in result.findings if finding.mask >> index & 1}
    one_by_one = {count for count in rows if constraint.check(problem.with_rows("R", count)) is not None}
    assert by_mask == one_by_one == violated


def test_packages_are_asked_one_by_one_and_their_reasons_kept(fakes: Any) -> None:
    def check(package: Package) -> Reason | None:
        if package.module == "flash_mla":
            return Reason(
                ReasonCode.PKG_MISSING, "flash_mla", "flash_mla importable", "not installed", "pip install flash_mla"
            )
        return None

    packages = (Package("numpy", "numpy"), Package("flash_mla", "flash_mla"))
    assert reasons(fakes, check=check, packages=packages) == [
        (ReasonCode.PKG_MISSING, "flash_mla", "flash_mla importable", "not installed")
    ]
