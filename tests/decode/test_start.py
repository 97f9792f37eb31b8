"""A model's start: its lock, its layouts, and the planning anew after a kernel failed its trial run."""

from __future__ import annotations

from pathlib import Path

import pytest

from dspark_ops.decode import load_model
from dspark_ops.decode.options import Execution
from dspark_ops.errors import LockError, ModelError
from dspark_ops.selection.lock import read_lock
from dspark_ops.selection.plan import Plan

TINY = Path(__file__).parents[2] / "examples" / "tiny_v41"


def test_a_model_s_plan_can_be_locked_and_required(tmp_path: Path) -> None:
    lock = tmp_path / "dspark-ops.lock"
    load_model(TINY).plan().save(lock)
    required = {"policy": {"lock": "require"}, "files": {"lock": str(lock)}}
    plan = load_model(TINY, config=required).plan()
    assert {line.kernel for line in read_lock(lock).selections} >= {
        item.choices[0].kernel.id for item in plan.selections
    }
    with pytest.raises(LockError, match=r"ops\.argmax_rows\.deny: locked nothing, here nothing/\*"):
        load_model(TINY, config={**required, "ops": {"argmax_rows": {"deny": ["nothing/*"]}}}).plan()


def test_a_layout_that_the_model_s_caches_do_not_have_is_refused() -> None:
    assert load_model(TINY, config={"layouts": {"kv_page": ["kv_v4"]}}).plan().layouts == {"kv_page": "kv_v4"}
    with pytest.raises(ModelError, match=r"the plan chose kv_v41, but this model's caches are in kv_v4: set  layouts"):
        load_model(TINY, config={"layouts": {"kv_page": ["kv_v41"]}}).plan()


def test_a_model_plans_again_for_its_own_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[str]] = []

    def failing(plan: Plan, kernels: list[str]) -> dict[str, str]:
        asked.append(list(kernels))
        return {"plugin/argmax_rows/made_up": "it raised"}

    monkeypatch.setattr("dspark_ops.binding.smoke.try_kernels", failing)
    model = load_model(TINY, config={"policy": {"smoke": "on"}})
    ops = model.ops()
    assert len(asked) == 2, "a round with a new failure, and one without"
    assert ops.plan.model == model.plan().model


def test_a_model_whose_steps_are_captured_asks_for_kernels_that_can_be() -> None:
    assert load_model(TINY, graphs=True).plan().settings.origin("policy.graphs") == "argument graph"
    assert load_model(TINY).plan().settings.policy.graphs == "off"


def test_steps_are_captured_on_a_gpu_alone() -> None:
    assert [way.value for way in Execution if way.captures("cuda:0")] == ["graph", "folded"]
    assert [way for way in Execution if way.captures("cpu")] == []
