"""The mutation check: what it changes, that it would notice its own mistakes, and what its record says."""

from __future__ import annotations

import importlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from dspark_ops import contracts
from dspark_ops.contracts import Case

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def mutants(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("mutants")


@pytest.fixture
def mutation(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("mutation")


def test_a_reference_is_changed_in_ten_ways_that_are_the_same_every_time(mutants: Any) -> None:
    reference = contracts.get("topk_rows").reference
    first, second = (mutants.mutants_of("topk_rows", reference) for _ in range(2))
    assert [item.key for item in first] == [item.key for item in second]
    assert len({item.key for item in first}) == 10
    assert {item.kind for item in first} >= {"comparison", "constant", "where", "arithmetic"}


def test_what_validates_is_left_alone(mutants: Any) -> None:
    for name in ("topk_rows", "moe_gate_topk", "k_norm_rope_store", "pack_topk_ids", "draft_inputs"):
        for item in mutants.mutants_of(name, contracts.get(name).reference, 1000):
            assert not item.function.startswith("_require")
            assert "_LEAST_ID" not in item.change and "top_k < 1" not in item.change, item.key


def test_a_mutant_is_the_reference_with_one_fault_and_leaves_the_reference_alone(mutants: Any) -> None:
    reference = contracts.get("accept_greedy").reference
    found = mutants.mutants_of("accept_greedy", reference, 1000)
    fault = next(item for item in found if item.change.startswith("candidates[:, 1:] >= 0 => candidates[:, 1:] > 0"))
    candidates, targets = torch.tensor([[7, 0, 5]]), torch.tensor([[0, 5, 1]])
    assert reference(candidates, targets)[0].tolist() == [2]
    assert fault.build()(candidates, targets)[0].tolist() == [0]
    assert reference(candidates, targets)[0].tolist() == [2]


@pytest.mark.parametrize(
    ("fault", "wanted"),
    [("x.bfloat16()", [1.0, -1.0, float("inf")]), ("round_bf16(x)", [1.0, -1.0, float("inf")])],
)
def test_rounding_toward_zero_drops_the_lower_bits(mutants: Any, fault: str, wanted: list[float]) -> None:
    x = torch.tensor([1 + 2**-8 + 2**-9, -1 - 2**-8 - 2**-9, float("inf")])
    assert x.bfloat16().tolist() != wanted
    name = "_bfloat16_toward_zero" if fault.startswith("x.") else "_round_bf16_toward_zero"
    assert mutants._HELPERS[name](x).tolist() == wanted


def test_a_case_that_refuses_the_reference_itself_stops_the_check(mutation: Any) -> None:
    contract = contracts.get("argmax_rows")
    wrong = {"output": torch.tensor([1])}
    broken = replace(contract, cases=lambda scale, seed: iter([Case("wrong", {"x": torch.zeros(1, 4)}, wrong)]))
    with pytest.raises(SystemExit, match="argmax_rows: the reference itself is refused: wrong: output output"):
        mutation.check(broken, {}, 10)


def test_an_argued_survivor_that_is_caught_after_all_stops_the_check(mutation: Any, mutants: Any) -> None:
    contract = contracts.get("accept_greedy")
    key = mutants.mutants_of(contract.name, contract.reference)[0].key
    with pytest.raises(SystemExit, match="take it out of mutation_equivalents"):
        mutation.check(contract, {key: "argued"}, 10)


def test_a_suite_that_sees_too_little_lets_mutants_survive(mutation: Any) -> None:
    contract = contracts.get("accept_greedy")
    blind = replace(
        contract, cases=lambda scale, seed: (c for c in contract.cases(scale, seed) if c.name == "no requests")
    )
    entry = mutation.check(blind, {}, 10)
    assert entry["cases"] == 1 and len(entry["survivors"]) >= 3


def test_the_record_reaches_its_bound_and_the_page_is_written_from_it(mutation: Any) -> None:
    record = json.loads((BENCHMARKS / "results" / "mutation.json").read_text(encoding="utf-8"))
    assert record["total"] == mutation.totals(record["operators"])
    assert record["total"]["share"] >= 0.95
    page = (BENCHMARKS.parent / "docs" / "mutation.md").read_text(encoding="utf-8")
    assert page == mutation.report(record)


def test_every_argued_survivor_is_a_mutant_of_today(mutants: Any) -> None:
    argued = json.loads((BENCHMARKS / "mutation_equivalents.json").read_text(encoding="utf-8"))
    for name, reasons in argued.items():
        keys = {item.key for item in mutants.mutants_of(name, contracts.get(name).reference, 1000)}
        assert set(reasons) <= keys, f"{name}: {set(reasons) - keys}"
        assert all(reasons.values())
