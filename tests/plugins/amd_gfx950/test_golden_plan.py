"""The plan for gfx950 that the source change asks for: what serves each operator, and that no change goes unseen."""

from __future__ import annotations

from pathlib import Path

import pytest

import dspark_ops
from dspark_ops.api import RankClass
from dspark_ops.selection.plan import Plan
from dspark_ops.selection.rows import rows_of

GOLDEN = Path(__file__).parents[2] / "golden" / "plan_gfx950.txt"
#: One request of width 6 or 8, eight of width 3, and the largest step that was measured alone (A0.1).
STEPS = (6, 8, 24, 128)
#: Index rows of as many steps: 32 heads a token.
INDEX_ROWS = (192, 256, 768, 4096)
#: Operators of the change for this vendor that a fused kernel has to serve.
FUSED = (
    "accept_tail", "argmax_rows", "argmax_vocab_parallel", "argmax_vocab_parallel_local", "candidate_lengths",
    "draft_inputs", "engram_gather", "expand_uniform", "fill_padded_topk", "fp8_grid_quantize", "fp8_grid_round",
    "index_q_rope_fp4_pack", "main_projection", "mhc_post", "mhc_post_combine", "mhc_post_combine_norm",
    "mhc_post_combine_norm_fp8_grid", "moe_gate_topk", "moe_local_reduce", "moe_sort", "paged_mqa_logits_fp4",
    "rope_tail_copy", "rope_tail_fp4_fake_quant", "silu_mul_clamp", "silu_mul_clamp_fp8_grid", "silu_mul_clamp_mxfp8",
    "varctx_schedule", "verify_inputs",
)  # fmt: skip
#: Operators of the change that the portable kernels serve: `accept_tail` takes the place of the first two, and nothing
#: in the others depends on the device but what their portable bodies already do.
PORTABLE = ("accept_finalize", "accept_greedy", "index_k_store", "markov_block")


def plan_for(device: str, rows: tuple[int, ...], operators: tuple[str, ...]) -> Plan:
    return dspark_ops.plan(
        device=dspark_ops.Device.simulate(device), model="deepseek-v4.1-flash/tp4", rows=rows, operators=operators,
        config={},
    )  # fmt: skip


def served(plan: Plan) -> dict[tuple[str, str, int], tuple[str, RankClass]]:
    """Return kernel and class of each operator, site and row count."""
    return {
        (selection.operator, selection.site, count): (choice.kernel.id, choice.kernel.rank)
        for selection in plan.selections
        for choice in selection.choices
        for count in rows_of(choice.rows)
    }


def everything(device: str) -> dict[tuple[str, str, int], tuple[str, RankClass]]:
    """Return what serves all operators of the change, index rows counted as they come."""
    steps = served(plan_for(device, STEPS, (*FUSED, *PORTABLE)))
    return {**steps, **served(plan_for(device, INDEX_ROWS, ("fp4_quantize_rows",)))}


@pytest.mark.parametrize("device", ["gfx950", "MI350X"])
def test_every_operator_of_the_source_change_is_served_by_a_fused_kernel(device: str) -> None:
    found = everything(device)
    assert {operator for operator, _, _ in found} == {*FUSED, *PORTABLE, "fp4_quantize_rows"}
    for (operator, site, count), (kernel, rank) in found.items():
        wanted = RankClass.PORTABLE if operator in PORTABLE else RankClass.FUSED
        assert rank == wanted, (operator, site, count, kernel)


def test_the_plan_is_the_one_that_was_written_down() -> None:
    lines = [
        f"{operator:30} {site:7} {rows:4} {kernel}\n"
        for (operator, site, rows), (kernel, _) in sorted(everything("gfx950").items())
    ]
    assert "".join(lines) == GOLDEN.read_text(encoding="utf-8")


def test_more_rows_than_the_small_sort_has_go_to_the_portable_one() -> None:
    found = served(plan_for("gfx950", (128, 129), ("moe_sort",)))
    assert found["moe_sort", "verify", 128][0] == "amd_gfx950/moe_sort/small_batch"
    assert found["moe_sort", "verify", 129][0] == "triton/moe_sort/counted_ranks"


def test_nothing_of_this_plugin_serves_the_older_device() -> None:
    found = served(plan_for("MI300X", (6,), ("engram_gather", "moe_gate_topk", "rope_tail_copy")))
    assert {kernel.split("/")[0] for kernel, _ in found.values()} == {"triton"}
