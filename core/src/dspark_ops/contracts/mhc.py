"""Manifold-constrained hyper-connections: N copies of the residual stream, mixed at every attention and FFN site.

The `pre` that a site computes is consumed at the next site, so every combine takes it as an input (N3.1, choice 10). A
mixing matrix is indexed ``comb[source copy, destination copy]`` everywhere.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from dspark_ops._lazy import torch
from dspark_ops.contracts._mhc_cases import combine_cases, combine_norm_cases, mix_cases, post_cases
from dspark_ops.contracts.contract import Argument, Contract, Option, Output, Site
from dspark_ops.contracts.exactness import absolute, bitwise, ulp
from dspark_ops.contracts.numerics import fma, rms_norm
from dspark_ops.errors import ContractError

if TYPE_CHECKING:
    from torch import Tensor

    from dspark_ops.contracts.model_shapes import ModelShapes


def sinkhorn(logits: Tensor, iterations: int, eps: float) -> Tensor:
    """Return a nearly doubly stochastic matrix per row of `logits`, columns normalised last.

    A softmax over the destination (last index), plus `eps`, then a column step; then `iterations` - 1 times a row step
    and a column step. Both divide by the sum plus `eps`. Columns sum to 1 within `eps`, rows only approximately.

    Args:
        logits: [..., N, N], source first, destination last; the result has its dtype.
        iterations: number of column steps, at least 1.
        eps: added after the softmax and to each sum.

    Source: N3.2, C5.1.
    """
    matrix = logits.softmax(-1) + eps
    matrix = matrix / (matrix.sum(-2, keepdim=True) + eps)
    for _ in range(iterations - 1):
        matrix = matrix / (matrix.sum(-1, keepdim=True) + eps)
        matrix = matrix / (matrix.sum(-2, keepdim=True) + eps)
    return matrix


def mhc_mix_sinkhorn(
    x: Tensor,
    fn: Tensor,
    scale: Tensor,
    base: Tensor,
    rms_eps: float = 1e-20,
    hc_eps: float = 1e-6,
    iterations: int = 20,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the mixing weights of one site per token: `pre` (for the next site), `post` and `comb` (for this one).

    Args:
        x: [T, N*H] bfloat16, the N copies of the stream side by side.
        fn: [C, N*H] float32, C = (2 + N) * N rows: N of pre, N of post, then comb row by row (source major).
        scale: [3] float32 for pre, post, comb.
        base: [C] float32.
        rms_eps: added to the mean square over all N*H values of a token.
        hc_eps: added to pre, and used in the Sinkhorn steps.
        iterations: column steps of the Sinkhorn normalisation.

    Returns:
        pre [T, N], post [T, N], comb [T, N, N], all float32: sigmoid plus `hc_eps`, twice sigmoid, and Sinkhorn.

    Raises:
        ContractError: C is not (2 + N) * N for any N, or does not fit `x`.

    Source: N3.2, C5.1. The projection is scaled by the inverse root mean square after it, not before.
    """
    copies = math.isqrt(fn.shape[0] + 1) - 1
    if (2 + copies) * copies != fn.shape[0] or copies < 1 or x.shape[-1] % copies:
        wanted = "fn of (2 + N) * N rows and x of N copies side by side"
        raise ContractError(f"mhc_mix_sinkhorn: wanted {wanted}, got fn {tuple(fn.shape)} and x {tuple(x.shape)}")
    values = x.double()  # to the end: with one rounding there, a token's bits do not depend on the other tokens
    inverse = (values.square().mean(-1, keepdim=True) + rms_eps).rsqrt()
    mixed = (values @ fn.double().t()) * inverse
    scales, offsets = scale.double(), base.double()
    pre = (mixed[:, :copies] * scales[0] + offsets[:copies]).sigmoid() + hc_eps
    post = 2 * (mixed[:, copies : 2 * copies] * scales[1] + offsets[copies : 2 * copies]).sigmoid()
    logits = mixed[:, 2 * copies :] * scales[2] + offsets[2 * copies :]
    comb = sinkhorn(logits.reshape(-1, copies, copies), iterations, hc_eps)
    return pre.float(), post.float(), comb.float()


