"""Plans are values: canonical bytes, digest, equality, files."""

from __future__ import annotations

import json
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dspark_ops import Plan
from dspark_ops.api import Evidence, RankClass, axis, family
from dspark_ops.errors import UnknownOperatorError
from dspark_ops.selection.lock import lock_of, read_lock
from dspark_ops.selection.rows import row_counts, rows_of, rows_text
from dspark_ops.selection.settings import OperatorSettings, Policy


@pytest.fixture
def plan(fakes: Any) -> Plan:
    kernels = [
        fakes.kernel(
            rank=RankClass.FUSED, arch=family("sm_10x"), region=[axis("R").at_most(8)], prepare="fake_kernels:prepare",
            evidence=(("sm_103", Evidence.COMPILED),),
        ),
        fakes.kernel(variant="two", arch=family("gfx95x")),
    ]  # fmt: skip
    settings = fakes.settings(
        Policy(fallback="allow"), {"ops.pick.deny": "a.toml:1", "policy.fallback": "a.toml:9"},
        pick=OperatorSettings(deny=("nothing/*",), require_class=RankClass.REFERENCE),
    )  # fmt: skip
    made: Plan = fakes.plan(*kernels, settings=settings, operators=None, failures=(fakes.failure,))
    return made


def test_a_plan_survives_json_and_pickle(plan: Plan) -> None:
    for copy in (Plan.from_json(plan.to_json()), pickle.loads(pickle.dumps(plan))):
        assert copy == plan
        assert (copy.to_json(), copy.digest, hash(copy)) == (plan.to_json(), plan.digest, hash(plan))
        assert copy.explain("pick") == plan.explain("pick")
        assert copy.selections == plan.selections


def test_the_json_is_canonical_and_holds_no_time_and_no_traceback(plan: Plan) -> None:
    text = plan.to_json()
    assert text == json.dumps(json.loads(text), sort_keys=True, separators=(",", ":"))
    assert "traceback" not in text


def test_equal_inputs_give_equal_bytes_and_another_choice_another_digest(fakes: Any) -> None:
    assert fakes.plan(fakes.kernel()).digest == fakes.plan(fakes.kernel()).digest
    assert fakes.plan(fakes.kernel()).digest != fakes.plan(fakes.kernel(variant="two")).digest
    assert fakes.plan(fakes.kernel()) != fakes.plan(fakes.kernel(), device=fakes.h200)


def test_where_a_setting_was_written_changes_the_text_but_not_the_digest(fakes: Any) -> None:
    one, two = (
        fakes.plan(settings=fakes.settings(origins={"ops.pick.deny": where}, pick=OperatorSettings(deny=("plug/*",))))
        for where in ("a.toml:1", "environment")
    )
    assert one.digest == two.digest
    assert one != two


def test_settings_whose_effect_is_in_the_plan_do_not_enter_its_digest(fakes: Any) -> None:
    plain = fakes.plan()
    strict = Policy(plugin_error="fail", lock="prefer", smoke="on", smoke_seconds=9)
    for other in (
        replace(plain.settings, simulate="sm_103"),
        replace(plain.settings, allow=("plug",), deny=("other",)),
        replace(plain.settings, policy=strict),
    ):
        assert replace(plain, settings=other).digest == plain.digest
    weaker = replace(plain.settings, policy=Policy(fallback="allow"))
    assert replace(plain, settings=weaker).digest != plain.digest


def test_a_saved_plan_is_whole_or_not_there(plan: Plan, tmp_path: Path) -> None:
    path = tmp_path / "dspark-ops.lock"
    plan.save(path)
    assert read_lock(path) == lock_of(plan)
    with pytest.raises(FileNotFoundError):
        plan.save(tmp_path / "missing" / "plan.json")
    assert [item.name for item in tmp_path.iterdir()] == ["dspark-ops.lock"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[]", "wanted schema 3, got None"),
        ('{"schema":99}', "wanted schema 3, got 99"),
        ('{"schema":3}', "Plan: wanted the fields"),
        ("{", "Expecting property name"),
    ],
)
def test_a_text_that_is_no_plan_is_refused(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Plan.from_json(text)


def test_a_value_of_a_wrong_type_is_refused(plan: Plan) -> None:
    for path, value in (
        (["rows"], 6),
        (["selections"], {}),
        (["selections", 0, "choices", 0, "kernel", "rank"], "best"),
    ):
        data = json.loads(plan.to_json())
        inner = data
        for key in path[:-1]:
            inner = inner[key]
        inner[path[-1]] = value
        with pytest.raises(ValueError, match=r"wanted|is not a valid"):
            Plan.from_json(json.dumps(data))


def test_asking_a_plan_for_an_operator_it_lacks_suggests_one(plan: Plan) -> None:
    with pytest.raises(UnknownOperatorError, match="did you mean 'pick'"):
        plan.explain("pikc")


def test_a_plan_cannot_be_changed(plan: Plan) -> None:
    with pytest.raises(AttributeError):
        plan.model = "other"  # type: ignore[misc]


@given(st.sets(st.integers(0, 300), min_size=1))
def test_row_texts_read_back(counts: set[int]) -> None:
    wanted = tuple(sorted(counts))
    assert rows_of(rows_text(wanted)) == wanted


@pytest.mark.parametrize(
    ("counts", "text"),
    [
        ([6], "6"),
        (range(1, 65), "1-64"),
        ([3, 4], "3-4"),
        ([6, 12, 18], "6-18/6"),
        ([66, 72], "66,72"),
        ([1, 2, 4], "1-2,4"),
    ],
)
def test_row_counts_are_written_the_short_way(counts: Any, text: str) -> None:
    assert rows_text(row_counts(counts)) == text


@pytest.mark.parametrize("text", ["", "a", "1-", "-3", "4-2"])
def test_row_texts_of_no_form_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="row"):
        rows_of(text)
