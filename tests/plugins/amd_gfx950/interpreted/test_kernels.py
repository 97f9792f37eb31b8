"""The tuned kernels against their contracts' cases, with rows split as on the real device."""

from __future__ import annotations

import torch

from dspark_ops import contracts
from dspark_ops.conformance.numbers import check_numbers
from dspark_ops_amd_gfx950.argmax import TILES, argmax_rows
from dspark_ops_triton.blocks.arrival import ArrivalState
from dspark_ops_triton.blocks.row_argmax import RowArgmax

ARGMAX = contracts.get("argmax_rows")


def test_argmax_passes_every_case_of_its_contract() -> None:
    assert check_numbers(ARGMAX, argmax_rows) == []


def test_argmax_split_as_on_the_device_passes_every_case() -> None:
    bound = RowArgmax(TILES, 256, ArrivalState(0, torch.device("cpu")))
    assert check_numbers(ARGMAX, bound, seed=1) == []
