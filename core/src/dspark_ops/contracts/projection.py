"""Projections that quantise: the output projection that feeds an MXFP8 one, and the drafter's MXFP8 main projection."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from dspark_ops._lazy import torch
from dspark_ops.contracts import numerics
from dspark_ops.contracts.contract import Argument, Case, Contract, Decomposition, Output, Site
from dspark_ops.contracts.exactness import bitwise_given, relative
from dspark_ops.contracts.quantize import GROUP, fp8_grid_quantize, mx_dequantize, mxfp8_quantize, mxfp8_rules
from dspark_ops.contracts.rope import ROPE_WO_A, rope_wo_a
from dspark_ops.contracts.scale_layouts import SF_128X4
from dspark_ops.errors import ContractError

if TYPE_CHECKING:
    from torch import Tensor

    from dspark_ops.contracts.model_shapes import ModelShapes


def rope_wo_a_mxfp8(
    o: Tensor, weight: Tensor, freqs: Tensor, positions: Tensor, head_dim: int = 512
) -> tuple[Tensor, Tensor, Tensor]:
    """Return what `rope_wo_a` returns, and its MXFP8 codes and scale bytes.

    Args:
        o: [T, G, K] bfloat16, any row stride; not modified.
        weight: [G, R, K] bfloat16; G*R is divisible by 32.
        freqs: [S, P] float32 interleaved.
        positions: [T] int32 or int64, of the queries.
        head_dim: lanes of a head; the last P of each are rotated backward.

    Returns:
        y [T, G*R] bfloat16; q [T, G*R] float8_e4m3fn and scales uint8 in the layout ``sf_128x4`` (8192 bytes per 128
        rows of V4.1 on one of four ranks), padding 0.

    Raises:
        ContractError: what `rope_wo_a` and `mxfp8_quantize` refuse.

    Source: N5, MXFP8 form. What is quantised is `y` as rounded to bfloat16; it is returned so that this can be checked.
    """
    y = rope_wo_a(o, weight, freqs, positions, head_dim)
    return y, *mxfp8_quantize(y)


def _compose_wo_a(
    ops: Any, o: Tensor, weight: Tensor, freqs: Tensor, positions: Tensor, head_dim: int = 512
) -> tuple[Tensor, Tensor, Tensor]:
    y = ops.rope_wo_a(o, weight, freqs, positions, head_dim)
    return y, *ops.mxfp8_quantize(y)


def main_projection(x: Tensor, weight: Tensor, scales: Tensor) -> Tensor:
    """Return the drafter's projection of tapped hidden states, activations and weights in MXFP8: [M, N] bfloat16.

    Args:
        x: [M, K] bfloat16 (V4.1: the states of three layers side by side, K = 15360), K divisible by 32.
        weight: [N, K] float8_e4m3fn, row-major (V4.1: N = 5120), N divisible by 32.
        scales: [N / 32, K / 32] uint8, one byte per 32x32 block of the weight: 2**(byte - 127).

    Raises:
        ContractError: the scales do not fit the weight, or it does not fit `x`.

    Source: A10. The activations are put on the fp8 grid first, per 32 columns with the floor of 1e-10; sums of products
    are then taken in float64. How a kernel splits K is its own affair, but the same call gives the same bits.
    """
    outputs, columns = weight.shape
    wanted = (outputs // GROUP, columns // GROUP)
    if outputs % GROUP or columns % GROUP or tuple(scales.shape) != wanted or x.shape[1] != columns:
        raise ContractError(
            f"main_projection: wanted x [M, K], weight [N, K] and scales [N / {GROUP}, K / {GROUP}], "
            f"got {list(x.shape)}, {list(weight.shape)} and {list(scales.shape)}"
        )
    rows = mx_dequantize(*fp8_grid_quantize(x))
    blocks = numerics.ue8m0_decode(scales).repeat_interleave(GROUP, 0).repeat_interleave(GROUP, 1)
    values = numerics.e4m3_decode(weight.view(torch.uint8)) * blocks
    # float64, so that a row's bits do not depend on the other rows.
    return (rows.double() @ values.double().t()).float().bfloat16()


def _wo_a_cases(scale: str, seed: int) -> Iterator[Case]:
    """Yield the inputs of `rope_wo_a`, with as many copies of each weight's rows as whole groups of 32 need."""
    for case in ROPE_WO_A.cases(scale, seed):
        weight = case.inputs["weight"]
        copies = -(-GROUP // (weight.shape[0] * weight.shape[1]))
        while copies * weight.shape[0] * weight.shape[1] % GROUP:
            copies += 1
        shrinking = torch.arange(copies, 0, -1).repeat_interleave(weight.shape[1])[:, None] / copies
        rows = (weight.repeat(1, copies, 1).float() * shrinking).bfloat16()
        yield Case(case.name, {**case.inputs, "weight": rows})


def _main_cases(scale: str, seed: int) -> Iterator[Case]:
    generator = torch.Generator().manual_seed(seed)
    outputs, columns = (64, 384) if scale == "small" else (5120, 15360)
    weight = torch.randn(outputs, columns, generator=generator).to(torch.float8_e4m3fn)
    scales = torch.randint(115, 124, (outputs // 32, columns // 32), generator=generator).to(torch.uint8)
    parameters = {"weight": weight, "scales": scales}
    for rows in (1, 8, 17, 33) if scale == "small" else (8, 24, 32):
        x = torch.randn(rows, columns, generator=generator)
        yield Case(f"random {rows}x{columns}", {"x": x.bfloat16(), **parameters})
        spread = x * torch.logspace(-2, 2, columns // 32).repeat_interleave(32)
        yield Case(f"groups of very different size {rows}x{columns}", {"x": spread.bfloat16(), **parameters})
    yield Case("rows below the floor count as zeros", {"x": (x * 1e-16).bfloat16(), **parameters})
    yield Case("rows of zeros", {"x": torch.zeros(8, columns).bfloat16(), **parameters})
    yield Case("no rows", {"x": x[:0].bfloat16(), **parameters})


def _main_sites(shapes: ModelShapes) -> tuple[Site, ...]:
    axes = {"N": shapes.hidden, "K": shapes.taps * shapes.hidden}
    return (Site("draft", axes=axes), Site("commit", axes=axes))


ROPE_WO_A_MXFP8 = Contract(
    name="rope_wo_a_mxfp8",
    summary="Low-rank output projection after undoing the rotation, plain and as MXFP8.",
    source="N5",
    phases=ROPE_WO_A.phases,
    parameters=ROPE_WO_A.parameters,
    outputs=(
        Output("y", ("T", "G*R"), "bfloat16", relative(1e-2), "groups side by side"),
        Output("q", ("T", "G*R"), "float8_e4m3fn", bitwise_given("y"), "its codes"),
        Output(
            "scales",
            ("*",),
            "uint8",
            bitwise_given("y"),
            "its scale bytes in sf_128x4, padding 0",
            shape_of=lambda call: (
                SF_128X4.size(call["o"].shape[0], call["weight"].shape[0] * call["weight"].shape[1] // 32),
            ),
        ),
    ),
    rows="T",
    reference=rope_wo_a_mxfp8,
    cases=_wo_a_cases,
    sites=ROPE_WO_A.sites,
    decomposition=Decomposition(("rope_wo_a", "mxfp8_quantize"), _compose_wo_a, axes={"mxfp8_quantize": {"K": "G*R"}}),
    rules=mxfp8_rules("y"),
)

MAIN_PROJECTION = Contract(
    name="main_projection",
    summary="Projection of the tapped hidden states to the drafter's width.",
    source="A10",
    phases=("draft", "commit"),
    parameters=(
        Argument("x", ("M", "K"), ("bfloat16",), doc="hidden states of the tapped layers side by side"),
        Argument("weight", ("N", "K"), ("float8_e4m3fn",), doc="codes of the weight"),
        Argument("scales", ("N/32", "K/32"), ("uint8",), doc="scale byte per block of 32x32"),
    ),
    outputs=(Output("output", ("M", "N"), "bfloat16", relative(2e-3), "projected rows"),),
    rows="M",
    reference=main_projection,
    cases=_main_cases,
    sites=_main_sites,
)

CONTRACTS = (ROPE_WO_A_MXFP8, MAIN_PROJECTION)
