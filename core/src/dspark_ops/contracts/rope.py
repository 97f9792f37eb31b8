"""Rotary embedding of the last lanes of a head, as adjacent pairs: tables, the query store, the inverse before WO-A.

A table row is interleaved, ``cos0, sin0, cos1, sin1, ...``, float32. Pairs are lanes (2i, 2i + 1), never halves.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dspark_ops._lazy import torch
from dspark_ops.contracts.contract import Argument, Case, Contract, Option, Output, Site
from dspark_ops.contracts.exactness import relative, ulp
from dspark_ops.contracts.numerics import fma
from dspark_ops.contracts.values import index_into
from dspark_ops.errors import ContractError

if TYPE_CHECKING:
    from torch import Tensor

    from dspark_ops.contracts.model_shapes import ModelShapes


@dataclass(frozen=True, slots=True)
class YarnScaling:
    """How a table stretches positions beyond the trained ones.

    Attributes:
        factor: slow rotations are divided by it.
        original_positions: number of positions that the unscaled table was trained on.
        beta_fast: rotations over the original positions above which a frequency is kept.
        beta_slow: rotations below which a frequency is divided by the whole factor.
    """

    factor: float
    original_positions: int
    beta_fast: float = 32.0
    beta_slow: float = 1.0

    @classmethod
    def from_config(cls, rope_scaling: Mapping[str, Any]) -> YarnScaling:
        """Return the scaling that a config.json states under ``rope_scaling``."""
        return cls(
            factor=float(rope_scaling["factor"]),
            original_positions=int(rope_scaling["original_max_position_embeddings"]),
            beta_fast=float(rope_scaling["beta_fast"]),
            beta_slow=float(rope_scaling["beta_slow"]),
        )


def yarn_bounds(rope_dim: int, theta: float, yarn: YarnScaling) -> tuple[int, int]:
    """Return the pair indices between which frequencies pass from kept to divided.

    Source: N-G.1: 15 and 25 for V4.1's compressed layers.
    """

    def pair_of(rotations: float) -> float:
        return rope_dim * math.log(yarn.original_positions / (rotations * 2 * math.pi)) / (2 * math.log(theta))

    return max(math.floor(pair_of(yarn.beta_fast)), 0), min(math.ceil(pair_of(yarn.beta_slow)), rope_dim - 1)


def rope_table(rope_dim: int, positions: int, theta: float, yarn: YarnScaling | None = None) -> Tensor:
    """Return the rotations of positions 0 to `positions` - 1: [positions, rope_dim] float32 on the CPU, interleaved.

    Frequencies and angles are float32 products, as the model builds them: at position 4096 they are 1.5e-4 off exact
    angles, so a table built in float64 is another table. There is no magnitude scale on attention.

    Args:
        rope_dim: rotated lanes, even.
        positions: rows of the table.
        theta: base of the frequencies.
        yarn: scaling of compressed layers, or None.

    Source: N-G.1.
    """
    pairs = torch.arange(0, rope_dim, 2, dtype=torch.float32)
    frequencies = 1.0 / (theta ** (pairs / rope_dim))
    if yarn is not None:
        low, high = yarn_bounds(rope_dim, theta, yarn)
        ramp = ((torch.arange(rope_dim // 2, dtype=torch.float32) - low) / max(high - low, 1e-3)).clamp(0, 1)
        frequencies = frequencies / yarn.factor * ramp + frequencies * (1 - ramp)
    angles = torch.outer(torch.arange(positions, dtype=torch.float32), frequencies)
    return torch.stack([angles.cos(), angles.sin()], -1).flatten(1)


def rotations(freqs: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
    """Return cosines and sines, [T, P / 2] float32 each, of the table rows at `positions`.

    Raises:
        ContractError: positions are neither int32 nor int64.
    """
    if positions.dtype not in (torch.int32, torch.int64):
        raise ContractError(f"wanted positions of int32 or int64, got {positions.dtype}: cast them where they are made")
    rows = freqs[positions]
    return rows[..., 0::2], rows[..., 1::2]


def rotate(lanes: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Return the lanes rotated forward, float32, before any rounding to bfloat16.

    Args:
        lanes: [..., P] any float dtype.
        cosine: [..., P / 2] float32, broadcast over the leading dimensions.
        sine: as `cosine`.

    Source: N6, N7.2. Even lane: fma(even, cos, -(odd * sin)); odd lane: fma(even, sin, odd * cos), where the product in
    the addend is rounded to float32 first.
    """
    even, odd = lanes[..., 0::2].float(), lanes[..., 1::2].float()
    return torch.stack([fma(even, cosine, -(odd * sine)), fma(even, sine, odd * cosine)], -1).flatten(-2)


