"""Operators of torch.library: a kernel per site, outputs of their own, the kernel that is registered at the call."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import dspark_ops
from dspark_ops import contracts
from dspark_ops.binding.bound import BoundOps
from dspark_ops.binding.torch_library import register_torch_ops
from dspark_ops.errors import BindingError
from dspark_ops.selection.device import Device


@pytest.fixture(scope="module")
def ops() -> BoundOps:
    return dspark_ops.plan(device=Device.simulate("cpu"), rows=[1], operators=["argmax_rows"], config={}).bind()


def bound(tables: Mapping[str, Any], ops: BoundOps) -> BoundOps:
    """Operators of one contract with functions of our own at its sites."""
    (name,) = tables
    selections = [SimpleNamespace(site=site, choices=(), by_rows={}) for site in tables[name]]
    plan: Any = SimpleNamespace(of=lambda operator: selections, rows="1-64", digest="sha256:0", device=ops.plan.device)
    return BoundOps.freeze(plan, tables, {name: contracts.get(name)})


def _registered(made: BoundOps, namespace: str) -> Any:
    return register_torch_ops(made.plan, made, namespace=namespace)


def test_where_sites_differ_the_call_names_its_site(ops: BoundOps) -> None:
    def at(number: int) -> Any:
        return lambda x: x.new_full((len(x),), number, dtype=torch.int64)

    made = bound({"argmax_rows": {"verify": {1: at(1), 2: at(1)}, "draft": {1: at(2), 2: at(2)}}}, ops)
    with _registered(made, "dspark_sites"):
        operator = torch.ops.dspark_sites.argmax_rows
        x = torch.zeros(2, 3)
        assert (operator(x, site="verify").tolist(), operator(x, site="draft").tolist()) == ([1, 1], [2, 2])
        with pytest.raises(
            BindingError, match=r"argmax_rows is bound differently at its sites .*: ask for one with  site="
        ):
            operator(x)
        with pytest.raises(BindingError, match="is not called at site 'commit': its sites are verify, draft"):
            operator(x, site="commit")
        with FakeTensorMode() as mode, pytest.raises(BindingError, match="is bound differently at its sites"):
            operator(mode.from_tensor(x))


def test_an_output_that_shares_memory_is_copied(ops: BoundOps) -> None:
    workspace = torch.empty(3, 2, dtype=torch.bfloat16)

    def both(gate_up: Any, limit: Any = 10.0) -> Any:
        return workspace.fill_(1), workspace

    made = bound({"silu_mul_clamp_fp8_grid": {"verify": {3: both}}}, ops)
    with _registered(made, "dspark_shared"):
        y, grid = torch.ops.dspark_shared.silu_mul_clamp_fp8_grid(torch.zeros(3, 4, dtype=torch.bfloat16))
        y.zero_()
        assert grid.tolist() == [[1.0, 1.0]] * 3


def test_an_output_with_gaps_between_its_elements_is_made_contiguous(ops: BoundOps) -> None:
    made = bound(
        {"fp8_grid_round": {"verify": {2: lambda x: torch.arange(8).view(2, 4)[:, ::2].bfloat16()[:, :1]}}}, ops
    )
    with _registered(made, "dspark_gaps"):
        output = torch.ops.dspark_gaps.fp8_grid_round(torch.zeros(2, 1, dtype=torch.bfloat16))
    assert output.is_contiguous() and output.tolist() == [[0.0], [4.0]]


def test_a_compiled_function_runs_the_kernel_that_is_registered_when_it_runs(ops: BoundOps) -> None:
    torch._dynamo.reset()
    compiled = torch.compile(lambda x: torch.ops.dspark_again.argmax_rows(x) + 1, fullgraph=True, backend="aot_eager")
    for number in (1, 2):
        made = bound({"argmax_rows": {"verify": {1: lambda x, n=number: x.new_full((1,), n, dtype=torch.int64)}}}, ops)
        with _registered(made, "dspark_again"):
            assert compiled(torch.tensor([[1.0, 2.0]])).tolist() == [number + 1]
