"""Hyper-connection sites in fewer launches: the collapse with its norm and quantisation, the update with the collapse.

Every operator here is made of others, and a quantised output follows from the operator's own bfloat16 output: bytes are
never compared between two ways of summing (choice 12).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from dspark_ops._lazy import torch
from dspark_ops.contracts.contract import Argument, Case, Contract, Decomposition, Option, Output, Site
from dspark_ops.contracts.exactness import bitwise, bitwise_given, ulp
from dspark_ops.contracts.mhc import MHC_COMBINE_NORM, MHC_POST, mhc_combine_norm, mhc_post
from dspark_ops.contracts.numerics import rms_norm
from dspark_ops.contracts.quantize import fp8_grid_round, fp8_grid_rules, mxfp8_quantize, mxfp8_rules
from dspark_ops.contracts.scale_layouts import SF_128X4

if TYPE_CHECKING:
    from torch import Tensor

    from dspark_ops.contracts.model_shapes import ModelShapes


def mhc_combine_norm_mxfp8(x: Tensor, pre: Tensor, weight: Tensor, eps: float = 1e-20) -> tuple[Tensor, Tensor, Tensor]:
    """Return the normalised weighted sum of each token's copies, and its MXFP8 codes and scale bytes.

    Args:
        x: [T, N*H] bfloat16, last stride 1; H is divisible by 32.
        pre: [T, N] float32 or bfloat16, last stride 1.
        weight: [H] bfloat16.
        eps: added to the mean square, under the root.

    Returns:
        y [T, H] bfloat16, which router, compressor and indexer read; q [T, H] float8_e4m3fn and scales uint8 in the
        layout ``sf_128x4`` (20480 bytes per 128 tokens of V4.1), padding 0, which the first projection reads.

    Raises:
        ContractError: H is no multiple of 32.

    Source: N3.4. What is quantised is `y` as rounded to bfloat16.
    """
    y = mhc_combine_norm(x, pre, weight, eps)
    return y, *mxfp8_quantize(y)


def _compose_mxfp8(
    ops: Any, x: Tensor, pre: Tensor, weight: Tensor, eps: float = 1e-20
) -> tuple[Tensor, Tensor, Tensor]:
    y = ops.mhc_combine_norm(x, pre, weight, eps)
    return y, *ops.mxfp8_quantize(y)


def mhc_post_combine(x: Tensor, residual: Tensor, post: Tensor, comb: Tensor, pre: Tensor) -> tuple[Tensor, Tensor]:
    """Return the new copies of the stream and their weighted sum, which the next branch normalises.

    Args:
        x: [T, H] bfloat16, output of the branch.
        residual: [T, N, H] bfloat16, the copies before the site.
        post: [T, N] float32.
        comb: [T, N, N] float32, source copy first, destination copy last.
        pre: [T, N] float32, weights of the next collapse.

    Returns:
        new_residual [T, N, H] bfloat16 as `mhc_post` has it, and combined [T, H] bfloat16.

    Source: A8. The sum takes the new copies as rounded to bfloat16, in order, each product and each sum rounded to
    float32. `mhc_combine` has fused multiply-adds there, which moves a last bit in some 2 of 100,000 values.
    """
    new_residual = mhc_post(x, residual, post, comb)
    return new_residual, _weighted_sum(new_residual, pre)


def _weighted_sum(copies: Tensor, pre: Tensor) -> Tensor:
    """Return the weighted sum of copies [T, N, H], plainly multiplied and added in float32, as bfloat16 [T, H]."""
    total = torch.zeros_like(copies[:, 0], dtype=torch.float32)
    for index in range(copies.shape[1]):
        total = total + pre[:, index, None] * copies[:, index].float()
    return total.bfloat16()


def _compose_post_combine(
    ops: Any, x: Tensor, residual: Tensor, post: Tensor, comb: Tensor, pre: Tensor
) -> tuple[Tensor, Tensor]:
    new_residual = ops.mhc_post(x, residual, post, comb)
    return new_residual, ops.mhc_combine(new_residual.flatten(1), pre)


def mhc_post_combine_norm(
    x: Tensor, residual: Tensor, post: Tensor, comb: Tensor, pre: Tensor, weight: Tensor, eps: float = 1e-20
) -> tuple[Tensor, Tensor, Tensor]:
    """Return what `mhc_post_combine` returns, and the RMS-normalised sum.

    Args:
        x: [T, H] bfloat16, output of the branch.
        residual: [T, N, H] bfloat16, the copies before the site.
        post: [T, N] float32.
        comb: [T, N, N] float32, source copy first, destination copy last.
        pre: [T, N] float32, weights of the next collapse.
        weight: [H] bfloat16, of the next branch's norm.
        eps: added to the mean square, under the root.

    Returns:
        new_residual [T, N, H], combined [T, H] and normed [T, H], all bfloat16.

    Source: A8. The statistic and the product take `combined` as rounded to bfloat16: (value * inverse) * weight.
    """
    new_residual, combined = mhc_post_combine(x, residual, post, comb, pre)
    return new_residual, combined, rms_norm(combined, weight, eps).bfloat16()


def _compose_post_combine_norm(
    ops: Any, x: Tensor, residual: Tensor, post: Tensor, comb: Tensor, pre: Tensor, weight: Tensor, eps: float = 1e-20
) -> tuple[Tensor, Tensor, Tensor]:
    new_residual = ops.mhc_post(x, residual, post, comb)
    copies = new_residual.flatten(1)
    return new_residual, ops.mhc_combine(copies, pre), ops.mhc_combine_norm(copies, pre, weight, eps)


def mhc_post_combine_norm_fp8_grid(
    x: Tensor, residual: Tensor, post: Tensor, comb: Tensor, pre: Tensor, weight: Tensor, eps: float = 1e-20
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return what `mhc_post_combine_norm` returns, and its normed output rounded to the fp8 grid.

    Args:
        x: [T, H] bfloat16, output of the branch; H is divisible by 32.
        residual: [T, N, H] bfloat16, the copies before the site.
        post: [T, N] float32.
        comb: [T, N, N] float32, source copy first, destination copy last.
        pre: [T, N] float32, weights of the next collapse.
        weight: [H] bfloat16, of the next branch's norm.
        eps: added to the mean square, under the root.

    Returns:
        new_residual [T, N, H], combined [T, H], normed [T, H] and grid [T, H], all bfloat16.

    Raises:
        ContractError: H is no multiple of 32.

    Source: A8, A0.2. What is put on the grid is `normed` as rounded to bfloat16.
    """
    new_residual, combined, normed = mhc_post_combine_norm(x, residual, post, comb, pre, weight, eps)
    return new_residual, combined, normed, fp8_grid_round(normed)


