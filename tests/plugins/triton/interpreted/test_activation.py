"""The clamped SwiGLU against its contract's cases."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch

from dspark_ops import contracts
from dspark_ops.conformance.numbers import check_numbers
from dspark_ops_triton.activation import silu_mul_clamp

CONTRACT = contracts.get("silu_mul_clamp")
# a gate of -inf gives -inf / inf: NaN by contract, and a warning of the interpreter's arithmetic
pytestmark = pytest.mark.filterwarnings("ignore:invalid value encountered in divide:RuntimeWarning")


def _two_rows(inputs: Mapping[str, Any]) -> Mapping[str, Any]:
    return inputs if len(inputs["gate_up"]) <= 2 else {**inputs, "gate_up": inputs["gate_up"][:2]}


def test_every_case_of_the_contract_passes() -> None:
    assert check_numbers(CONTRACT, silu_mul_clamp, adapt=_two_rows) == []


def test_a_row_does_not_depend_on_the_others() -> None:
    x = torch.randn(3, 600, generator=torch.Generator().manual_seed(1))
    assert torch.equal(silu_mul_clamp(x)[2:], silu_mul_clamp(x[2:]))


def test_float32_is_within_one_step_of_the_reference() -> None:
    x = torch.randn(1, 8192, generator=torch.Generator().manual_seed(2)) * 20
    got, wanted = silu_mul_clamp(x, limit=None), CONTRACT.reference(x, limit=None)
    assert (got.view(torch.int32) - wanted.view(torch.int32)).abs().max() <= 1
