"""SiLU of the gate times the up projection, both clamped: its arithmetic, and a launch cut as data by columns (A9)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import triton
import triton.language as tl

from dspark_ops_triton.blocks.alignment import stride_unit
from dspark_ops_triton.blocks.cutting import Cut, cut_options
from dspark_ops_triton.blocks.dependent import begin
from dspark_ops_triton.blocks.elementary import exp_rounded

LOG2_E = tl.constexpr(1.44269504088896340736)


@triton.jit
def clamped_swiglu(gate, up, limit, LIMITED: tl.constexpr, ROUNDED: tl.constexpr):
    """Return ``g / (1 + exp(-g)) * u`` of float32 blocks, g = min(gate, limit) and u = clamp(up, -limit, limit).

    A NaN stays. With ROUNDED the exponential is that of `exp_rounded` and the quotient the correctly rounded one: the
    result is within a unit of float32. Without, both are the device's quick ones: it is off by less than 2**-16 of
    itself, which a 16-bit result shows as the next value where it lay that close to the middle of two.
    """
    if LIMITED:
        # comparisons and not minima: a NaN stays
        gate = tl.where(gate > limit, limit, gate)
        up = tl.where(up > limit, limit, tl.where(up < -limit, -limit, up))
    if ROUNDED:
        return tl.div_rn(gate, 1.0 + exp_rounded(-gate)) * up
    return gate / (1.0 + tl.exp2(gate * -LOG2_E)) * up


@triton.jit(do_not_specialize=["row_stride"])
def silu_mul_clamp_kernel(
    gate_up, out, row_stride, limit,
    COLUMNS: tl.constexpr, LIMITED: tl.constexpr, BLOCK: tl.constexpr, STRIDE_UNIT: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Write BLOCK of the COLUMNS results of one row; `row_stride` counts groups of STRIDE_UNIT elements."""
    begin(PDL)
    row = tl.program_id(0).to(tl.int64)
    lanes = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = lanes < COLUMNS
    start = gate_up + row * row_stride * STRIDE_UNIT
    gate = tl.load(start + lanes, mask=mask, other=0.0).to(tl.float32)
    up = tl.load(start + COLUMNS + lanes, mask=mask, other=0.0).to(tl.float32)
    value = clamped_swiglu(gate, up, limit, LIMITED, out.dtype.element_ty == tl.float32)
    tl.store(out + row * COLUMNS + lanes, value.to(out.dtype.element_ty), mask=mask)


def silu_mul_clamp(cut: Cut, gate_up: torch.Tensor, limit: float | None = 10.0) -> torch.Tensor:
    """Return the clamped SwiGLU of each row: ``silu_mul_clamp`` (A9), arguments as in its contract."""
    rows, columns = gate_up.shape[0], gate_up.shape[1] // 2
    out = torch.empty(rows, columns, dtype=gate_up.dtype, device=gate_up.device)
    if rows == 0:
        return out
    unit = stride_unit(gate_up)
    silu_mul_clamp_kernel[(rows, triton.cdiv(columns, cut.items))](
        gate_up, out, gate_up.stride(0) // unit, 0.0 if limit is None else float(limit),
        **launch_constants(cut, columns, limit is not None, unit), **cut_options(cut),
    )  # fmt: skip
    return out


def launch_constants(cut: Cut, columns: int, limited: bool, unit: int) -> dict[str, Any]:
    """Return the compile-time arguments of a launch."""
    return {"COLUMNS": columns, "LIMITED": limited, "BLOCK": cut.items, "STRIDE_UNIT": unit, "PDL": cut.pdl}


def compile_silu_mul_clamp(call: Callable[..., Any], site: Any, rows: Sequence[int]) -> None:
    """Call `silu_mul_clamp`, cut somehow, once per build that a site needs."""
    columns, limit = site.axes["I"], site.options.get("limit", 10.0)
    width = triton.cdiv(2 * columns, 16) * 16
    dtype = getattr(torch, site.dtypes.get("gate_up", "bfloat16"))
    buffer = torch.zeros(2 * width + 2, dtype=dtype, device="cuda")
    for x in (buffer[: 2 * width].view(2, width), buffer.view(2, width + 1), buffer.view(2, width + 1)[:, 1:]):
        call(x[:, : 2 * columns], limit)
