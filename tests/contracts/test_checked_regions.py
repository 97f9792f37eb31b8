"""``plan.bind(check=True)`` holds a call against the region of the kernel that was chosen, not only the contract."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import dspark_ops
from dspark_ops.errors import ContractError

KERNELS = (
    "name='narrow', api='>=1,<2', kernels=(Kernel('argmax_rows', 'one', 'narrow_kernels:argmax_rows',"
    " region=[dtype('x', 'float32'), axis('V').between(8, 4096), axis('R').between(1, 64)], rank=RankClass.FUSED),)"
)
TINY = Path(__file__).resolve().parents[2] / "examples" / "tiny_v41"  # a vocabulary of 4096


@pytest.fixture
def plan(site: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Plans by operator, over one plugin whose kernel is narrower than its contract."""
    site.module("narrow_kernels", "def argmax_rows(x):\n    return x.argmax(-1)\n")
    site.plugin("narrow", KERNELS)
    monkeypatch.setenv("DSPARK_OPS_PLUGINS", "narrow")
    cpu = dspark_ops.Device.simulate("cpu")
    return lambda operator: dspark_ops.plan(device=cpu, model=str(TINY), rows=range(1, 9), operators=[operator])


def test_a_call_of_another_dtype_than_the_kernel_takes_is_refused_with_what_was_planned(plan: Any) -> None:
    ops = plan("argmax_rows").bind(check=True)
    assert ops.argmax_rows(torch.eye(3, 8)).tolist() == [0, 1, 2]
    for view in (ops, ops.at(rows=3), ops.at(site="verify")):
        with pytest.raises(ContractError) as caught:
            view.argmax_rows(torch.eye(3, 8, dtype=torch.bfloat16))
        assert str(caught.value) == (
            "argmax_rows (kernel narrow/argmax_rows/one): x: the kernel's region wants float32, this call has "
            "bfloat16; the plan is for V = 4096; x float32: call it so, or plan for what is called"
        )


def test_a_call_of_another_size_is_refused_where_the_kernel_does_not_take_it_and_else_runs(plan: Any) -> None:
    ops = plan("argmax_rows").bind(check=True)
    assert ops.argmax_rows(torch.zeros(2, 4096)).tolist() == [0, 0]
    with pytest.raises(ContractError, match=r"V: the kernel's region wants 8 <= V <= 4096, this call has 4097"):
        ops.argmax_rows(torch.zeros(2, 4097))


def test_a_part_of_a_composed_operator_is_held_against_its_kernel_too(plan: Any) -> None:
    ops = plan("accept_tail").bind(check=True)
    step = {"candidates": torch.tensor([[4, 1, 2, 0, 0, 0]]), "prefix_lens": torch.tensor([7])}
    assert ops.accept_tail(logits=torch.zeros(6, 8), **step)[0].shape == (1,)
    with pytest.raises(ContractError, match=r"kernel narrow/argmax_rows/one, part of accept_tail.*8 <= V <= 4096"):
        ops.accept_tail(logits=torch.zeros(6, 7), **step)


def test_references_take_what_the_contract_admits() -> None:
    cpu = dspark_ops.Device.simulate("cpu")
    pinned = {"ops": {"argmax_rows": {"pin": "core/argmax_rows/reference"}}}
    made = dspark_ops.plan(device=cpu, model=str(TINY), rows=[2], operators=["argmax_rows"], config=pinned)
    assert made.bind(check=True).argmax_rows(torch.zeros(2, 4097, dtype=torch.bfloat16)).tolist() == [0, 0]
