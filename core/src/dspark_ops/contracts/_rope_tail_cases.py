"""Inputs for the contracts of rotated tails."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from dspark_ops._lazy import torch
from dspark_ops.contracts.contract import Case
from dspark_ops.contracts.rope import rope_table

if TYPE_CHECKING:
    from torch import Tensor


def copy_cases(scale: str, seed: int) -> Iterator[Case]:
    """Yield inputs of `rope_tail_copy`."""
    generator = torch.Generator().manual_seed(seed)
    dim, rope, table = (64, 16, 128) if scale == "small" else (512, 64, 8192)
    freqs = rope_table(rope, table, 10000.0)
    sizes = ((1, 1), (5, 3), (6, 16)) if scale == "small" else ((1, 16), (5, 16), (40, 64))
    for rows, heads in sizes:
        q = torch.randn(rows, heads, dim, generator=generator).bfloat16()
        positions = torch.randint(0, table, (rows,), generator=generator)
        inputs = {"q": q, "freqs": freqs, "positions": positions}
        size = f"{rows}x{heads}x{dim}"
        yield Case(f"random, {size}", {**inputs, "out": _poisoned(rows, heads, dim)})
        yield Case(f"backward, {size}", {**inputs, "out": _poisoned(rows, heads, dim), "inverse": True})
        narrow = {**inputs, "positions": positions.int()}
        yield Case(f"int32 positions into a padded buffer, {size}", {**narrow, "out": _padded(rows, heads, dim)})
        per_token = {"q": q, "freqs": freqs[positions], "out": _poisoned(rows, heads, dim)}
        yield Case(f"a table row per token, {size}", per_token)
        across = torch.empty(heads, rows, dim).bfloat16().transpose(0, 1).copy_(q)
        strided = {**inputs, "q": across, "out": _poisoned(heads, rows, dim).transpose(0, 1)}
        yield Case(f"heads before rows on both sides, {size}", strided)
    unturned = {**inputs, "positions": torch.zeros_like(positions), "out": _poisoned(rows, heads, dim)}
    yield Case("position 0 copies", unturned, {"out": q})
    yield Case("no rows", {**inputs, "q": q[:0], "positions": positions[:0], "out": _poisoned(0, heads, dim)})


def fake_quant_cases(scale: str, seed: int) -> Iterator[Case]:
    """Yield inputs of `rope_tail_fp4_fake_quant`."""
    for name, inputs in _index_queries(scale, seed, ((1, 1), (6, 2), (8, 16)), ((1, 32), (24, 32), (192, 32))):
        for form in ("ue8m0_32", "e4m3_16"):
            renamed = {"x": inputs["q"], **{key: value for key, value in inputs.items() if key != "q"}, "scale": form}
            yield Case(f"{name}, {form}", renamed)
            if name.startswith("random"):
                yield Case(f"{name} backward, {form}", {**renamed, "inverse": True})
                rows = inputs["freqs"][inputs["positions"].clamp(0, inputs["freqs"].shape[0] - 1)]
                per_token = {key: value for key, value in renamed.items() if key != "positions"} | {"freqs": rows}
                yield Case(f"{name} with a table row per token, {form}", per_token)


def pack_cases(scale: str, seed: int) -> Iterator[Case]:
    """Yield inputs of `index_q_rope_fp4_pack`."""
    generator = torch.Generator().manual_seed(seed)
    sizes = ((1, 16), (6, 32), (3, 64)), ((1, 32), (24, 32), (37, 64), (128, 16))
    for name, inputs in _index_queries(scale, seed, *sizes):
        rows, heads, _ = inputs["q"].shape
        yield Case(name, {**inputs, "partials": None})
        partials = torch.randn(4, rows, heads, generator=generator)
        yield Case(f"{name}, with weights", {**inputs, "partials": partials, "weight_scale": 128**-0.5 * 32**-0.5})
        yield Case(f"{name}, with weights of one part", {**inputs, "partials": partials[:1], "weight_scale": 0.125})
        yield Case(f"{name}, with weights by a third", {**inputs, "partials": partials, "weight_scale": 1 / 3})


def _index_queries(
    scale: str, seed: int, small: tuple[tuple[int, int], ...], model: tuple[tuple[int, int], ...]
) -> Iterator[tuple[str, dict[str, Any]]]:
    generator = torch.Generator().manual_seed(seed)
    table = 72 if scale == "small" else 4096
    freqs = rope_table(64, table, 160000.0)
    for rows, heads in small if scale == "small" else model:
        q = (3 * torch.randn(rows, heads, 128, generator=generator)).bfloat16()
        positions = torch.randint(0, table, (rows,), generator=generator)
        inputs: dict[str, Any] = {"q": q, "freqs": freqs, "positions": positions}
        size = f"{rows}x{heads}x128"
        yield f"random {size}", inputs
        ends = torch.tensor([0, table - 1, -1, table, 2**31 - 1]).repeat(rows)[:rows]
        yield f"int32 positions at and beyond the ends of the table {size}", {**inputs, "positions": ends.int()}
        wide = torch.full((rows, heads + 2, 128), float("nan")).bfloat16()
        wide[:, :heads] = q
        yield f"rows of a wider buffer {size}", {**inputs, "q": wide[:, :heads]}
        yield f"lanes of very different size {size}", {**inputs, "q": (q * torch.logspace(-6, 6, 128)).bfloat16()}
    groups = torch.linspace(-1, 1, 128).repeat(rows, heads, 1)
    amax = torch.tensor([3.0, 3.25, 3.484375, 3.5, 6.0, 6.03125, 1e-30, 0.0]).repeat(rows)[:rows, None, None]
    still = {"q": (groups * amax).bfloat16(), "freqs": freqs, "positions": torch.zeros_like(positions)}
    yield f"largest values between 3 and 6 and at nothing {size}", still
    signs = torch.where(torch.arange(128) % 2 == 0, -0.0, -0.1).repeat(rows, heads, 1)
    signs[..., ::32] = 6.0
    yield f"zeros of both signs {size}", {**still, "q": signs.bfloat16()}
    yield f"no rows of {heads} heads", {**inputs, "q": q[:0], "positions": positions[:0]}


def _poisoned(rows: int, heads: int, dim: int) -> Tensor:
    return torch.full((rows, heads, dim), float("nan")).bfloat16()


def _padded(rows: int, heads: int, dim: int) -> Tensor:
    """Return the first heads of a buffer with more of them."""
    return torch.full((rows, heads + 5, dim), 7.0).bfloat16()[:, :heads]
