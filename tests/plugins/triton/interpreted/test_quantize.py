"""MXFP8 against its contract's cases, and where its scale bytes lie."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import triton
import triton.language as tl

from dspark_ops import contracts
from dspark_ops.conformance.numbers import check_numbers
from dspark_ops.contracts.scale_layouts import SF_128X4
from dspark_ops_triton.blocks.mxfp8 import sf_128x4_place
from dspark_ops_triton.quantize import mxfp8_quantize


def _without_the_widest(inputs: Mapping[str, Any]) -> Mapping[str, Any] | None:
    return inputs if inputs["x"].shape[1] < 1024 else None


def test_every_case_but_those_of_1024_columns_passes() -> None:
    assert check_numbers(contracts.get("mxfp8_quantize"), mxfp8_quantize, adapt=_without_the_widest) == []


def test_rows_do_not_depend_on_each_other_and_no_rows_give_nothing() -> None:
    x = torch.randn(3, 1056, generator=torch.Generator().manual_seed(0)).bfloat16()
    together, scales = mxfp8_quantize(x, "sf_linear")
    alone, scale = mxfp8_quantize(x[2:], "sf_linear")
    assert torch.equal(together[2:].view(torch.uint8), alone.view(torch.uint8))
    assert torch.equal(scales[2 * 33 :], scale)
    q, scales = mxfp8_quantize(x[:0])
    assert (q.shape, scales.shape) == ((0, 1056), (0,))


@triton.jit
def _place_kernel(out, GROUPS: tl.constexpr, ROWS: tl.constexpr, LANES: tl.constexpr):
    row, group = tl.arange(0, ROWS)[:, None], tl.arange(0, LANES)[None, :]
    tl.store(out + row * GROUPS + group, sf_128x4_place(row, group, GROUPS), mask=group < GROUPS)


def test_scale_bytes_lie_where_the_layout_says() -> None:
    for groups in (1, 5, 6):
        out = torch.empty(256, groups, dtype=torch.int64)
        _place_kernel[(1,)](out, GROUPS=groups, ROWS=256, LANES=8)
        wanted = [[SF_128X4.index(row, group, groups) for group in range(groups)] for row in range(256)]
        assert out.tolist() == wanted
