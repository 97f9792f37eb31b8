"""Inputs of the hyper-connection operators."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from dspark_ops._lazy import torch
from dspark_ops.contracts.contract import Case

if TYPE_CHECKING:
    from torch import Tensor


def _sizes(scale: str) -> tuple[tuple[int, int], ...]:
    """Return pairs of (tokens, hidden size)."""
    return ((1, 64), (3, 96), (6, 192)) if scale == "small" else ((1, 5120), (6, 5120), (48, 5120))


def mix_cases(scale: str, seed: int) -> Iterator[Case]:
    """Yield inputs of `mhc_mix_sinkhorn`."""
    generator = torch.Generator().manual_seed(seed)
    for tokens, hidden in _sizes(scale):
        fn, base = torch.randn(24, 4 * hidden, generator=generator), torch.randn(24, generator=generator)
        parameters = {"fn": fn * hidden**-0.5, "scale": torch.tensor([0.7, 1.3, 2.0]), "base": base}
        for magnitude in (1e-2, 1.0, 1e2):
            x = (torch.randn(tokens, 4 * hidden, generator=generator) * magnitude).bfloat16()
            yield Case(f"random {tokens}x4x{hidden}, magnitude {magnitude:g}", {"x": x, **parameters})
        same = x[:, :hidden].repeat(1, 4)
        yield Case(f"equal copies, hc_eps 1e-3 {tokens}x4x{hidden}", {"x": same, **parameters, "hc_eps": 1e-3})
    yield Case("a token of zeros leaves the base alone", {"x": torch.zeros(2, 4 * hidden).bfloat16(), **parameters})
    for name, rows, iterations in (("one Sinkhorn iteration", x, 1), ("no tokens", x[:0], 20)):
        yield Case(name, {"x": rows, **parameters, "iterations": iterations})


def _combine_inputs(scale: str, seed: int) -> Iterator[tuple[str, Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    for tokens, hidden in _sizes(scale):
        x = torch.randn(tokens, 4 * hidden, generator=generator).bfloat16()
        pre = torch.rand(tokens, 4, generator=generator)
        for magnitude in (1e-3, 1.0, 1e3):
            yield f"random {tokens}x4x{hidden}, magnitude {magnitude:g}", (x.float() * magnitude).bfloat16(), pre
        yield f"bfloat16 weights {tokens}x4x{hidden}", x, pre.bfloat16()
        yield f"weights one-hot on copy 0 {tokens}x4x{hidden}", x, torch.eye(4)[:1].expand(tokens, 4).contiguous()
        mix_row = torch.rand(tokens, 24, generator=generator)
        yield f"weights as a view of the mix row {tokens}x4x{hidden}", x, mix_row[:, :4]
        wide = torch.full((tokens, 4 * hidden + 64), 1e30).bfloat16()
        wide[:, : 4 * hidden] = x
        yield f"rows of a wider buffer {tokens}x4x{hidden}", wide[:, : 4 * hidden], pre
        opposite = torch.cat([x[:, : 2 * hidden], -x[:, : 2 * hidden]], 1)
        yield f"copies that cancel {tokens}x4x{hidden}", opposite, pre[:, :1].repeat(1, 4)
    yield "tokens of zeros", torch.zeros(2, 4 * hidden).bfloat16(), torch.ones(2, 4)
    yield "no tokens", x[:0], pre[:0]


def combine_cases(scale: str, seed: int) -> Iterator[Case]:
    """Yield inputs of `mhc_combine`."""
    for name, x, pre in _combine_inputs(scale, seed):
        yield Case(name, {"x": x, "pre": pre})


def combine_norm_cases(scale: str, seed: int) -> Iterator[Case]:
    """Yield inputs of `mhc_combine_norm`: those of `mhc_combine` with a weight."""
    generator = torch.Generator().manual_seed(seed + 1)
    for name, x, pre in _combine_inputs(scale, seed):
        weight = (1 + 0.2 * torch.randn(x.shape[-1] // 4, generator=generator)).bfloat16()
        yield Case(name, {"x": x, "pre": pre, "weight": weight})
        if name.startswith("random"):
            yield Case(f"{name}, eps 1e-6", {"x": x, "pre": pre, "weight": weight, "eps": 1e-6})


def post_cases(scale: str, seed: int) -> Iterator[Case]:
    """Yield inputs of `mhc_post`."""
    generator = torch.Generator().manual_seed(seed)
    for tokens, hidden in _sizes(scale):
        x = torch.randn(tokens, hidden, generator=generator).bfloat16()
        residual = torch.randn(tokens, 4, hidden, generator=generator).bfloat16()
        post, comb = 2 * torch.rand(tokens, 4, generator=generator), torch.rand(tokens, 4, 4, generator=generator)
        inputs = {"x": x, "residual": residual, "post": post, "comb": comb}
        yield Case(f"random {tokens}x4x{hidden}", inputs)
        yield Case(f"branch that cancels the first copy {tokens}x4x{hidden}", {**inputs, "x": -residual[:, 0]})
        ties = {**inputs, "post": torch.ones(tokens, 4), "comb": torch.full((tokens, 4, 4), 2.0**-9)}
        yield Case(f"sums on bfloat16 ties {tokens}x4x{hidden}", ties)
        shift = torch.eye(4).roll(1, 0).expand(tokens, 4, 4).contiguous()
        moved = {**inputs, "post": torch.zeros(tokens, 4), "comb": shift}
        yield Case(f"source before destination {tokens}x4x{hidden}", moved, {"output": residual[:, [1, 2, 3, 0]]})
    yield Case("no tokens", {name: value[:0] for name, value in inputs.items()})
