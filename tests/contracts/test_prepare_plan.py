"""The prepare plan of low-ratio layers: lanes and events, every order that it allows, each rule broken on purpose."""

from __future__ import annotations

import operator
import subprocess
import sys
from dataclasses import replace
from itertools import permutations, product

import pytest
import torch

from dspark_ops import contracts
from dspark_ops.contracts.prepare_check import disagreements, plan_faults
from dspark_ops.contracts.prepare_plan import (
    MAIN,
    PreparePlan,
    Record,
    Run,
    Wait,
    WorkItem,
    low_ratio_prepare,
    run_items,
)
from dspark_ops.errors import ContractError

ALL = [low_ratio_prepare(*flags) for flags in product((False, True), repeat=3)]
WHOLE = low_ratio_prepare(kv_source=True, index_source=True)
# Entry c = 2x and its index c + q_lora, keys qkv + 5, queries 3(x + 1): sums that a wrong order changes.
TOY = {
    "qkv_a": lambda x: x + 1,
    "q_lora": lambda qkv: qkv * 7,
    "q_store": lambda q_lora: q_lora * 3,
    "kv_store": lambda qkv: qkv + 5,
    "compress": lambda x: 2 * x,
    "index": lambda q_lora, entries: entries + q_lora,
}
STALE = {"x": 10, "qkv": -1, "q_lora": -2, "q": -3, "window": -4, "entries": -5, "selection": -6}


def without(plan: PreparePlan, *events: str) -> PreparePlan:
    """The plan without the waits for these events."""
    return replace(
        plan, steps=tuple(step for step in plan.steps if not (isinstance(step, Wait) and step.event in events))
    )


def toy_of(plan: PreparePlan) -> dict:
    """The toy program, for layers that read entries of an earlier source too."""
    return {**TOY, "index": TOY["index"] if "compress" in plan.items else lambda q_lora: 20 + q_lora}


def test_the_whole_plan_forks_where_data_is_ready_and_joins_at_the_end() -> None:
    assert [(step.lane, step.item.name) for step in WHOLE.steps if isinstance(step, Run)] == [
        (MAIN, "qkv_a"), (MAIN, "q_lora"), (MAIN, "q_store"),
        ("sources", "compress"), ("sources", "index"), ("kv", "kv_store"),
    ]  # fmt: skip
    assert WHOLE.forks == (("start", "sources"), ("after q_lora", "sources"), ("after qkv_a", "kv"))
    assert WHOLE.joins == ("sources done", "kv done")
    assert WHOLE.serial == ("qkv_a", "q_lora", "compress", "index", "kv_store", "q_store")
    assert WHOLE.results == ("q", "window", "entries", "selection")


def test_a_layer_without_compressor_and_indexer_uses_the_kv_lane_only() -> None:
    plan = low_ratio_prepare(kv_source=False, index_source=False)
    assert {step.lane for step in plan.steps} == {MAIN, "kv"}
    assert plan.forks == (("after qkv_a", "kv"),) and plan.serial == ("qkv_a", "q_lora", "kv_store", "q_store")


def test_an_index_layer_without_compressor_waits_for_the_queries_alone() -> None:
    plan = low_ratio_prepare(kv_source=False, index_source=True)
    assert plan.items["index"].reads == ("q_lora",)
    assert plan.forks == (("after q_lora", "sources"), ("after qkv_a", "kv"))


def test_separate_projections_let_the_keys_start_at_once() -> None:
    plan = low_ratio_prepare(kv_source=True, index_source=True, fused_qkv=False)
    assert "qkv_a" not in plan.items and ("start", "kv") in plan.forks
    assert plan.before()["kv_store"] == frozenset()


def test_what_is_done_before_each_item_follows_from_lanes_and_events() -> None:
    before = WHOLE.before()
    assert before["q_store"] == {"qkv_a", "q_lora"}
    assert before["kv_store"] == {"qkv_a"}
    assert before["compress"] == frozenset()
    assert before["index"] == {"compress", "qkv_a", "q_lora"}
    assert before[""] == set(WHOLE.items)


@pytest.mark.parametrize("plan", ALL)
def test_every_plan_is_sound_and_every_order_that_it_allows_gives_the_serial_result(plan: PreparePlan) -> None:
    assert plan_faults(plan) == ()
    orders = list(plan.orders())
    assert plan.serial in orders and len(set(orders)) == len(orders) > 1
    assert disagreements(plan, toy_of(plan), STALE) == ()


def test_the_serial_result_is_the_one_computed_by_hand() -> None:
    values = run_items(WHOLE, TOY, {"x": 10})
    assert values == {"x": 10, "qkv": 11, "q_lora": 77, "q": 231, "window": 16, "entries": 20, "selection": 97}


