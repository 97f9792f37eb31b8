"""The plan for SM103 that the source changes ask for: what serves each operator, and that it does not change unseen."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import dspark_ops
from dspark_ops import contracts
from dspark_ops.api import RankClass
from dspark_ops.selection.discovery import discover
from dspark_ops.selection.plan import Plan
from dspark_ops.selection.planner import make_plan
from dspark_ops.selection.rows import rows_of
from dspark_ops.selection.settings import Settings

GOLDEN = Path(__file__).parents[2] / "golden" / "plan_sm_103.txt"
#: Operators of the source changes for NVIDIA, with the rows at which they named them: verify and draft steps at batch 1
#: to 5, and the largest that each states.
ROWS = {
    "S0.1": {"argmax_rows": (6, 8, 64)},
    "S0.2": {"moe_gate_topk": (1, 6, 8), "moe_gate_topk_packed": (1, 6, 8)},
    "S0.3": {"mhc_combine_norm_mxfp8": (1, 5, 6, 8)},
    "S0.4": {"mla_sched_meta": (1, 6, 64)},
    "S0": {"accept_tail": (1, 8), "accept_forced": (1, 8)},
    "S0, left out": {"candidate_blocks": (1, 6)},
    "S1": {"main_projection": (1, 6), "paged_mqa_logits_fp4": (1, 6), "mhc_post_combine_norm": (1, 6)},
    "S2": {"rope_wo_a_mxfp8": (1, 2, 6, 8, 16, 32), "rope_wo_a": (6,)},
    "S3.1": {"k_norm_rope_store": (1, 6, 48)},
    "S3.2": {"compress_c1": (6, 12), "compress_c2": (6, 12)},
    "S3.3": {"q_rope_store": (1, 2, 5, 6, 8)},
}
CANDIDATES = ("nvidia_sm10x/candidate_blocks/two_launches", "nvidia_sm10x/candidate_blocks/two_launches_as_torch")
OPERATORS = sorted({op for change in ROWS.values() for op in change})


def plan_for(device: str, **config: object) -> Plan:
    rows = sorted({count for change in ROWS.values() for counts in change.values() for count in counts})
    return dspark_ops.plan(
        device=dspark_ops.Device.simulate(device), model="deepseek-v4.1-flash/tp4", rows=rows, operators=OPERATORS,
        config=dict(config),
    )  # fmt: skip


def served(plan: Plan) -> dict[tuple[str, str, int], tuple[str, RankClass]]:
    """Return kernel and class of each operator, site and row count."""
    return {
        (selection.operator, selection.site, count): (choice.kernel.id, choice.kernel.rank)
        for selection in plan.selections
        for choice in selection.choices
        for count in rows_of(choice.rows)
    }


@pytest.mark.parametrize("device", ["sm_103", "B200"])
def test_every_operator_of_the_source_changes_is_served_by_a_fused_kernel(device: str) -> None:
    found = served(plan_for(device))
    for change, operators in ROWS.items():
        for operator, counts in operators.items():
            places = [key for key in found if key[0] == operator and key[2] in counts]
            assert {key[2] for key in places} == set(counts), (change, operator)
            assert {found[key][1] for key in places} == {RankClass.FUSED}, (change, operator)


def listed(plan: Plan) -> str:
    """Return a line per operator, site and row count that a source change names."""
    found = sorted(served(plan).items())
    named = {(operator, count) for change in ROWS.values() for operator, counts in change.items() for count in counts}
    lines = [
        f"{operator:24} {site:7} {rows:3} {kernel}\n"
        for (operator, site, rows), (kernel, _) in found
        if (operator, rows) in named
    ]
    return "".join(lines)


def test_the_plan_is_the_one_that_was_written_down() -> None:
    assert listed(plan_for("sm_103")) == GOLDEN.read_text(encoding="utf-8")


def test_more_tokens_than_a_program_holds_go_to_the_portable_projection() -> None:
    plan = dspark_ops.plan(
        device=dspark_ops.Device.simulate("sm_103"), model="deepseek-v4.1-flash/tp4", rows=[32, 33],
        operators=["rope_wo_a"], config={},
    )  # fmt: skip
    found = served(plan)
    assert found["rope_wo_a", "verify", 32][0] == "nvidia_sm10x/rope_wo_a/head_slabs"
    assert found["rope_wo_a", "verify", 33][0] == "triton/rope_wo_a/column_tiles"


@pytest.mark.parametrize(
    ("rule", "kernel"),
    [
        ("lowest", "nvidia_sm10x/candidate_blocks/two_launches"),
        ("torch", "nvidia_sm10x/candidate_blocks/two_launches_as_torch"),
    ],
)
def test_a_caller_gets_the_kernel_that_promises_its_rule_for_equal_blocks(rule: str, kernel: str) -> None:
    contract = contracts.get("candidate_blocks")
    shapes = contracts.model_shapes("deepseek-v4.1-flash/tp4")
    asking = [replace(site, semantics={**site.semantics, "ties": rule}) for site in contract.sites(shapes)]
    plan = make_plan(
        device=dspark_ops.Device.simulate("sm_103"), shapes=shapes, rows=(6,), settings=Settings(),
        registry=discover(Settings()), contracts={contract.name: replace(contract, sites=lambda shapes: tuple(asking))},
        packages=lambda package: None,
    )  # fmt: skip
    assert {chosen for chosen, _ in served(plan).values()} == {kernel}
    other = next(name for name in CANDIDATES if name != kernel)
    refused = next(item for item in plan.selections[0].choices[0].refused if item.candidate.id == other)
    assert [(reason.field, reason.wanted) for reason in refused.reasons] == [("ties", rule)]
