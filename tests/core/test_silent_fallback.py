"""A weaker or wrong kernel is never reached without a word. Case O24."""

from __future__ import annotations

import dataclasses
import warnings
from typing import Any

import pytest

from dspark_ops.api import Package, RankClass, Reason, ReasonCode, axis
from dspark_ops.contracts import Site
from dspark_ops.errors import SelectionError
from dspark_ops.selection.explain import below_required
from dspark_ops.selection.plan import Plan
from dspark_ops.selection.settings import OperatorSettings, Policy, Settings

A, B, C = "plug/pick/a_tuned", "plug/pick/b_prefill", "plug/pick/c_any"


def plan(fakes: Any, width: int, *, settings: Settings | None = None, linked: bool = True, **fields: Any) -> Plan:
    """Plan an operator whose width is `width` for 8 and 100 rows, with the case's three kernels."""
    library = Package("decode_kernels", "decode-kernels")
    kernels = (
        fakes.kernel(variant="a_tuned", rank=RankClass.FUSED, region=[axis("V").one_of(128, 512)], packages=(library,)),
        fakes.kernel(variant="b_prefill", region=[axis("R").at_least(65)]),
        fakes.kernel(variant="c_any"),
    )
    pick = dataclasses.replace(fakes.contracts["pick"], sites=lambda shapes: (Site("verify", axes={"V": width}),))
    broken = Reason(ReasonCode.UNAVAILABLE, "decode_kernels", "an import that works", "link: -lcuda")
    return fakes.plan(
        *kernels,
        rows=(8, 100),
        settings=settings,
        contracts={**fakes.contracts, "pick": pick},
        packages=lambda package: None if linked else broken,
        **fields,
    )


def flat(text: str) -> str:
    return " ".join(text.split())


def served(made: Plan) -> dict[int, str]:
    (selection,) = made.selections
    return {count: choice.kernel.id for count, choice in selection.by_rows.items()}


def test_o24_a_shape_that_a_kernel_was_not_built_for_goes_to_one_that_was(fakes: Any) -> None:
    assert served(plan(fakes, 128)) == {8: A, 100: A}
    assert served(plan(fakes, 192)) == {8: C, 100: B}


def test_o24_explain_names_every_refused_kernel_with_what_it_wanted_and_got(fakes: Any) -> None:
    text = flat(plan(fakes, 192).explain("pick"))
    assert "SHAPE V: wanted V in {128, 512}, got 192" in text
    assert "SHAPE R: wanted R >= 65, got 8" in text


def test_o24_a_kernel_that_cannot_be_linked_is_listed_with_the_linkers_words(fakes: Any) -> None:
    made = plan(fakes, 128, linked=False)
    assert served(made) == {8: C, 100: B}
    text = flat(made.explain("pick"))
    assert "UNAVAILABLE decode_kernels: wanted an import that works, got link: -lcuda" in text
    assert A in text


@pytest.mark.parametrize(
    ("width", "linked", "reason"), [(192, True, r"wanted V in \{128, 512\}, got 192"), (128, False, "got link: -lcuda")]
)
def test_o24_a_kernel_named_by_the_user_that_may_not_serve_is_an_error_with_its_reasons(
    fakes: Any, width: int, linked: bool, reason: str
) -> None:
    settings = fakes.settings(pick=OperatorSettings(pin=A), origins={"ops.pick.pin": "dspark-ops.toml:7"})
    with pytest.raises(SelectionError, match=reason) as error:
        plan(fakes, width, settings=settings, linked=linked)
    assert f"the pinned kernel {A} may not serve it (ops.pick.pin, dspark-ops.toml:7)" in str(error.value)


def test_o24_a_strict_policy_refuses_a_weaker_class_at_start(fakes: Any) -> None:
    strict = fakes.settings(Policy(fallback="fail", require_class=RankClass.FUSED))
    assert served(plan(fakes, 128, settings=strict)) == {8: A, 100: A}
    with pytest.raises(SelectionError, match="fused or better"):
        plan(fakes, 192, settings=strict)


def test_o24_a_lenient_policy_lets_it_pass_and_each_bucket_is_a_finding(fakes: Any) -> None:
    lenient = fakes.settings(Policy(fallback="warn", require_class=RankClass.FUSED))
    made = plan(fakes, 192, settings=lenient)
    assert served(made) == {8: C, 100: B}
    findings = below_required(made)
    assert len(findings) == 2
    assert all("weaker than required" in line for line in findings)


def test_o24_planning_prints_and_warns_nothing_by_itself(fakes: Any, capsys: pytest.CaptureFixture[str]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        plan(fakes, 192)
    assert capsys.readouterr() == ("", "")
