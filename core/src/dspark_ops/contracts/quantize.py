"""Quantisation of activations: MXFP8, the fp8 grid, and fp4 rows of the indexer. Each has its own scale rule (N0.4)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from dspark_ops._lazy import torch
from dspark_ops.contracts import numerics
from dspark_ops.contracts._quantize_cases import fp4_cases, grid_cases, mxfp8_cases
from dspark_ops.contracts.contract import Argument, Contract, Option, Output, Semantic, Site
from dspark_ops.contracts.exactness import bitwise
from dspark_ops.contracts.scale_layouts import SCALE_LAYOUTS, scale_layout
from dspark_ops.errors import ContractError

if TYPE_CHECKING:
    from torch import Tensor

    from dspark_ops.contracts.model_shapes import ModelShapes

    Rule = Callable[[Mapping[str, Any], Mapping[str, Any]], Tensor]

GROUP = 32
ROUNDINGS = ("rne", "half_down")


def mxfp8_quantize(x: Tensor, layout: str = "sf_128x4") -> tuple[Tensor, Tensor]:
    """Return MXFP8 codes and their scale bytes: per 32 columns the smallest power of two that brings them within 448.

    Args:
        x: [M, K] bfloat16 or float16, K divisible by 32. NaN and infinities are outside the contract.
        layout: where scale bytes lie: ``sf_128x4`` (V4.1: 20480 bytes per 128 rows of 5120) or ``sf_linear``.

    Returns:
        q [M, K] float8_e4m3fn, and scales, uint8 in one dimension: a byte b means 2**(b - 127). Bytes that belong to no
        group are 0. A group whose largest magnitude is 448 * 2**-127 or less, zero included, has byte 0 and its values
        count as zeros: codes 0x00, or 0x80 where the value is negative or -0.0.

    Raises:
        ContractError: K is no multiple of 32, or the layout is unknown.

    Source: N12, N0.4 (rule MX); choices 4 to 6. O08 lets tiny groups keep their values; N12 has zeros, and it decides.
    """
    scales_at, groups = scale_layout(layout), _groups("mxfp8_quantize", x)
    byte = numerics.ue8m0_mx(groups.abs().amax(-1))
    inverse = torch.where(byte == 0, 0.0, numerics.ue8m0_reciprocal(byte))
    codes = numerics.e4m3_encode(groups * inverse[..., None])
    return codes.flatten(1).view(torch.float8_e4m3fn), scales_at.pack(byte)


def fp8_grid_quantize(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return the fp8 grid codes of each 32 columns and their scale bytes, row after row.

    Args:
        x: [M, K] bfloat16, K divisible by 32. NaN and infinities are outside the contract.

    Returns:
        codes [M, K] float8_e4m3fn, and scales [M, K / 32] uint8, 85 or more: groups below 1e-10 share that scale.

    Raises:
        ContractError: K is no multiple of 32.

    Source: A0.2, choice 6. ``codes * 2**(scales - 127)`` is what `fp8_grid_round` returns.
    """
    groups = _groups("fp8_grid_quantize", x)
    byte = numerics.ue8m0_fp8_grid(groups.abs().amax(-1))
    codes = numerics.e4m3_encode(groups * numerics.ue8m0_reciprocal(byte)[..., None])
    return codes.flatten(1).view(torch.float8_e4m3fn), byte


def fp8_grid_round(x: Tensor) -> Tensor:
    """Return the values that `fp8_grid_quantize` means, [M, K] bfloat16, which holds them exactly.

    Args:
        x: [M, K] bfloat16, K divisible by 32. NaN and infinities are outside the contract.

    Raises:
        ContractError: K is no multiple of 32.

    Source: A0.2.
    """
    codes, byte = fp8_grid_quantize(x)
    return mx_dequantize(codes, byte).bfloat16()


def mx_dequantize(codes: Tensor, scales: Tensor) -> Tensor:
    """Return the float32 values of e4m3 codes [M, K] (float8 or uint8) with UE8M0 bytes [M, K / 32] in linear order.

    Exact. Byte 0 is 2**-127, not 0; byte 255 makes a group NaN (O08).
    """
    groups = numerics.e4m3_decode(codes.view(torch.uint8)).reshape(*scales.shape, GROUP)
    return (groups * numerics.ue8m0_decode(scales)[..., None]).flatten(1)


def fp4_quantize_rows(x: Tensor, rounding: str = "rne") -> tuple[Tensor, Tensor]:
    """Return fp4 rows of the indexer: two e2m1 codes to a byte, and up to four scale bytes in one int32.

    Args:
        x: [R, D] bfloat16, float16 or float32; D is 32, 64, 96 or 128. NaN and infinities are outside the contract.
        rounding: where midpoints between codes go: ``rne`` to the even code (V4.1), ``half_down`` to the smaller one.

    Returns:
        payload [R, D / 2] uint8, even columns in the low nibble, never minus zero; scales [R] int32, the byte (114 or
        more) of columns 32i to 32i + 31 in bits 8i to 8i + 7.

    Raises:
        ContractError: D is none of these, or the rounding is unknown.

    Source: A1, A0.2, N8.4 (second stage).
    """
    groups = _groups("fp4_quantize_rows", x)
    if groups.shape[1] > 4:
        raise ContractError(f"fp4_quantize_rows: wanted rows of 128 columns at most, got {x.shape[1]}")
    if rounding not in ROUNDINGS:
        raise ContractError(f"fp4_quantize_rows: wanted rounding {' or '.join(ROUNDINGS)}, got {rounding!r}")
    byte = numerics.ue8m0_index(groups.abs().amax(-1))
    scaled = groups * numerics.ue8m0_reciprocal(byte)[..., None]
    to_even = rounding == "rne"
    codes = numerics.e2m1_encode_ties_to_even(scaled) if to_even else numerics.e2m1_encode_ties_to_smaller(scaled)
    payload = numerics.pack_nibbles(numerics.e2m1_without_minus_zero(codes).flatten(1))
    return payload, pack_scale_word(byte)


