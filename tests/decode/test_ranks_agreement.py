"""Ranks compare their plans before anything else; what differs is one text on every rank, and a leader can be asked."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import dspark_ops
from dspark_ops import Device, Plan
from dspark_ops.api import Kernel, RankClass, axis
from dspark_ops.decode.ranks.agree import agreed_plan, check_same, quarantine_everywhere
from dspark_ops.decode.ranks.group import SOLO
from dspark_ops.decode.ranks.threads import ThreadGroup, run_in_threads
from dspark_ops.errors import RankError
from dspark_ops.selection.registry import RegisteredKernel, Registry


def kernel(variant: str, **fields: Any) -> RegisteredKernel:
    made = Kernel("argmax_rows", variant, "nowhere:argmax", rank=RankClass.FUSED, **fields)
    return RegisteredKernel(f"acme/argmax_rows/{variant}", "acme", "dspark-acme", made)


def plan(*kernels: RegisteredKernel, operators: tuple[str, ...] = ("argmax_rows",), **tables: Any) -> Plan:
    return dspark_ops.plan(
        device=Device.simulate("cpu"),
        rows=range(1, 5),
        config=tables,
        registry=Registry({"argmax_rows": kernels}),
        operators=operators,
    )


def outcomes(*plans: Plan) -> list[Plan | str]:
    """What each rank gets for its plan: a plan, or the text of the error."""

    def work(group: ThreadGroup) -> Plan | str:
        try:
            return agreed_plan(group, plans[group.rank])
        except RankError as error:
            return str(error)

    return run_in_threads(len(plans), work)


def test_equal_plans_are_taken_as_they_are_and_only_digests_are_exchanged() -> None:
    plans = [plan(kernel("one")) for _ in range(3)]
    topics: list[str] = []

    class Watched(ThreadGroup):
        def exchange(self, topic: str, text: str) -> list[str]:
            topics.append(topic)
            return super().exchange(topic, text)

    def work(group: ThreadGroup) -> Plan:
        group.__class__ = Watched
        return agreed_plan(group, plans[group.rank])

    found = run_in_threads(3, work)
    assert all(got is given for got, given in zip(found, plans, strict=True))
    assert topics == ["plan digest"] * 3
    assert agreed_plan(SOLO, plans[0]) is plans[0]


def test_another_kernel_on_one_rank_is_the_same_error_on_all_and_names_operator_rows_and_kernels() -> None:
    narrow = kernel("one", region=[axis("R").at_most(2)])
    first, second, third = outcomes(plan(kernel("one")), plan(kernel("one")), plan(narrow))
    assert first == second == third
    assert isinstance(first, str)
    assert first.startswith("the plans of 3 ranks differ:\n  rank 0: sha256:")
    assert (
        "rank 2 against rank 0: argmax_rows at verify, rows 3-4: core/argmax_rows/reference instead of "
        "acme/argmax_rows/one" in first
    )
    assert "rank 1 against" not in first
    assert 'set  policy.rank_mismatch = "leader"' in first


def test_a_setting_that_differs_is_named_where_the_kernels_do_not() -> None:
    first, second = outcomes(plan(policy={"fallback": "allow"}), plan(policy={"fallback": "warn"}))
    assert first == second
    assert 'rank 1 against rank 0: settings.policy.fallback: "warn" instead of "allow"' in str(first)


def test_the_leaders_plan_is_adopted_where_every_kernel_of_it_may_serve() -> None:
    leader = plan(kernel("one"), kernel("two"), policy={"rank_mismatch": "leader"})
    other = plan(kernel("one"), kernel("two"), ops={"argmax_rows": {"order": ["*/two", "*/one", "core/*"]}})
    assert leader.selections[0].choices[0].kernel.id != other.selections[0].choices[0].kernel.id
    found = outcomes(leader, other, other)
    assert found == [leader] * 3
    assert [got.digest for got in found if isinstance(got, Plan)] == [leader.digest] * 3


def test_a_leader_whose_kernel_may_not_serve_on_some_rank_is_refused_on_all_with_the_reason() -> None:
    leader = plan(kernel("one"), policy={"rank_mismatch": "leader"})
    first, second, third = outcomes(leader, plan(kernel("one", region=[axis("R").at_most(2)])), plan())
    assert first == second == third
    text = str(first)
    assert text.startswith("policy.rank_mismatch is 'leader', and rank 0's plan may not serve on every rank:\n")
    assert "rank 1: acme/argmax_rows/one for argmax_rows at verify may not serve: R: wanted" in text
    assert "rank 2: acme/argmax_rows/one for argmax_rows at verify is not among this rank's candidates" in text
    assert "rank 0:" not in text.partition("\n")[2]


def test_a_leader_of_another_operator_set_is_refused() -> None:
    leader = plan(operators=("argmax_rows", "accept_greedy"), policy={"rank_mismatch": "leader"})
    first, second = outcomes(leader, plan())
    assert first == second
    assert "rank 1: it is for deepseek-v4.1-flash, rows 1-4" in str(first)


def test_rank_zero_decides_whether_there_is_a_leader() -> None:
    follower = plan(kernel("one"), policy={"rank_mismatch": "leader"})
    assert all("the plans of 2 ranks differ" in str(got) for got in outcomes(plan(), follower))


def test_how_a_mismatch_is_treated_is_no_difference_itself() -> None:
    assert plan(policy={"rank_mismatch": "leader"}).digest == plan().digest


def test_a_kernel_that_failed_on_one_rank_is_left_out_on_all() -> None:
    def work(group: ThreadGroup) -> dict[str, str]:
        agree = quarantine_everywhere(group)
        assert agree is not None
        first = dict(agree({"acme/argmax_rows/one": "it crashed"} if group.rank == 1 else {}))
        assert not agree({})  # a later round in which nothing failed
        return first

    wanted = {"acme/argmax_rows/one": "it crashed (on rank 1)"}
    assert run_in_threads(3, work) == [wanted] * 3
    assert quarantine_everywhere(SOLO) is None


def test_different_texts_and_different_topics_are_refused() -> None:
    def texts(group: ThreadGroup) -> None:
        check_same(group, "model", f"model {group.rank // 2}", "give every rank the same model")

    def topics(group: ThreadGroup) -> None:
        check_same(group, f"topic {group.rank}", "text", "")

    refusals: list[tuple[Callable[[ThreadGroup], None], str]] = [
        (texts, r"different model \(rank 0 has \w{16}, rank 1 has \w{16}, rank 2 has .*give every rank the same model"),
        (topics, r"the ranks exchange different things at once: \['topic 0', 'topic 1', 'topic 2'\]"),
    ]
    for work, text in refusals:
        with pytest.raises(RankError, match=text):
            run_in_threads(3, work)