def rotate_inverse(lanes: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Return the lanes rotated backward, float32, before any rounding to bfloat16; arguments as for `rotate`.

    Source: N5. Even lane: fma(even, cos, odd * sin); odd lane: fma(odd, cos, -(even * sin)), where the product in the
    addend is rounded to float32 first.
    """
    even, odd = lanes[..., 0::2].float(), lanes[..., 1::2].float()
    return torch.stack([fma(even, cosine, odd * sine), fma(odd, cosine, -(even * sine))], -1).flatten(-2)


def q_rope_store(q: Tensor, out: Tensor, freqs: Tensor, positions: Tensor) -> None:
    """Write the query heads, their last P lanes rotated forward, into the first A heads of a wider buffer.

    Args:
        q: [T, A, D] bfloat16, any row stride, heads and lanes contiguous; not modified.
        out: [T, B, D] bfloat16, B >= A; written at heads 0 to A - 1, other heads are left as they are.
        freqs: [S, P] float32 interleaved.
        positions: [T] int32 or int64, below S.

    Raises:
        ContractError: `out` has fewer heads than `q`, or positions have another dtype.

    Source: N6. The first D - P lanes are copied bit for bit. V4.1 does not normalise query heads here.
    """
    heads, width = q.shape[1], q.shape[2] - freqs.shape[1]
    if out.shape[1] < heads:
        raise ContractError(f"q_rope_store: wanted out of at least {heads} heads, got {out.shape[1]}")
    cosine, sine = rotations(freqs, positions)
    out[:, :heads, :width] = q[..., :width]
    out[:, :heads, width:] = rotate(q[..., width:], cosine[:, None], sine[:, None]).bfloat16()


def rope_wo_a(o: Tensor, weight: Tensor, freqs: Tensor, positions: Tensor, head_dim: int = 512) -> Tensor:
    """Return the low-rank projection of the attention output, its rotation undone first: [T, G*R] bfloat16.

    Args:
        o: [T, G, K] bfloat16, any row stride; K holds the heads of a group side by side. Not modified.
        weight: [G, R, K] bfloat16.
        freqs: [S, P] float32 interleaved.
        positions: [T] int32 or int64, of the queries.
        head_dim: lanes of a head; the last P of each are rotated backward.

    Raises:
        ContractError: K is not a multiple of `head_dim`, or positions have another dtype.

    Source: N5, bfloat16 form. The rotated lanes are rounded to bfloat16 before the product, as the unfused chain stores
    them. Column g*R + r belongs to group g.
    """
    rows, groups, width = o.shape
    if width % head_dim:
        raise ContractError(f"rope_wo_a: wanted groups of whole heads of {head_dim} lanes, got {width} lanes")
    cosine, sine = rotations(freqs, positions)
    heads = o.reshape(rows, groups, width // head_dim, head_dim)
    plain = head_dim - freqs.shape[1]
    unrotated = rotate_inverse(heads[..., plain:], cosine[:, None, None], sine[:, None, None]).bfloat16()
    heads = torch.cat([heads[..., :plain], unrotated], -1).reshape(rows, groups, width)
    # float64, so that a row's bits do not depend on the other rows.
    return torch.einsum("tgk,grk->tgr", heads.double(), weight.double()).float().bfloat16().flatten(1)


def _q_cases(scale: str, seed: int) -> Iterator[Case]:
    generator = torch.Generator().manual_seed(seed)
    dim, rope, table = (64, 16, 128) if scale == "small" else (512, 64, 8192)
    freqs = rope_table(rope, table, 10000.0)
    sizes = ((1, 2, 4), (5, 3, 3), (6, 2, 8)) if scale == "small" else ((1, 16, 64), (6, 16, 64), (8, 32, 32))
    for rows, heads, buffer in sizes:
        q = torch.randn(rows, heads, dim, generator=generator).bfloat16()
        positions = torch.randint(0, table, (rows,), generator=generator)
        for dtype in (torch.int64, torch.int32):
            out = torch.full((rows, buffer, dim), 7.0).bfloat16()
            inputs = {"q": q, "out": out, "freqs": freqs, "positions": positions.to(dtype)}
            yield Case(f"{rows} rows, {heads} heads into {buffer}, {dtype}".replace("torch.", ""), inputs)
        wide = torch.full((rows, heads + 3, dim), 1e30).bfloat16()
        wide[:, :heads] = q
        out = torch.full((rows, buffer, dim), 7.0).bfloat16()
        strided = {"q": wide[:, :heads], "out": out, "freqs": freqs, "positions": positions}
        yield Case(f"queries in rows of a wider buffer, {rows} rows", strided)
    unturned = {**inputs, "positions": torch.zeros(rows, dtype=torch.int32), "out": torch.zeros_like(q)}
    yield Case("position 0 copies the queries", unturned, {"out": q})
    yield Case("no rows", {**inputs, "q": q[:0], "out": out[:0], "positions": positions[:0]})


def _wo_a_cases(scale: str, seed: int) -> Iterator[Case]:
    generator = torch.Generator().manual_seed(seed)
    head_dim, rope, table = (32, 8, 64) if scale == "small" else (512, 64, 8192)
    freqs = rope_table(rope, table, 10000.0)
    small, model = ((1, 2, 2, 16), (6, 2, 3, 8), (3, 2, 2, 128)), ((1, 2, 8, 1024), (6, 2, 8, 1024), (32, 2, 8, 1024))
    sizes = small if scale == "small" else model
    for rows, groups, heads, rank in sizes:
        o = torch.randn(rows, groups, heads * head_dim, generator=generator).bfloat16()
        weight = (0.05 * torch.randn(groups, rank, heads * head_dim, generator=generator)).bfloat16()
        positions = torch.randint(0, table, (rows,), generator=generator)
        inputs = {"o": o, "weight": weight, "freqs": freqs, "positions": positions, "head_dim": head_dim}
        yield Case(f"{rows} rows, int64 positions", inputs)
        yield Case(f"{rows} rows, int32 positions", {**inputs, "positions": positions.int()})
        padded = torch.full((rows, 4 * groups, heads * head_dim), float("nan")).bfloat16()
        padded[:, :groups] = o
        yield Case(f"{rows} rows of a buffer padded with other heads", {**inputs, "o": padded[:, :groups]})
    yield Case("no rows", {**inputs, "o": o[:0], "positions": positions[:0]})


_PHASES = ("verify", "draft")
_FREQS = Argument("freqs", ("*", "P"), ("float32",), doc="table of rotations, interleaved")
_POSITIONS = Argument("positions", ("T",), ("int64", "int32"), doc="position of a row", values=index_into("freqs[0]"))


def _q_sites(shapes: ModelShapes) -> tuple[Site, ...]:
    axes = {"A": shapes.heads, "D": shapes.head_dim, "P": shapes.rope_dim}
    return tuple(Site(name, axes=axes) for name in _PHASES)


def _wo_a_sites(shapes: ModelShapes) -> tuple[Site, ...]:
    width = shapes.heads // shapes.o_groups * shapes.head_dim
    axes = {"G": shapes.o_groups, "K": width, "R": shapes.o_lora_rank, "P": shapes.rope_dim}
    return tuple(Site(name, axes=axes, options={"head_dim": shapes.head_dim}) for name in _PHASES)


Q_ROPE_STORE = Contract(
    name="q_rope_store",
    summary="Rotated query heads in the buffer that attention reads.",
    source="N6",
    phases=_PHASES,
    parameters=(
        Argument("q", ("T", "A", "D"), ("bfloat16",), strides="unit_last", doc="query heads; rows may be spaced"),
        Argument("out", ("T", "*", "D"), ("bfloat16",), strides="unit_last", written=True, doc="A or more heads"),
        _FREQS,
        _POSITIONS,
    ),
    outputs=(Output("out", ("T", "*", "D"), "bfloat16", ulp(1), "heads below A written, others untouched"),),
    rows="T",
    reference=q_rope_store,
    cases=_q_cases,
    sites=_q_sites,
    empty="launches nothing",
)

ROPE_WO_A = Contract(
    name="rope_wo_a",
    summary="Low-rank output projection per group, after undoing the rotation of the attention output.",
    source="N5",
    phases=_PHASES,
    parameters=(
        Argument("o", ("T", "G", "K"), ("bfloat16",), strides="unit_last", doc="attention output; rows may be spaced"),
        Argument("weight", ("G", "R", "K"), ("bfloat16",), doc="one projection per group"),
        _FREQS,
        _POSITIONS,
        Option("head_dim", "int", 512, doc="lanes of a head"),
    ),
    outputs=(Output("output", ("T", "G*R"), "bfloat16", relative(1e-2), "groups side by side"),),
    rows="T",
    reference=rope_wo_a,
    cases=_wo_a_cases,
    sites=_wo_a_sites,
)

CONTRACTS = (Q_ROPE_STORE, ROPE_WO_A)