def mhc_combine(x: Tensor, pre: Tensor) -> Tensor:
    """Return the weighted sum of each token's N copies, as bfloat16 [T, H].

    Args:
        x: [T, N*H] bfloat16, last stride 1.
        pre: [T, N] float32 or bfloat16, last stride 1: the weights that the previous site computed.

    Source: N3.3. A chain of fused multiply-adds over the copies in order, starting from 0, rounded to bfloat16 once.
    """
    copies = x.reshape(x.shape[0], pre.shape[-1], x.shape[-1] // pre.shape[-1])
    total = torch.zeros_like(copies[:, 0], dtype=torch.float32)
    for index in range(pre.shape[-1]):
        total = fma(copies[:, index], pre[:, index, None], total)
    return total.bfloat16()


def mhc_combine_norm(x: Tensor, pre: Tensor, weight: Tensor, eps: float = 1e-20) -> Tensor:
    """Return the RMS-normalised weighted sum of each token's N copies, as bfloat16 [T, H].

    Args:
        x: [T, N*H] bfloat16, last stride 1.
        pre: [T, N] float32 or bfloat16, last stride 1.
        weight: [H] bfloat16.
        eps: added to the mean square, under the root.

    Source: N3.3. The sum is rounded to bfloat16 before the statistic, as the unfused pair stores it. Then
    (value * inverse) * weight in float32, rounded once.
    """
    return rms_norm(mhc_combine(x, pre), weight, eps).bfloat16()


def mhc_post(x: Tensor, residual: Tensor, post: Tensor, comb: Tensor) -> Tensor:
    """Return the new copies of the stream: each is its share of the branch output plus a mix of the old copies.

    Args:
        x: [T, H] bfloat16, output of the attention or FFN branch.
        residual: [T, N, H] bfloat16, the copies before the site.
        post: [T, N] float32.
        comb: [T, N, N] float32, source copy first, destination copy last.

    Returns:
        [T, N, H] bfloat16: ``post[k] * x + sum over j of comb[j, k] * residual[j]``.

    Source: N3.5. Order of roundings, bit for bit: comb[0, k] * residual[0] rounded to float32, then a fused
    multiply-add of post[k] * x, then of comb[j, k] * residual[j] for j = 1, 2, ..., then one rounding to bfloat16.
    """
    total = comb[:, 0, :, None] * residual[:, 0, None, :].float()
    total = fma(post[:, :, None], x[:, None, :], total)
    for source in range(1, comb.shape[1]):
        total = fma(comb[:, source, :, None], residual[:, source, None, :], total)
    return total.bfloat16()


_PHASES = ("verify", "draft")


def _sites(shapes: ModelShapes) -> tuple[Site, ...]:
    return tuple(Site(name, axes={"N": shapes.hc_mult, "H": shapes.hidden}) for name in _PHASES)


def _mix_sites(shapes: ModelShapes) -> tuple[Site, ...]:
    axes = {"N": shapes.hc_mult, "J": shapes.hc_mult * shapes.hidden, "C": (2 + shapes.hc_mult) * shapes.hc_mult}
    return tuple(Site(name, axes=axes) for name in _PHASES)


_COPIES = Argument("x", ("T", "N*H"), ("bfloat16",), strides="unit_last", doc="the copies side by side")
_PRE = Argument("pre", ("T", "N"), ("float32", "bfloat16"), strides="unit_last", doc="weights of the previous site")

MHC_MIX_SINKHORN = Contract(
    name="mhc_mix_sinkhorn",
    summary="Mixing weights pre, post and comb of one hyper-connection site.",
    source="N3.2, C5.1",
    phases=_PHASES,
    parameters=(
        Argument("x", ("T", "J"), ("bfloat16",), doc="the N copies side by side, J = N * H"),
        Argument("fn", ("C", "J"), ("float32",), doc="projection, C = (2 + N) * N"),
        Argument("scale", (3,), ("float32",), doc="factors of pre, post and comb"),
        Argument("base", ("C",), ("float32",), doc="offsets"),
        Option("rms_eps", "float", 1e-20, doc="added to the mean square"),
        Option("hc_eps", "float", 1e-6, doc="added to pre and in the Sinkhorn steps"),
        Option("iterations", "int", 20, doc="column steps of the Sinkhorn normalisation"),
    ),
    outputs=(
        Output("pre", ("T", "N"), "float32", absolute(1e-5), "weights of the next site's combine"),
        Output("post", ("T", "N"), "float32", absolute(1e-5), "share of the branch output per copy"),
        Output("comb", ("T", "N", "N"), "float32", absolute(1e-5), "mix of the copies, [source, destination]"),
    ),
    rows="T",
    reference=mhc_mix_sinkhorn,
    cases=mix_cases,
    sites=_mix_sites,
)

MHC_COMBINE = Contract(
    name="mhc_combine",
    summary="Weighted sum of the copies of the stream.",
    source="N3.3",
    phases=_PHASES,
    parameters=(_COPIES, _PRE),
    outputs=(Output("output", ("T", "H"), "bfloat16", ulp(1), "collapsed stream"),),
    rows="T",
    reference=mhc_combine,
    cases=combine_cases,
    sites=_sites,
)

MHC_COMBINE_NORM = Contract(
    name="mhc_combine_norm",
    summary="RMS-normalised weighted sum of the copies of the stream.",
    source="N3.3",
    phases=_PHASES,
    parameters=(
        _COPIES,
        _PRE,
        Argument("weight", ("H",), ("bfloat16",), doc="weight of the norm"),
        Option("eps", "float", 1e-20, doc="added to the mean square"),
    ),
    outputs=(Output("output", ("T", "H"), "bfloat16", ulp(1), "input of the branch"),),
    rows="T",
    reference=mhc_combine_norm,
    cases=combine_norm_cases,
    sites=_sites,
)

MHC_POST = Contract(
    name="mhc_post",
    summary="New copies of the stream from the branch output and the old copies.",
    source="N3.5",
    phases=_PHASES,
    parameters=(
        Argument("x", ("T", "H"), ("bfloat16",), doc="branch output"),
        Argument("residual", ("T", "N", "H"), ("bfloat16",), doc="the copies before the site"),
        Argument("post", ("T", "N"), ("float32",), doc="share of the branch output per copy"),
        Argument("comb", ("T", "N", "N"), ("float32",), doc="mix of the copies, [source, destination]"),
    ),
    outputs=(Output("output", ("T", "N", "H"), "bfloat16", bitwise(), "the copies after the site"),),
    rows="T",
    reference=mhc_post,
    cases=post_cases,
    sites=_sites,
)

CONTRACTS = (MHC_MIX_SINKHORN, MHC_COMBINE, MHC_COMBINE_NORM, MHC_POST)