def test_the_allowed_orders_are_exactly_those_that_keep_the_data_dependencies() -> None:
    def keeps_them(order: tuple[str, ...]) -> bool:
        place = {name: index for index, name in enumerate(order)}
        return (
            place["qkv_a"] < place["q_lora"] < place["q_store"]
            and place["qkv_a"] < place["kv_store"]
            and max(place["q_lora"], place["compress"]) < place["index"]
        )

    wanted = {order for order in permutations(WHOLE.items) if keeps_them(order)}
    assert set(WHOLE.orders()) == wanted and len(wanted) == 33


def test_tensors_agree_to_the_bit_in_every_order() -> None:
    x = torch.randn(6, 64, generator=torch.Generator().manual_seed(0))
    assert disagreements(WHOLE, TOY, {**STALE, "x": x}, torch.equal) == ()


@pytest.mark.parametrize(
    ("event", "fault"),
    [
        ("after q_lora", "index may start before q_lora is made"),
        ("after qkv_a", "kv_store may start before qkv is made"),
        ("kv done", "the main lane may go on before window is made"),
        ("sources done", "the main lane may go on before selection is made"),
    ],
)
def test_a_missing_wait_is_found(event: str, fault: str) -> None:
    assert fault in plan_faults(without(WHOLE, event))


def test_a_missing_fork_shows_as_a_stale_result_in_some_order() -> None:
    wrong = disagreements(without(WHOLE, "after q_lora"), TOY, STALE)
    assert wrong and all(order.index("index") < order.index("q_lora") for order in wrong)
    wrong = disagreements(without(WHOLE, "after qkv_a"), TOY, STALE, operator.eq)
    assert wrong and all(order.index("kv_store") < order.index("qkv_a") for order in wrong)


def test_a_wait_before_its_event_is_recorded_orders_nothing_and_is_found() -> None:
    steps = (Wait("kv", "after qkv_a"), *without(WHOLE, "after qkv_a").steps)
    faults = plan_faults(replace(WHOLE, steps=steps))
    assert "lane kv waits for after qkv_a before it is recorded" in faults
    assert "kv_store may start before qkv is made" in faults


def test_an_event_recorded_twice_is_found() -> None:
    assert "event start is recorded twice" in plan_faults(replace(WHOLE, steps=(Record(MAIN, "start"), *WHOLE.steps)))


def test_a_fork_without_main_work_behind_it_is_found() -> None:
    steps = [step for step in WHOLE.steps if step != Record(MAIN, "after qkv_a")]
    steps.insert(steps.index(Run(WHOLE.items["q_store"])) + 1, Record(MAIN, "after qkv_a"))
    assert plan_faults(replace(WHOLE, steps=tuple(steps))) == ("no main work follows the fork at after qkv_a",)


def test_main_work_between_a_side_block_and_its_join_is_found() -> None:
    steps = list(WHOLE.steps)
    late = Run(WHOLE.items["q_store"])
    steps.remove(late)
    steps.insert(steps.index(Wait(MAIN, "kv done")), late)
    assert plan_faults(replace(WHOLE, steps=tuple(steps))) == (
        "main work q_store is issued between the block of lane kv and its join",
    )


def test_collectives_come_on_the_main_lane_before_all_side_work() -> None:
    def with_collective(name: str) -> PreparePlan:
        steps = tuple(
            Run(replace(step.item, collective=True)) if isinstance(step, Run) and step.item.name == name else step
            for step in WHOLE.steps
        )
        return replace(WHOLE, steps=steps)

    assert plan_faults(with_collective("qkv_a")) == ("compress may start before collective qkv_a",)
    assert "collective index is on side lane sources" in plan_faults(with_collective("index"))


def test_two_writers_of_a_value_and_a_serial_order_that_cannot_work_are_found() -> None:
    again = Run(WorkItem("again", MAIN, ("x",), ("qkv",)))
    assert "qkv has more than one origin" in plan_faults(replace(WHOLE, steps=(again, *WHOLE.steps)))
    swapped = ("q_lora", "qkv_a", *WHOLE.serial[2:])
    assert plan_faults(replace(WHOLE, serial=swapped)) == ("in the serial order q_lora comes before qkv is made",)


def test_an_item_without_its_values_and_an_incomplete_order_are_refused() -> None:
    with pytest.raises(ContractError, match="q_lora reads qkv, which nothing has made yet"):
        run_items(WHOLE, TOY, {"x": 1}, ("q_lora", "qkv_a", "compress", "index", "kv_store", "q_store"))
    with pytest.raises(ContractError, match="wanted an order of qkv_a, q_lora"):
        run_items(WHOLE, TOY, {"x": 1}, ("qkv_a",))


def test_a_plan_is_no_operator_and_needs_no_torch() -> None:
    assert "low_ratio_prepare" not in contracts.names()
    code = (
        "import sys; sys.modules['torch'] = None; from dspark_ops.contracts.prepare_plan import low_ratio_prepare as f"
    )
    subprocess.run([sys.executable, "-c", f"{code}; print(list(f(True, True).orders())[0])"], check=True)
