"""Calls made from a contract's cases: they keep to the contract, and each is what its name says."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from dspark_ops import contracts
from dspark_ops.api import Constraint, axis, dtype, elements, unit_last_stride
from dspark_ops.binding.facts import axes_of, facts_of, outside, stride_form
from dspark_ops.conformance.borders import borders, changed
from dspark_ops.conformance.numbers import check_case, outputs_of
from dspark_ops.conformance.poison import PATTERNS, Poison, holding, unwritten
from dspark_ops.conformance.reshape import by_rows, displaced, resized, restrided, row_slice
from dspark_ops.conformance.variations import ROW_COUNTS, rows_are_independent, variations

ARGMAX = contracts.get("argmax_rows")
TAIL = contracts.get("accept_tail")
STORE = contracts.get("k_norm_rope_store")


def cases(name: str) -> list[Any]:
    return list(contracts.get(name).cases("small", 0))


@pytest.mark.parametrize("name", [name for name in contracts.names() if name != "argmax_rows"])
def test_every_reference_passes_the_variations_of_its_cases(name: str) -> None:
    contract = contracts.get(name)
    made = list(variations(contract, cases(name), lambda inputs: True))
    assert len(made) >= 3
    for variation in made:
        findings = check_case(contract, contract.reference, "cpu", variation.case.inputs, rows=variation.rows)
        assert findings == [], variation.case.name


def test_facts_are_read_from_tensors_and_compound_sizes_are_solved() -> None:
    x = torch.zeros(3, 4 * 64, dtype=torch.bfloat16)
    facts = facts_of(contracts.get("mhc_combine"), {"x": x[:, :], "pre": torch.zeros(3, 8)[:, :4]})
    assert facts.axes == {"T": 3, "N": 4, "H": 64}
    assert facts.dtypes == {"x": "bfloat16", "pre": "float32"}
    assert facts.strides == {"x": "contiguous", "pre": "unit_last"}
    assert axes_of(contracts.get("silu_mul_clamp"), {"gate_up": torch.zeros(2, 12)}) == {"M": 2, "I": 6}
    torn = {"candidates": torch.zeros(2, 3), "logits": torch.zeros(5, 7), "prefix_lens": torch.zeros(2)}
    assert axes_of(TAIL, torn) == {}


def test_layouts_options_and_rules_are_facts_too() -> None:
    case = next(case for case in cases("k_norm_rope_store") if case.inputs["layout"] == "kv_v41")
    facts = facts_of(STORE, case.inputs)
    assert facts.layouts == {"cache": "kv_v41"} and facts.options["eps"] == 1e-20
    assert facts_of(ARGMAX, {"x": torch.zeros(1, 4)}, {"nan": "ignored"}).options["nan"] == "ignored"


def test_a_second_cache_has_the_layout_that_its_own_option_names_and_without_one_that_of_the_first() -> None:
    mixed = next(case for case in cases("sparse_mla_decode") if case.inputs.get("extra_layout") == "kv_v41_fp4")
    contract = contracts.get("sparse_mla_decode")
    assert facts_of(contract, mixed.inputs).layouts == {"cache": "kv_v41", "extra_cache": "kv_v41_fp4"}
    same = {**mixed.inputs, "extra_layout": None}
    assert facts_of(contract, same).layouts == {"cache": "kv_v41", "extra_cache": "kv_v41"}


def test_an_axis_is_cut_or_repeated_wherever_it_occurs_and_strides_keep_their_form() -> None:
    inputs = {
        "candidates": torch.arange(6).view(2, 3), "logits": torch.randn(6, 5), "prefix_lens": torch.arange(2),
        "verify_lens": None,
    }  # fmt: skip
    more = resized(TAIL, inputs, "B", 5)
    assert more is not None and more["logits"].shape == (15, 5) and outside(TAIL, more) == ""
    assert torch.equal(more["logits"][6:12], inputs["logits"]) and more["prefix_lens"].tolist() == [0, 1, 0, 1, 0]
    fewer = resized(TAIL, inputs, "V", 2)
    assert fewer is not None and fewer["logits"].is_contiguous() and fewer["candidates"] is inputs["candidates"]


def test_nothing_is_repeated_where_rows_write_or_where_ids_must_differ() -> None:
    store = next(case for case in cases("k_norm_rope_store") if len(case.inputs["kv"]) == 1)
    assert resized(STORE, store.inputs, "B", 2) is None
    sort = contracts.get("moe_sort")
    inputs = next(case.inputs for case in cases("moe_sort") if case.inputs["topk_ids"].shape[0] > 1)
    assert resized(sort, inputs, "K", inputs["topk_ids"].shape[1] + 1) is None
    assert resized(ARGMAX, {"x": torch.zeros(2, 3)}, "K", 1) is None


@pytest.mark.parametrize("form", ["contiguous", "unit_last", "any"])
def test_a_tensor_is_given_exactly_one_stride_form_with_nan_in_the_gaps(form: str) -> None:
    source = torch.randn(3, 4)
    made = restrided(source, form)
    assert made is not None and torch.equal(made, source) and stride_form(made) == form
    if form != "contiguous":
        whole = torch.as_strided(made, (made.untyped_storage().nbytes() // 4,), (1,), 0)
        assert whole.isnan().sum() == whole.numel() - source.numel()
    assert restrided(torch.zeros(1, 1), "any") is None


def test_a_displaced_copy_begins_inside_its_storage() -> None:
    source = torch.arange(6, dtype=torch.int32).view(2, 3)
    made = displaced(source, 4)
    assert torch.equal(made, source) and made.storage_offset() == 4 and made.is_contiguous()


def test_rows_are_cut_as_views_and_joined_again_with_what_they_write_shared() -> None:
    x = torch.randn(4, 9)
    part = row_slice(ARGMAX, {"x": x}, 2, 1)
    assert part is not None and part["x"].data_ptr() == x[2:].data_ptr()
    case = next(case for case in cases("k_norm_rope_store") if len(case.inputs["kv"]) == 6)
    wanted = outputs_of(STORE, STORE.reference(**(whole := fresh(case.inputs))), whole)
    shared = fresh(case.inputs)
    joined = by_rows(STORE, lambda part: outputs_of(STORE, STORE.reference(**part), part), shared)
    assert joined is not None and torch.equal(joined["cache"], wanted["cache"])


def test_a_single_row_of_a_contiguous_tensor_is_contiguous_though_rows_come_last() -> None:
    gathered = contracts.get("argmax_vocab_parallel")
    pairs = torch.arange(12).view(2, 2, 3)
    part = row_slice(gathered, {"pairs": pairs}, 1, 1)
    assert part is not None and part["pairs"].is_contiguous() and part["pairs"].tolist() == [[[1], [4]], [[7], [10]]]


def fresh(inputs: Any) -> dict[str, Any]:
    return {name: value.clone() if isinstance(value, torch.Tensor) else value for name, value in inputs.items()}


def test_rows_count_as_independent_only_where_the_reference_treats_them_so() -> None:
    assert rows_are_independent(ARGMAX, {"x": torch.randn(3, 8)})
    schedule = contracts.get("schedule_prefix")
    mixed = [case for case in cases("schedule_prefix") if case.inputs["survival"].shape[0] > 1]
    assert not all(rows_are_independent(schedule, case.inputs) for case in mixed)


def test_variations_are_views_positions_row_counts_and_poisoned_padding() -> None:
    made = {variation.case.name.split(" of ")[0] for variation in variations(STORE, cases(STORE.name), lambda _: True)}
    assert {"rows spaced in wider buffers", "views one element into their storage", "int32 positions",
            "other contents before the call", "NaN in the padded rows"} <= made  # fmt: skip
    rows = [len(one.case.inputs["x"]) for one in variations(ARGMAX, cases("argmax_rows")[:10], lambda _: True)]
    assert set(ROW_COUNTS) - {1, 3} <= set(rows) and 0 in rows


def test_poisoned_rows_are_those_that_are_padding_and_only_where_the_contract_leaves_them_open() -> None:
    gate = contracts.get("moe_gate_topk")
    poisoned = [one for one in variations(gate, cases(gate.name), lambda _: True) if one.rows is not None]
    assert poisoned
    for variation in poisoned:
        bad = variation.case.inputs["logits"].isnan().any(-1)
        assert not (bad & variation.rows).any()


def test_memory_is_poisoned_where_it_is_allocated_and_not_where_it_has_contents() -> None:
    with Poison(PATTERNS[0]):
        made = [torch.empty(3), torch.empty_like(torch.zeros(2, 2)), torch.zeros(4).new_empty(5, dtype=torch.int64)]
        strided = torch.empty_strided((2, 2), (8, 1), dtype=torch.bfloat16)
        full = torch.zeros(3)
    assert all(holding(value, PATTERNS[0]).all() for value in [*made, strided])
    assert full.tolist() == [0, 0, 0] and torch.empty(0).numel() == 0


def test_an_element_counts_as_unwritten_only_if_it_held_both_patterns() -> None:
    first = torch.full((2, 2), PATTERNS[0], dtype=torch.uint8)
    second = first.clone()
    second[0, 1] = PATTERNS[1]
    found = unwritten({"y": first}, {"y": second})
    assert found["y"].nonzero().tolist() == [[0, 1]]
    assert unwritten({"y": first}, {"y": first}) == {}


@pytest.mark.parametrize(
    ("constraint", "inside", "outside_values"),
    [
        (axis("V").between(4, 9), [4, 9], [3, 10]),
        (axis("V").at_least(1), [1], [0]),
        (axis("V").one_of(8, 16), [8, 16], [7, 9, 15, 17]),
        (axis("V").multiple_of(8), [8, 16], [9, 15]),
        (axis("V").power_of_two(), [4, 8], [12]),
        (dtype("x", "float32"), ["float32"], ["bfloat16", "float16", "complex64"]),
        (unit_last_stride("x")[0], ["contiguous", "unit_last"], ["any"]),
        (elements("R*V", below=100), [99], [100]),
        (Constraint("elements", "R*R*V", "between", (50, None), "R*R*V >= 50"), [50], [49]),
        (Constraint("elements", "R*R*V", "between", (None, 50), "R*R*V <= 50"), [50], [51]),
    ],
    ids=lambda value: value.text if isinstance(value, Constraint) else None,
)
def test_the_borders_of_a_constraint_are_the_values_just_inside_and_just_outside(
    constraint: Constraint, inside: list[Any], outside_values: list[Any]
) -> None:
    base = facts_of(ARGMAX, {"x": torch.zeros(2, 7)})
    found = list(borders(constraint, ARGMAX, base))
    assert [one.value for one in found if one.inside] == inside
    assert [one.value for one in found if not one.inside] == outside_values
    for border in found:
        assert (constraint.check(changed(base, constraint, border.value)) is None) is border.inside