def _compose_fp8_grid(
    ops: Any, x: Tensor, residual: Tensor, post: Tensor, comb: Tensor, pre: Tensor, weight: Tensor, eps: float = 1e-20
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    new_residual, combined, normed = ops.mhc_post_combine_norm(x, residual, post, comb, pre, weight, eps)
    return new_residual, combined, normed, ops.fp8_grid_round(normed)


def _post_combine_cases(scale: str, seed: int) -> Iterator[Case]:
    generator = torch.Generator().manual_seed(seed + 1)
    for case in MHC_POST.cases(scale, seed):
        tokens, copies, hidden = case.inputs["residual"].shape
        pre = torch.rand(tokens, copies, generator=generator)
        known = {"new_residual": case.expected["output"]} if case.expected else {}
        yield Case(case.name, {**case.inputs, "pre": pre}, known)
        one_hot = torch.eye(copies)[1:2].repeat(tokens, 1)
        yield Case(f"{case.name}, next weights one-hot", {**case.inputs, "pre": one_hot})
        if tokens and case.name.startswith("random"):
            identity = torch.eye(copies).repeat(tokens, 1, 1)
            yield Case(f"{case.name}, copies kept apart", {**case.inputs, "pre": pre, "comb": identity})
            zeros = {name: torch.zeros_like(case.inputs[name]) for name in ("x", "residual")}
            yield Case(f"tokens of zeros {tokens}x{copies}x{hidden}", {**case.inputs, **zeros, "pre": pre})


def _norm_cases(scale: str, seed: int) -> Iterator[Case]:
    generator = torch.Generator().manual_seed(seed + 2)
    for case in _post_combine_cases(scale, seed):
        weight = (1 + 0.2 * torch.randn(case.inputs["x"].shape[1], generator=generator)).bfloat16()
        yield Case(case.name, {**case.inputs, "weight": weight}, case.expected)
        if case.name.startswith("random"):
            yield Case(f"{case.name}, eps 1e-6", {**case.inputs, "weight": weight, "eps": 1e-6})


def _sites(shapes: ModelShapes) -> tuple[Site, ...]:
    return tuple(Site(name, axes={"N": shapes.hc_mult, "H": shapes.hidden}) for name in ("verify", "draft"))


_PHASES = ("verify", "draft")
_UPDATE = (
    *MHC_POST.parameters,
    Argument("pre", ("T", "N"), ("float32",), doc="weights of the next collapse"),
)
_NORM = (
    Argument("weight", ("H",), ("bfloat16",), doc="weight of the norm"),
    Option("eps", "float", 1e-20, doc="added to the mean square"),
)
_UPDATED = (
    Output("new_residual", ("T", "N", "H"), "bfloat16", bitwise(), "the copies after the site"),
    Output("combined", ("T", "H"), "bfloat16", ulp(1), "their weighted sum"),
)
# One more than the norm's own ulp, for a sum that was rounded the other way.
_NORMED = Output("normed", ("T", "H"), "bfloat16", ulp(2), "input of the next branch")

MHC_COMBINE_NORM_MXFP8 = Contract(
    name="mhc_combine_norm_mxfp8",
    summary="RMS-normalised weighted sum of the copies, plain and as MXFP8.",
    source="N3.4",
    phases=_PHASES,
    parameters=MHC_COMBINE_NORM.parameters,
    outputs=(
        Output("y", ("T", "H"), "bfloat16", ulp(1), "input of the branch"),
        Output("q", ("T", "H"), "float8_e4m3fn", bitwise_given("y"), "its codes"),
        Output(
            "scales",
            ("*",),
            "uint8",
            bitwise_given("y"),
            "its scale bytes in sf_128x4, padding 0",
            shape_of=lambda call: (SF_128X4.size(call["x"].shape[0], call["weight"].shape[0] // 32),),
        ),
    ),
    rows="T",
    reference=mhc_combine_norm_mxfp8,
    cases=MHC_COMBINE_NORM.cases,
    sites=_sites,
    decomposition=Decomposition(
        ("mhc_combine_norm", "mxfp8_quantize"), _compose_mxfp8, axes={"mxfp8_quantize": {"K": "H"}}
    ),
    rules=mxfp8_rules("y"),
)

MHC_POST_COMBINE = Contract(
    name="mhc_post_combine",
    summary="New copies of the stream and their weighted sum.",
    source="A8",
    phases=_PHASES,
    parameters=_UPDATE,
    outputs=_UPDATED,
    rows="T",
    reference=mhc_post_combine,
    cases=_post_combine_cases,
    sites=_sites,
    decomposition=Decomposition(("mhc_post", "mhc_combine"), _compose_post_combine),
)

MHC_POST_COMBINE_NORM = Contract(
    name="mhc_post_combine_norm",
    summary="New copies of the stream, their weighted sum, and its RMS norm.",
    source="A8",
    phases=_PHASES,
    parameters=(*_UPDATE, *_NORM),
    outputs=(*_UPDATED, _NORMED),
    rows="T",
    reference=mhc_post_combine_norm,
    cases=_norm_cases,
    sites=_sites,
    decomposition=Decomposition(("mhc_post", "mhc_combine", "mhc_combine_norm"), _compose_post_combine_norm),
)

MHC_POST_COMBINE_NORM_FP8_GRID = Contract(
    name="mhc_post_combine_norm_fp8_grid",
    summary="New copies of the stream, their weighted sum, its RMS norm, and that on the fp8 grid.",
    source="A8, A0.2",
    phases=_PHASES,
    parameters=(*_UPDATE, *_NORM),
    outputs=(
        *_UPDATED,
        _NORMED,
        Output("grid", ("T", "H"), "bfloat16", bitwise_given("normed"), "normed, on the grid"),
    ),
    rows="T",
    reference=mhc_post_combine_norm_fp8_grid,
    cases=_norm_cases,
    sites=_sites,
    decomposition=Decomposition(
        ("mhc_post_combine_norm", "fp8_grid_round"), _compose_fp8_grid, axes={"fp8_grid_round": {"K": "H"}}
    ),
    rules=fp8_grid_rules("normed"),
)

CONTRACTS = (MHC_COMBINE_NORM_MXFP8, MHC_POST_COMBINE, MHC_POST_COMBINE_NORM, MHC_POST_COMBINE_NORM_FP8_GRID)
