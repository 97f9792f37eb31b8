"""Inputs for the quantisation contracts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from dspark_ops._lazy import torch
from dspark_ops.contracts.contract import Case

if TYPE_CHECKING:
    from torch import Tensor

# Largest magnitudes at which a scale changes, and their neighbours (O09, N12).
_EDGES = (448.0, 450.0, 446.0, 224.0, 1.75, 1.7578125, 57344.0, 1.0, 6.0, 6.03125, 0.0546875, 1e-4, 1e4, 3e38)


def mxfp8_cases(scale: str, seed: int) -> Iterator[Case]:
    """Yield inputs of `mxfp8_quantize`, each in both layouts of the scales."""
    for name, x in _matrices(scale, seed, ((1, 32), (6, 96), (33, 1024), (130, 160))):
        yield Case(f"{name}, swizzled", {"x": x})
        yield Case(f"{name}, linear", {"x": x, "layout": "sf_linear"})
    half = torch.randn(5, 96, generator=torch.Generator().manual_seed(seed)).half()
    yield Case("float16", {"x": half})
    tiny = torch.full((1, 160), 2.0**-124)
    tiny[0, :32], tiny[0, 32:64], tiny[0, 96:128] = 0.0, 2.0**-133, 448 * 2.0**-127
    tiny[0, 128:] = 1.0
    q = torch.zeros(1, 160, dtype=torch.uint8)
    q[0, 128:] = 0x78
    expected = {"q": q.view(torch.float8_e4m3fn), "scales": torch.tensor([0, 0, 0, 0, 0x77], dtype=torch.uint8)}
    yield Case("zero and tiny groups beside ones", {"x": tiny.bfloat16(), "layout": "sf_linear"}, expected)


def grid_cases(scale: str, seed: int) -> Iterator[Case]:
    """Yield inputs of `fp8_grid_quantize` and `fp8_grid_round`."""
    for name, x in _matrices(scale, seed, ((1, 32), (3, 288), (24, 576))):
        yield Case(name, {"x": x})
    floor = torch.tensor([0.0, 1e-12, 1e-10, 1e-9]).repeat_interleave(32)[None]
    yield Case("groups around the floor", {"x": floor.bfloat16()})


def fp4_cases(scale: str, seed: int) -> Iterator[Case]:
    """Yield inputs of `fp4_quantize_rows`, each with both roundings."""
    sizes = ((1, 128), (31, 128), (6, 64)) if scale == "small" else ((1, 128), (192, 128), (4097, 128))
    midpoints = torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, 6.0])
    midpoints = torch.cat([midpoints, -midpoints, midpoints * 0.5, midpoints.nextafter(torch.tensor(9.0)).clamp(max=6)])
    exponents = torch.tensor([-20, -13, -1, 0, 3, 40])
    grid = (midpoints * torch.ldexp(torch.ones(6), exponents)[:, None]).repeat(1, 4)
    for rounding in ("rne", "half_down"):
        for name, x in _matrices(scale, seed, sizes, sizes):
            yield Case(f"{name}, {rounding}", {"x": x, "rounding": rounding})
        yield Case(f"midpoints at six scales, {rounding}", {"x": grid.bfloat16(), "rounding": rounding})
        yield Case(f"midpoints and next floats in float32, {rounding}", {"x": grid, "rounding": rounding})
        yield Case(f"float16, {rounding}", {"x": grid[2:5].half(), "rounding": rounding})


def _matrices(
    scale: str, seed: int, small: tuple[tuple[int, int], ...], model: tuple[tuple[int, int], ...] = ()
) -> Iterator[tuple[str, Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    for rows, columns in small if scale == "small" else model or ((1, 5120), (6, 5120), (64, 2048), (300, 1280)):
        x = torch.randn(rows, columns, generator=generator)
        for magnitude in (1e-36, 1e-3, 1.0, 1e3, 1e30):
            yield f"random {rows}x{columns}, magnitude {magnitude:g}", (x * magnitude).bfloat16()
        spread = x * torch.logspace(-8, 8, columns)
        yield f"columns of very different size {rows}x{columns}", spread.bfloat16()
        some = x.clone()
        some[:, :32], some[:, 16:32] = 0.0, -0.0
        yield f"a group of zeros of both signs {rows}x{columns}", some.bfloat16()
    edges = torch.tensor(_EDGES)[:, None] * torch.linspace(-1, 1, 32).repeat(columns // 32)
    yield f"largest magnitudes at the edges of scales, {columns} columns", edges.bfloat16()
    yield f"no rows of {columns}", x[:0].bfloat16()
