"""``plan.bind(check=True)``: one error that names operator, kernel, argument, wanted and got, before anything runs."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest
import torch

import dspark_ops
from dspark_ops import Plan, contracts
from dspark_ops.binding.checked import checked
from dspark_ops.contracts.values import Values, between, evaluate, index_into, unknown_names
from dspark_ops.errors import ContractError
from dspark_ops.selection.registry import Registry
from dspark_ops.selection.settings import Settings

REFERENCE = "argmax_rows (kernel core/argmax_rows/reference): "


def plan(*operators: str, rows: Any = range(1, 9)) -> Plan:
    """A plan of references, which need no plugin."""
    device = dspark_ops.Device.simulate("cpu")
    model = "deepseek-v4.1-flash/tp4"
    registry = Registry({}, (), ())
    return dspark_ops.plan(
        device=device, model=model, rows=rows, operators=operators, config=Settings(), registry=registry
    )


@pytest.fixture
def step() -> dict[str, Any]:
    return {
        "candidates": torch.tensor([[4, 1, 2, 0, 0, 0], [4, 2, 1, 0, 0, 0]]),
        "logits": torch.zeros(12, 8),
        "prefix_lens": torch.tensor([7, 9]),
        "verify_lens": torch.tensor([6, 0], dtype=torch.int32),
    }


def refusal(function: Any, *positional: Any, **named: Any) -> str:
    with pytest.raises(ContractError) as caught:
        function(*positional, **named)
    return str(caught.value)


def test_without_a_check_the_operator_is_the_kernel_s_own_function() -> None:
    ops = plan("argmax_rows").bind(check=False)
    assert ops.argmax_rows is contracts.get("argmax_rows").reference
    assert plan("argmax_rows").bind().argmax_rows is ops.argmax_rows


def test_a_checked_operator_gives_what_the_unchecked_one_gives() -> None:
    x = torch.randn(5, 333, generator=torch.Generator().manual_seed(0))
    ops = plan("argmax_rows").bind(check=True)
    for view in (ops, ops.at(rows=5), ops.at(site="verify")):
        assert torch.equal(view.argmax_rows(x), x.argmax(-1))
        assert torch.equal(view.argmax_rows(x=x), x.argmax(-1))


@pytest.mark.parametrize(
    ("x", "text"),
    [
        (torch.zeros(64), "argument x: wanted 2 dimensions [R, V], got 1: [64]"),
        (torch.zeros(3, 4).double(), "argument x: wanted dtype float32 or bfloat16 or float16, got float64"),
        (torch.zeros(3, 4, 2)[..., 0], "argument x: wanted a last stride of 1, got strides [8, 2]"),
        (torch.zeros(3, 4, device="meta"), "argument x: wanted device cpu, got meta"),
        (None, "argument x: wanted a tensor, got None"),
        ([1.0], "argument x: wanted a tensor, got list [1.0]"),
        (torch.zeros(9, 4), "argument x: wanted a planned number of rows (1-8), got 9: plan again with rows that "
                            "include 9"),
    ],
)  # fmt: skip
def test_each_fault_of_one_argument_has_its_words(x: Any, text: str) -> None:
    assert refusal(plan("argmax_rows").bind(check=True).argmax_rows, x) == REFERENCE + text


def test_a_view_for_one_row_count_admits_no_other() -> None:
    ops = plan("argmax_rows").bind(check=True).at(rows=6)
    assert "wanted a planned number of rows (6), got 5" in refusal(ops.argmax_rows, torch.zeros(5, 4))


def test_arguments_that_do_not_fit_the_signature_are_refused() -> None:
    ops = plan("argmax_rows").bind(check=True)
    assert "arguments: wanted argmax_rows(x), got a call with missing a required argument" in refusal(ops.argmax_rows)
    assert "unexpected keyword argument 'y'" in refusal(ops.argmax_rows, torch.zeros(1, 4), y=1)


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("logits", torch.zeros(11, 8), "argument logits: wanted B*W = 12 in dimension 0 "
                                       "(B from candidates[0], W from candidates[1]), got 11"),
        ("prefix_lens", torch.zeros(3, dtype=torch.int64), "argument prefix_lens: wanted B = 2 in dimension 0 "
                                                           "(B from candidates[0]), got 3"),
        ("verify_lens", torch.tensor([6, 7]), "argument verify_lens: wanted values 0 to 6 (W), got 7 at [1]"),
        ("verify_lens", torch.tensor([-1, 7]), "argument verify_lens: wanted values 0 to 6 (W), got -1 at [0]"),
    ],
)  # fmt: skip
def test_sizes_and_values_are_held_against_the_other_arguments(
    step: dict[str, Any], name: str, value: Any, text: str
) -> None:
    ops = plan("accept_tail").bind(check=True)
    ops.accept_tail(**step)
    ops.accept_tail(**{**step, "verify_lens": None})
    got = refusal(ops.accept_tail, **{**step, name: value})
    assert got.startswith("accept_tail (kernel core/accept_tail/") and got.endswith(text)


def test_options_are_held_against_type_choices_and_what_the_reference_refuses() -> None:
    ops = plan("topk_rows").bind(check=True)
    given = {"scores": torch.zeros(2, 5), "lengths": torch.tensor([5, 0], dtype=torch.int32)}
    ops.topk_rows(**given, top_k=3)
    assert "option top_k: wanted int, got 3.0 (float)" in refusal(ops.topk_rows, **given, top_k=3.0)
    assert "option top_k: wanted int, got True (bool)" in refusal(ops.topk_rows, **given, top_k=True)
    assert "order: wanted one of 'position', 'score', got 'x'" in refusal(ops.topk_rows, **given, top_k=1, order="x")
    text = "topk_rows (kernel core/topk_rows/reference): top_k is 0: wanted 1 or more"
    assert refusal(ops.topk_rows, **given, top_k=0) == text
    longer = {**given, "lengths": torch.tensor([5, 6], dtype=torch.int32)}
    assert "argument lengths: wanted values 0 to 5 (scores[1]), got 6 at [1]" in refusal(
        ops.topk_rows, **longer, top_k=1
    )


def test_only_the_leading_entries_of_a_page_table_have_to_be_pages() -> None:
    contract = contracts.get("index_scores")
    case = next(case for case in contract.cases("small", 0) if "pages of -1 behind the last entry, 6 rows" in case.name)
    ops = plan("index_scores").bind(check=True)
    ops.index_scores(**case.inputs)
    table, lengths = case.inputs["page_table"].clone(), case.inputs["lengths"]
    row = int(lengths.argmax())
    table[row, 0] = case.inputs["cache"].shape[0]
    got = refusal(ops.index_scores, **{**case.inputs, "page_table": table})
    pages = case.inputs["cache"].shape[0]
    text = f"wanted values 0 to {pages - 1} (cache[0]-1) in the first lengths/page_size columns, got {pages}"
    assert f"argument page_table: {text} at [{row}, 0]" in got


def test_nothing_is_written_by_a_refused_call() -> None:
    contract = contracts.get("k_norm_rope_store")
    inputs = dict(next(contract.cases("small", 0)).inputs)
    before = inputs["cache"].clone()
    ops = plan("k_norm_rope_store").bind(check=True).at(site="verify")
    wrong = inputs["positions"].clone()
    wrong[-1] = inputs["freqs"].shape[0]
    assert "argument positions: wanted values 0 to" in refusal(ops.k_norm_rope_store, **{**inputs, "positions": wrong})
    narrow = torch.zeros(before.shape[0], before.shape[1] - 1, dtype=torch.uint8)
    assert "wanted a cache of uint8" in refusal(ops.k_norm_rope_store, **{**inputs, "cache": narrow})
    assert torch.equal(inputs["cache"], before)
    ops.k_norm_rope_store(**inputs)
    assert not torch.equal(inputs["cache"], before)


def test_the_parts_of_a_composed_operator_are_checked_too(step: dict[str, Any]) -> None:
    whole = contracts.get("accept_tail")
    logits = replace(whole.arguments[1], dtypes=("float32", "float64"))
    loose = replace(whole, parameters=tuple(logits if item.name == "logits" else item for item in whole.parameters))
    made = plan("accept_tail")
    ops = made.bind(contracts=lambda name: loose if name == "accept_tail" else contracts.get(name), check=True)
    assert len(ops.accept_tail(**step)) == 6
    assert refusal(ops.accept_tail, **{**step, "logits": step["logits"].double()}) == (
        "argmax_rows (kernel core/argmax_rows/reference, part of accept_tail): argument x: wanted dtype float32 or "
        "bfloat16 or float16, got float64"
    )


def test_the_kernel_named_is_the_one_of_the_row_count() -> None:
    served: list[str] = []
    by_rows = {1: lambda x: served.append("few"), 2: lambda x: served.append("many")}
    function = checked(contracts.get("argmax_rows"), by_rows, {1: "a/few", 2: "a/many"}, planned="1-2")
    function(torch.zeros(2, 4))
    assert served == ["many"]
    text = refusal(function, torch.zeros(2, 4, dtype=torch.int32))
    assert text.startswith("argmax_rows (kernel a/few or a/many): argument x: wanted dtype")
    assert "kernel a/few or a/many" in refusal(function, torch.zeros(3, 4))


def test_a_value_is_refused_in_the_name_of_the_kernel_that_would_have_run(step: dict[str, Any]) -> None:
    contract = contracts.get("accept_greedy")
    inputs = {"candidates": step["candidates"], "target_ids": step["candidates"], "verify_lens": torch.tensor([7, 6])}
    function = checked(contract, dict.fromkeys((1, 2), print), {1: "a/few", 2: "a/many"}, planned="1-2")
    assert refusal(function, **inputs).startswith("accept_greedy (kernel a/many): argument verify_lens: wanted values")


def test_what_a_kernel_raises_is_its_own() -> None:
    def kernel(x: Any) -> None:
        raise KeyError("mine")

    function = checked(contracts.get("argmax_rows"), {1: kernel}, {1: "a/b/c"}, planned="1")
    with pytest.raises(KeyError, match="mine"):
        function(torch.zeros(1, 4))


def test_formulas_are_exact_and_say_what_they_do_not_know() -> None:
    names = {"D": 48, "M": 3, "cache": torch.zeros(4, 7), "missing": None}
    assert evaluate("D/32", names) == Fraction(3, 2)
    assert evaluate("(2+M)*M", names) == 15
    assert evaluate("cache[0]*7-1", names) == 27
    assert evaluate(5, names) == 5
    assert unknown_names("D+missing*N", names) == ("missing", "N")
    with pytest.raises(ValueError, match=r"cannot evaluate 'D \*\* 2'"):
        evaluate("D**2", names)
    with pytest.raises(KeyError, match="N"):
        evaluate("N", names)


def test_rules_read_as_ranges() -> None:
    assert str(between(0, 5)) == "0 to 5"
    assert str(index_into("V", also=(-1,))) == "0 to V-1, or -1"
    assert str(Values(None, 3)) == "3 or less"
    assert str(Values(1)) == "1 or more"
