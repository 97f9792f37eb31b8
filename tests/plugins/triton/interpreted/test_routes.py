"""Routing by table, padding, route reduce and n-gram gather against their contracts' cases."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from dspark_ops.conformance.numbers import check_numbers
from dspark_ops.contracts import Case, Contract
from dspark_ops_triton.engram import engram_gather
from dspark_ops_triton.moe_hash import fill_padded_topk, moe_gate_hash
from dspark_ops_triton.moe_reduce import moe_local_reduce

Thinned = Callable[..., Contract]


def _special(case: Case) -> bool:
    marks = ("every", "edges", "beyond", "O05", "padded", "outside", "without", "held", "tie", "no ")
    return case.name.startswith(marks) or any(f", {mark}" in case.name for mark in ("edges", "none", "a row"))


@pytest.mark.parametrize(
    ("function", "every"),
    [(moe_gate_hash, 2), (fill_padded_topk, 5), (moe_local_reduce, 7), (engram_gather, 3)],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_a_kernel_passes_the_cases_of_its_contract(thinned: Thinned, function: Any, every: int) -> None:
    assert check_numbers(thinned(function.__name__, every, _special), function) == []


def test_a_remote_slot_is_not_read_whatever_its_weight_is() -> None:
    routes = torch.tensor([[[1.0], [float("nan")]]])
    ids, mask = torch.tensor([[0, 1]], dtype=torch.int32), torch.tensor([1, 0], dtype=torch.int32)
    weights = torch.tensor([[0.5, float("nan")]])
    assert moe_local_reduce(routes, ids, mask, 2.0, weights).tolist() == [[1.0]]


def test_calls_that_do_not_fit_are_refused() -> None:
    ids = torch.zeros(1, 17, dtype=torch.int32)
    with pytest.raises(ValueError, match="1 to 16 slots, got rounding 'stepwise' and 17 slots"):
        moe_local_reduce(torch.zeros(1, 17, 4), ids, ids[0])
    with pytest.raises(ValueError, match="1 to 64 experts per token, got 65"):
        moe_gate_hash(torch.zeros(1, 4), torch.zeros(1).long(), torch.zeros(2, 65, dtype=torch.int32))
    table = torch.zeros(4, 48, dtype=torch.uint8).view(torch.float8_e4m3fn)
    with pytest.raises(ValueError, match=r"D a power of two of 32 to 8192 .* got table \[4, 48\]"):
        engram_gather(table, torch.zeros(4, 1, dtype=torch.uint8), ids.long(), 0, 4)
