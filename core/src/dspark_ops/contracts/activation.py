"""The activation of an expert: SiLU of the gate times the up projection, both clamped."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from dspark_ops._lazy import torch
from dspark_ops.contracts.contract import Argument, Case, Contract, Decomposition, Option, Output, Semantic, Site
from dspark_ops.contracts.exactness import bitwise_given, ulp
from dspark_ops.contracts.quantize import fp8_grid_quantize, fp8_grid_round, fp8_grid_rules

if TYPE_CHECKING:
    from torch import Tensor

    from dspark_ops.contracts.model_shapes import ModelShapes


def silu_mul_clamp(gate_up: Tensor, limit: float | None = 10.0) -> Tensor:
    """Return ``g / (1 + exp(-g)) * u`` with g = min(gate, limit) and u = clamp(up, -limit, limit).

    The gate has an upper limit only: a gate of -12 is not raised to -10. The clamp comes before the activation. In
    float32, rounded once to the dtype of the input. NaN stays NaN through both clamps; a gate of -inf gives NaN, as the
    formula does; one so low that exp(-gate) overflows gives 0 with the sign of -u.

    Args:
        gate_up: [M, 2 * I] bfloat16, float16 or float32, last stride 1: the gate, then the up projection.
        limit: the clamp, or None for no clamp.

    Returns:
        [M, I] of the same dtype.

    Source: A9 (plain mode), O15.
    """
    gate, up = gate_up.float().chunk(2, -1)
    if limit is not None:
        gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
    # the exponential through float64: correctly rounded, and the same however a library vectorises it
    power = (-gate).double().exp().float()
    return (gate / (1 + power) * up).to(gate_up.dtype)


def silu_mul_clamp_fp8_grid(gate_up: Tensor, limit: float | None = 10.0) -> tuple[Tensor, Tensor]:
    """Return what `silu_mul_clamp` returns, and that rounded to the fp8 grid of each 32 columns.

    Args:
        gate_up: [M, 2 * I] bfloat16, last stride 1, I divisible by 32; finite values.
        limit: the clamp, or None for no clamp.

    Returns:
        y and grid, [M, I] bfloat16 each.

    Raises:
        ContractError: I is no multiple of 32.

    Source: A9 (mode fp8_grid), A0.2. What is put on the grid is `y` as rounded to bfloat16; it is returned so that this
    can be checked. Exponentials to either base will do for `y`.
    """
    y = silu_mul_clamp(gate_up, limit)
    return y, fp8_grid_round(y)


def silu_mul_clamp_mxfp8(gate_up: Tensor, limit: float | None = 10.0) -> tuple[Tensor, Tensor, Tensor]:
    """Return what `silu_mul_clamp` returns, and its fp8 grid codes and scale bytes, row after row.

    Args:
        gate_up: [M, 2 * I] bfloat16, last stride 1, I divisible by 32; finite values.
        limit: the clamp, or None for no clamp.

    Returns:
        y [M, I] bfloat16, codes [M, I] float8_e4m3fn, scales [M, I / 32] uint8.

    Raises:
        ContractError: I is no multiple of 32.

    Source: A9 (mode mxfp8), A0.2: the scale rule is the grid's, with its floor, and not that of `mxfp8_quantize`.
    """
    y = silu_mul_clamp(gate_up, limit)
    return y, *fp8_grid_quantize(y)


def _compose_grid(ops: Any, gate_up: Tensor, limit: float | None = 10.0) -> tuple[Tensor, Tensor]:
    y = ops.silu_mul_clamp(gate_up, limit)
    return y, ops.fp8_grid_round(y)


def _compose_mxfp8(ops: Any, gate_up: Tensor, limit: float | None = 10.0) -> tuple[Tensor, Tensor, Tensor]:
    y = ops.silu_mul_clamp(gate_up, limit)
    return y, *ops.fp8_grid_quantize(y)


def _cases(scale: str, seed: int) -> Iterator[Case]:
    generator = torch.Generator().manual_seed(seed)
    sizes = ((1, 32), (3, 288), (24, 96), (2, 1056)) if scale == "small" else ((1, 576), (24, 576), (128, 2304))
    for rows, width in sizes:
        for dtype in (torch.bfloat16, torch.float16, torch.float32):
            spread = 8.0 if dtype.itemsize == 2 else 2.0
            gate_up = (torch.randn(rows, 2 * width, generator=generator) * spread).to(dtype)
            name = f"{rows}x{width}, {str(dtype).removeprefix('torch.')}"
            yield Case(name, {"gate_up": gate_up})
            yield Case(f"{name}, no limit", {"gate_up": gate_up, "limit": None})
            yield Case(f"{name}, limit 1.5", {"gate_up": gate_up, "limit": 1.5})
        wide = torch.full((rows, 2 * width + 32), 1e30, dtype=torch.bfloat16)
        wide[:, : 2 * width] = gate_up
        yield Case(f"{rows}x{width}, columns of a wider buffer", {"gate_up": wide[:, : 2 * width]})
        yield Case(f"{rows}x{width}, zeros", {"gate_up": torch.zeros(rows, 2 * width)})
    nan, inf = float("nan"), float("inf")
    special = torch.tensor([[nan, inf, -inf, -200.0, -200.0, 0.0, 5.0, 5.0, 1.0, 1.0, 1.0, 1.0, -1.0, inf, nan, -inf]])
    wanted = torch.tensor([[nan, 9.9995460, nan, -0.0, 0.0, 0.0, nan, -49.665356]])
    yield Case("NaN, infinities, overflow of the exponential", {"gate_up": special}, {"output": wanted})
    edges = torch.tensor([[9.9375, 10.0, 10.0625, -10.0, -10.0625, 10.0, -10.0, 10.0625, -10.0625, 10.0]])
    yield Case("at the limit and one step beyond", {"gate_up": edges.bfloat16()})
    yield Case("no rows", {"gate_up": torch.empty(0, 64)}, {"output": torch.empty(0, 32)})


def _quantised_cases(scale: str, seed: int) -> Iterator[Case]:
    """Yield the finite bfloat16 inputs of `silu_mul_clamp` that are whole groups of 32 wide, and quiet groups."""
    for case in _cases(scale, seed):
        gate_up = case.inputs["gate_up"].bfloat16() if case.name.endswith("zeros") else case.inputs["gate_up"]
        if gate_up.dtype == torch.bfloat16 and gate_up.shape[1] % 64 == 0:
            yield Case(case.name, {**case.inputs, "gate_up": gate_up})
    tiny = torch.tensor([1e-20, 1e-6, -60.0, 3.0]).repeat_interleave(32).repeat(2, 2)
    yield Case("groups that are nearly zero beside others", {"gate_up": tiny.bfloat16()})
    yield Case("no rows in bfloat16", {"gate_up": tiny[:0].bfloat16()})


def _sites(shapes: ModelShapes) -> tuple[Site, ...]:
    axes, options = {"I": shapes.shared_intermediate}, {"limit": 10.0}
    strides = {"gate_up": "unit_last"}
    return (
        Site("verify", axes=axes, strides=strides, options=options),
        Site("draft", axes=axes, strides=strides, options=options),
    )


SILU_MUL_CLAMP = Contract(
    name="silu_mul_clamp",
    summary="Clamped SwiGLU of the two halves of each row.",
    source="A9, O15",
    phases=("draft", "verify"),
    parameters=(
        Argument("gate_up", ("M", "2*I"), ("bfloat16", "float16", "float32"), strides="unit_last", doc="gate, then up"),
        Option("limit", "float", 10.0, doc="clamp of both halves; None = no clamp", optional=True),
    ),
    outputs=(Output("output", ("M", "I"), "like gate_up", ulp(2), "activated rows"),),
    rows="M",
    reference=silu_mul_clamp,
    cases=_cases,
    sites=_sites,
    semantics=(Semantic("nan", "propagate", ("propagate", "dropped"), "what a NaN gives"),),
)

_GATE_UP = Argument("gate_up", ("M", "2*I"), ("bfloat16",), strides="unit_last", doc="gate, then up")
_ACTIVATED = Output("y", ("M", "I"), "bfloat16", ulp(2), "activated rows")

SILU_MUL_CLAMP_FP8_GRID = Contract(
    name="silu_mul_clamp_fp8_grid",
    summary="Clamped SwiGLU of the two halves of each row, plain and on the fp8 grid.",
    source="A9, A0.2",
    phases=("draft", "verify"),
    parameters=(_GATE_UP, SILU_MUL_CLAMP.parameters[1]),
    outputs=(_ACTIVATED, Output("grid", ("M", "I"), "bfloat16", bitwise_given("y"), "y on the grid")),
    rows="M",
    reference=silu_mul_clamp_fp8_grid,
    cases=_quantised_cases,
    sites=_sites,
    decomposition=Decomposition(
        ("silu_mul_clamp", "fp8_grid_round"), _compose_grid, axes={"fp8_grid_round": {"K": "I"}}
    ),
    rules=fp8_grid_rules("y"),
)

SILU_MUL_CLAMP_MXFP8 = Contract(
    name="silu_mul_clamp_mxfp8",
    summary="Clamped SwiGLU of the two halves of each row, plain and as fp8 codes with scale bytes.",
    source="A9, A0.2",
    phases=("draft", "verify"),
    parameters=(_GATE_UP, SILU_MUL_CLAMP.parameters[1]),
    outputs=(
        _ACTIVATED,
        Output("codes", ("M", "I"), "float8_e4m3fn", bitwise_given("y"), "its codes"),
        Output("scales", ("M", "I/32"), "uint8", bitwise_given("y"), "its scale bytes"),
    ),
    rows="M",
    reference=silu_mul_clamp_mxfp8,
    cases=_quantised_cases,
    sites=_sites,
    decomposition=Decomposition(
        ("silu_mul_clamp", "fp8_grid_quantize"), _compose_mxfp8, axes={"fp8_grid_quantize": {"K": "I"}}
    ),
    rules=fp8_grid_rules("y"),
)

CONTRACTS = (SILU_MUL_CLAMP, SILU_MUL_CLAMP_FP8_GRID, SILU_MUL_CLAMP_MXFP8)
