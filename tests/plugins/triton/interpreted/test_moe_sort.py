"""The sort of routed pairs against the cases of its contract."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from triton.runtime.interpreter import InterpretedFunction

from dspark_ops import contracts
from dspark_ops.conformance.numbers import check_numbers
from dspark_ops.contracts import Case
from dspark_ops_triton.moe_sort import moe_sort


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    seen: list[str] = []
    run = InterpretedFunction.run

    def count(self: Any, *arguments: Any, **options: Any) -> Any:
        seen.append(self.__name__)
        return run(self, *arguments, **options)

    monkeypatch.setattr(InterpretedFunction, "run", count)
    return seen


def test_the_sort_passes_the_cases_of_its_contract() -> None:
    contract = contracts.get("moe_sort")

    def cases(scale: str, seed: int) -> Iterator[Case]:
        for index, case in enumerate(contract.cases(scale, seed)):
            wide = case.inputs["experts"] > 16 and not case.name.startswith("more than 127")
            if index % 5 == 0 or not wide:
                yield case

    assert check_numbers(replace(contract, cases=cases), moe_sort, adapt=_few_slots) == []


def _few_slots(inputs: Any) -> Any:
    return inputs if inputs["topk_ids"].shape[1] <= 16 else None


def test_a_step_is_one_launch_that_also_zeroes_the_buffer(launches: list[str]) -> None:
    ids = torch.tensor([[0, 3], [3, 1], [2, 3]], dtype=torch.int32)
    outputs = moe_sort(ids, ids.float(), 4, 5120, accumulate=True)
    assert launches == ["sort_kernel"]
    assert outputs[4].shape == (3, 5120)
    assert not outputs[4].any()
    assert outputs[3].tolist() == [4 * 32, 3]
    none = moe_sort(ids[:0], ids[:0].float(), 4, 5120, accumulate=True)
    assert (none[3].tolist(), none[4].shape) == ([0, 0], (0, 5120))
    assert launches == ["sort_kernel"]


def test_more_pairs_than_a_program_holds_are_refused() -> None:
    ids = torch.zeros(600, 2, dtype=torch.int32)
    with pytest.raises(ValueError, match=r"wanted up to 1024 pairs .* got 600 rows of 2, 8 experts"):
        moe_sort(ids, ids.float(), 8, 16)
