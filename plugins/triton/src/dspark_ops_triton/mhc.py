"""Portable ``mhc_combine`` and ``mhc_combine_norm``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import triton
import triton.language as tl

from dspark_ops_triton.blocks.alignment import stride_unit
from dspark_ops_triton.blocks.bf16_pairs import rounded, widened
from dspark_ops_triton.blocks.combine_norm import combine_norm_kernel, launch_constants
from dspark_ops_triton.blocks.copy_tiles import (
    ColumnTiles,
    Tiles,
    launch_options,
    prepare_columns,
    sample_inputs,
    shared_options,
)
from dspark_ops_triton.blocks.dependent import begin
from dspark_ops_triton.blocks.launching import bind_launch
from dspark_ops_triton.blocks.ptx import takes_ptx
from dspark_ops_triton.blocks.tile_table import tiles_for

#: Ten values of each copy per thread at 5120.
TILES = Tiles(threads=512)
#: Without the norm columns are apart: 8 values of each copy per thread, 16 bytes.
PLAIN_TILES = ColumnTiles(block=512, threads=64)


@triton.jit(do_not_specialize=["x_stride", "pre_stride"], do_not_specialize_on_alignment=["pre"])
def combine_kernel(
    x, pre, out, x_stride, pre_stride,
    COPIES: tl.constexpr, HIDDEN: tl.constexpr, BLOCK: tl.constexpr, STRIDE_UNIT: tl.constexpr, PTX: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """Combine BLOCK columns of one token; `x_stride` counts groups of STRIDE_UNIT elements."""
    token = tl.program_id(0).to(tl.int64)
    lanes = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    # What is loaded outside is not stored.
    mask = None if HIDDEN % BLOCK == 0 else lanes < HIDDEN
    x += token * x_stride * STRIDE_UNIT
    pre += token * pre_stride
    begin(PDL)
    values, factors = (), ()
    for copy in tl.static_range(COPIES):
        values = values + (tl.load(x + copy * HIDDEN + lanes, mask=mask),)  # noqa: RUF005
        factors = factors + (tl.load(pre + copy).to(tl.float32),)  # noqa: RUF005
    total = tl.zeros(lanes.shape, tl.float32)
    for copy in tl.static_range(COPIES):
        total = tl.fma(widened(values[copy], PTX), factors[copy].broadcast_to(lanes.shape), total)
    tl.store(out + token * HIDDEN + lanes, rounded(total, PTX), mask=mask)


def mhc_combine(x: torch.Tensor, pre: torch.Tensor) -> torch.Tensor:
    """Return the weighted sum of each token's N copies, as bfloat16 [T, H].

    Args:
        x: [T, N*H] bfloat16, last stride 1.
        pre: [T, N] float32 or bfloat16, last stride 1.

    Bytes moved: ``T * (2*N*H + 2*H)``. Launches: 1, none for no tokens.

    Source: N3.3.
    """
    return _combine(PLAIN_TILES, x, pre)


def _combine(tiles: ColumnTiles, x: torch.Tensor, pre: torch.Tensor) -> torch.Tensor:
    tokens, copies = pre.shape
    tiles = tiles.at(tokens)
    hidden = x.shape[1] // copies
    out = torch.empty(tokens, hidden, dtype=torch.bfloat16, device=x.device)
    if tokens == 0:
        return out
    unit = stride_unit(x)
    combine_kernel[(tokens, triton.cdiv(hidden, tiles.block))](
        x, pre, out, x.stride(0) // unit, pre.stride(0),
        **column_constants(tiles, copies, hidden, unit, takes_ptx(combine_kernel)),
        **launch_options(tiles, torch.version.hip is not None),
    )  # fmt: skip
    return out


def mhc_combine_norm(x: torch.Tensor, pre: torch.Tensor, weight: torch.Tensor, eps: float = 1e-20) -> torch.Tensor:
    """Return the RMS-normalised weighted sum of each token's N copies, as bfloat16 [T, H].

    Args:
        x: [T, N*H] bfloat16, last stride 1.
        pre: [T, N] float32 or bfloat16, last stride 1.
        weight: [H] bfloat16.
        eps: added to the mean square, under the root.

    Bytes moved: ``T * (2*N*H + 2*H) + 2*H``. Launches: 1, none for no tokens.

    Source: N3.3.
    """
    return _combine_norm(TILES, x, pre, weight, eps)


def _combine_norm(
    tiles: Tiles, x: torch.Tensor, pre: torch.Tensor, weight: torch.Tensor, eps: float = 1e-20
) -> torch.Tensor:
    tokens, copies, hidden = x.shape[0], pre.shape[1], weight.shape[0]
    out = torch.empty(tokens, hidden, dtype=torch.bfloat16, device=x.device)
    if tokens == 0:
        return out
    unit = stride_unit(x)
    aligned = weight.data_ptr() % 16 == 0
    constants = launch_constants(tiles, copies, hidden, unit, takes_ptx(combine_norm_kernel), aligned)
    combine_norm_kernel[(tokens,)](
        x, pre, weight, out, None, None, tokens, x.stride(0) // unit, pre.stride(0), eps,
        **constants, **shared_options(tiles, torch.version.hip is not None, constants["PROGRAMS"]),
    )  # fmt: skip
    return out


def column_constants(tiles: ColumnTiles, copies: int, hidden: int, unit: int, ptx: bool) -> dict[str, Any]:
    """Return the compile-time arguments of a launch of the plain combine."""
    return {
        "COPIES": copies, "HIDDEN": hidden, "BLOCK": tiles.block, "STRIDE_UNIT": unit, "PTX": ptx, "PDL": tiles.pdl
    }  # fmt: skip


def prepare_mhc_combine(device: Any, site: Any, rows: Sequence[int]) -> Callable[..., torch.Tensor]:
    """Return `mhc_combine`, compiled for the site's sizes and the dtype of its weights of the copies."""
    tiles = tiles_for("mhc_combine", device, site, PLAIN_TILES)
    return prepare_columns(_combine, tiles, mhc_combine, _compile_combine, device, site, rows)


def _compile_combine(call: Callable[..., Any], site: Any, rows: Sequence[int]) -> None:
    for x, pre in sample_inputs(site):
        call(x, pre)


def prepare_mhc_combine_norm(device: Any, site: Any, rows: Sequence[int]) -> Callable[..., torch.Tensor]:
    """Return `mhc_combine_norm`, compiled for the site's sizes and the dtype of its weights of the copies."""
    if device.arch.vendor == "cpu":
        return mhc_combine_norm
    bound = bind_launch(_combine_norm, tiles_for("mhc_combine_norm", device, site, TILES), mhc_combine_norm)
    weight = torch.zeros(site.axes["H"], dtype=torch.bfloat16, device="cuda")
    for x, pre in sample_inputs(site):
        bound(x, pre, weight)
    return bound
