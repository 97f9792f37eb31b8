"""From the probe to a bound call: with the interpreter on, a plan for the CPU takes the Triton kernels."""

from __future__ import annotations

import torch

import dspark_ops
from dspark_ops import contracts
from dspark_ops.conformance.numbers import check_numbers
from dspark_ops.selection.plan import Plan

OPERATORS = ("argmax_rows", "mhc_combine_norm", "accept_finalize")


def _plan() -> Plan:
    device = dspark_ops.probe()
    assert device.arch.name == "cpu"
    return dspark_ops.plan(device=device, rows=range(1, 9), operators=OPERATORS, config={})


def test_the_interpreted_kernels_are_chosen() -> None:
    chosen = {
        (selection.operator, choice.kernel.id) for selection in _plan().selections for choice in selection.choices
    }
    assert chosen == {
        ("argmax_rows", "triton/argmax_rows/one_launch_interpreted"),
        ("mhc_combine_norm", "triton/mhc_combine_norm/row_program_interpreted"),
        ("accept_finalize", "triton/accept_finalize/one_launch_interpreted"),
    }


def test_what_is_bound_is_what_the_preparation_returned_and_its_numbers_are_right() -> None:
    ops = _plan().bind()
    x = torch.randn(6, 9000, generator=torch.Generator().manual_seed(0))
    assert torch.equal(ops.at(rows=6).argmax_rows(x), x.argmax(-1))
    assert type(ops.at(rows=6).argmax_rows).__name__ == "RowArgmax"
    finalize = ops.at(site="verify", rows=2).accept_finalize
    assert check_numbers(contracts.get("accept_finalize"), finalize, seed=7) == []