def mxfp8_rules(given: str) -> dict[str, Rule]:
    """Return the rules of a fused operator whose `q` and `scales` are the MXFP8 of its own output `given`."""
    return {
        "q": lambda inputs, outputs: mxfp8_quantize(outputs[given])[0],
        "scales": lambda inputs, outputs: mxfp8_quantize(outputs[given])[1],
    }


def fp8_grid_rules(given: str) -> dict[str, Rule]:
    """Return the rules of a fused operator that puts its own output `given` on the fp8 grid, as values or as codes."""
    return {
        "grid": lambda inputs, outputs: fp8_grid_round(outputs[given]),
        "codes": lambda inputs, outputs: fp8_grid_quantize(outputs[given])[0],
        "scales": lambda inputs, outputs: fp8_grid_quantize(outputs[given])[1],
    }


def pack_scale_word(byte: Tensor) -> Tensor:
    """Return up to four bytes [R, n] uint8 as int32 [R], the first one lowest (A1)."""
    word = torch.zeros(byte.shape[0], dtype=torch.int32, device=byte.device)
    for index in range(byte.shape[1]):
        word |= byte[:, index].int() << 8 * index
    return word


def _groups(operator: str, x: Tensor) -> Tensor:
    """Return the float32 groups [M, K / 32, 32] of a matrix."""
    if x.shape[1] % GROUP:
        raise ContractError(f"{operator}: wanted columns in whole groups of {GROUP}, got {x.shape[1]}")
    return x.float().reshape(x.shape[0], x.shape[1] // GROUP, GROUP)


def _sites(shapes: ModelShapes) -> tuple[Site, ...]:
    return tuple(Site(name, axes={"K": shapes.hidden}) for name in ("verify", "draft"))


def _index_sites(shapes: ModelShapes) -> tuple[Site, ...]:
    return (Site("verify", axes={"D": shapes.index_head_dim}),)


def _mxfp8_scales(call: Mapping[str, Any]) -> tuple[Any, ...]:
    rows, columns = call["x"].shape
    return (scale_layout(call["layout"]).size(rows, columns // 32),)


MXFP8_QUANTIZE = Contract(
    name="mxfp8_quantize",
    summary="MXFP8 codes and scale bytes of each 32 columns.",
    source="N12, N0.4",
    phases=("draft", "verify"),
    parameters=(
        Argument("x", ("M", "K"), ("bfloat16", "float16"), doc="rows to quantise"),
        Option("layout", "str", "sf_128x4", tuple(SCALE_LAYOUTS), doc="where scale bytes lie"),
    ),
    outputs=(
        Output("q", ("M", "K"), "float8_e4m3fn", bitwise(), "codes"),
        Output("scales", ("*",), "uint8", bitwise(), "scale bytes, padding 0", shape_of=_mxfp8_scales),
    ),
    rows="M",
    reference=mxfp8_quantize,
    cases=mxfp8_cases,
    sites=_sites,
    semantics=(
        Semantic("scale_rounding", "up", ("up", "down"), "power of two next to amax / 448 that is taken (O09)"),
        Semantic("tiny_groups", "zero", ("zero", "kept"), "values of a group whose scale byte is 0 (O08)"),
    ),
)

_GRID_INPUT = Argument("x", ("M", "K"), ("bfloat16",), doc="rows to quantise")

FP8_GRID_QUANTIZE = Contract(
    name="fp8_grid_quantize",
    summary="Codes and scale bytes of each 32 columns on the fp8 grid.",
    source="A0.2",
    phases=("draft", "verify"),
    parameters=(_GRID_INPUT,),
    outputs=(
        Output("codes", ("M", "K"), "float8_e4m3fn", bitwise(), "codes"),
        Output("scales", ("M", "K/32"), "uint8", bitwise(), "scale bytes"),
    ),
    rows="M",
    reference=fp8_grid_quantize,
    cases=grid_cases,
    sites=_sites,
)

FP8_GRID_ROUND = Contract(
    name="fp8_grid_round",
    summary="Values rounded to the fp8 grid of each 32 columns.",
    source="A0.2",
    phases=("draft", "verify"),
    parameters=(_GRID_INPUT,),
    outputs=(Output("output", ("M", "K"), "bfloat16", bitwise(), "values on the grid"),),
    rows="M",
    reference=fp8_grid_round,
    cases=grid_cases,
    sites=_sites,
)

FP4_QUANTIZE_ROWS = Contract(
    name="fp4_quantize_rows",
    summary="Packed fp4 codes and scale bytes of indexer rows.",
    source="A1, N8.4",
    phases=("verify",),
    parameters=(
        Argument("x", ("R", "D"), ("bfloat16", "float16", "float32"), doc="rows to quantise"),
        Option("rounding", "str", "rne", ROUNDINGS, doc="where midpoints go"),
    ),
    outputs=(
        Output("payload", ("R", "D/2"), "uint8", bitwise(), "two codes to a byte, even column low"),
        Output("scales", ("R",), "int32", bitwise(), "a byte per 32 columns, first lowest"),
    ),
    rows="R",
    reference=fp4_quantize_rows,
    cases=fp4_cases,
    sites=_index_sites,
)

CONTRACTS = (MXFP8_QUANTIZE, FP8_GRID_QUANTIZE, FP8_GRID_ROUND, FP4_QUANTIZE_ROWS)
