"""The sublayers that target layers and draft stages share, as differentiable functions of named weights.

``p`` is a plain dict from the names of ``model.safetensors`` to fp32 master tensors. Matrices are rounded to bf16 at
each use, as they are stored. Every function works on any leading shape written ``...``. Sources: N2, N3, C5.2.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from quant import NOPE, window_page
from settings import Settings
from sinkhorn import sinkhorn

Params = dict[str, torch.Tensor]


def stored(w: torch.Tensor) -> torch.Tensor:
    """``w`` with the precision the file keeps it in (bf16), as fp32."""
    return w.to(torch.bfloat16).to(torch.float32)


def linear(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """``x @ w.T`` in the dtype of ``x``."""
    return F.linear(x, w.to(torch.bfloat16).to(x.dtype))


def rmsnorm(x: torch.Tensor, w: torch.Tensor, eps: float) -> torch.Tensor:
    """Normed rows in fp32: statistics, product by the inverse root, product by the weight."""
    x = x.float()
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * stored(w)


def rotate(x: torch.Tensor, table: torch.Tensor, inverse: bool = False) -> torch.Tensor:
    """Rotate the last 64 of 512 lanes, adjacent pairs, in fp32; ``table`` is ``[2, ..., 32]`` broadcast over ``x``."""
    cos, sin = table[0], -table[1] if inverse else table[1]
    real, imag = x[..., NOPE:].unflatten(-1, (-1, 2)).unbind(-1)
    turned = torch.stack([real * cos - imag * sin, real * sin + imag * cos], dim=-1).flatten(-2)
    return torch.cat([x[..., :NOPE], turned], dim=-1)


def mix(p: Params, prefix: str, x: torch.Tensor, s: Settings) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(pre ``[..., n]``, post ``[..., n]``, comb ``[..., source, destination]``), fp32, of streams ``[..., n, d]``."""
    n = s.hc
    flat = x.flatten(-2).float()
    m = F.linear(flat, p[prefix + "_fn"]) * torch.rsqrt(flat.square().mean(-1, keepdim=True) + s.eps)
    base, scale = p[prefix + "_base"], p[prefix + "_scale"]
    pre = torch.sigmoid(m[..., :n] * scale[0] + base[:n]) + s.hc_eps
    post = 2 * torch.sigmoid(m[..., n : 2 * n] * scale[1] + base[n : 2 * n])
    comb = (m[..., 2 * n :] * scale[2] + base[2 * n :]).unflatten(-1, (n, n))
    return pre, post, sinkhorn(comb, s.hc_iters, s.hc_eps)


def combine(x: torch.Tensor, pre: torch.Tensor) -> torch.Tensor:
    """One row from the streams: ``sum_i pre_i x_i`` in fp32, rounded to the dtype of ``x``."""
    return (x.float() * pre[..., None]).sum(-2).to(x.dtype)


def scatter(out: torch.Tensor, x: torch.Tensor, post: torch.Tensor, comb: torch.Tensor) -> torch.Tensor:
    """New streams ``post_k out + sum_j comb[j, k] x_j``, rounded to the dtype of ``x`` ``[..., n, d]``."""
    mixed = (comb[..., None] * x.float()[..., :, None, :]).sum(-3)
    return (post[..., None] * out.float()[..., None, :] + mixed).to(x.dtype)


def moe(p: Params, prefix: str, x: torch.Tensor, s: Settings, top_k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """(output like ``x``, chosen share ``[experts]`` fp32); all experts run, the unchosen with weight zero."""
    scores = torch.sqrt(F.softplus(F.linear(x.float(), stored(p[prefix + "gate.weight"]))))
    rank = (scores + p[prefix + "gate.bias"]).detach()
    chosen = torch.zeros_like(rank)
    for _ in range(top_k):
        hit = F.one_hot(rank.argmax(-1), rank.shape[-1]).to(rank.dtype)
        chosen = chosen + hit
        rank = rank.masked_fill(hit.bool(), float("-inf"))
    weight = scores * chosen
    weight = weight / (weight.sum(-1, keepdim=True) + 1e-20) * s.route_scale
    weight = torch.cat([weight, torch.ones_like(weight[..., :1])], dim=-1)
    w1, w3, w2 = (
        torch.cat([p[f"{prefix}experts.{name}"], p[f"{prefix}shared_experts.{name}"][None]])
        for name in ("w1", "w3", "w2")
    )
    gate = linear(x, w1.flatten(0, 1)).float().clamp(max=s.limit)
    up = linear(x, w3.flatten(0, 1)).float().clamp(-s.limit, s.limit)
    hidden = (F.silu(gate) * up).unflatten(-1, (-1, s.inter)) * weight[..., None]
    out = linear(hidden.flatten(-2).to(x.dtype), w2.permute(1, 0, 2).flatten(1))
    return out, chosen.flatten(0, -2).mean(0)


def latent(p: Params, prefix: str, x: torch.Tensor, table: torch.Tensor, s: Settings) -> torch.Tensor:
    """Window rows ``[..., 512]`` (key and value at once): norm in fp32, rotation, page quantisation (N7.2)."""
    row = rmsnorm(linear(x, p[prefix + "wkv.weight"]), p[prefix + "kv_norm.weight"], s.eps)
    return window_page(rotate(row, table)).to(x.dtype)


def queries(p: Params, prefix: str, x: torch.Tensor, table: torch.Tensor, s: Settings) -> torch.Tensor:
    """Rotated queries ``[..., heads, 512]``; ``table`` must broadcast over the head axis."""
    low = rmsnorm(linear(x, p[prefix + "wq_a.weight"]), p[prefix + "q_norm.weight"], s.eps).to(x.dtype)
    q = linear(low, p[prefix + "wq_b.weight"]).unflatten(-1, (s.heads, s.head_dim))
    return rotate(q.float(), table[..., None, :]).to(x.dtype)


def project(p: Params, prefix: str, out: torch.Tensor, table: torch.Tensor, s: Settings) -> torch.Tensor:
    """Attention output ``[..., heads, 512]`` to ``[..., d]``: inverse rotation, grouped ``wo_a``, ``wo_b``."""
    out = rotate(out.float(), table[..., None, :], inverse=True).to(out.dtype)
    wo_a = p[prefix + "wo_a.weight"].to(torch.bfloat16).to(out.dtype)
    rows = out.reshape(-1, s.o_groups, wo_a.shape[-1]).transpose(0, 1)
    low = torch.bmm(rows, wo_a.mT).transpose(0, 1).reshape(*out.shape[:-2], -1)
    return linear(low, p[prefix + "wo_b.weight"])


def weights_of(scores: torch.Tensor, mask: torch.Tensor, sink: torch.Tensor) -> torch.Tensor:
    """Softmax of fp32 ``scores [..., heads, keys]`` where ``mask`` is true, with a sink in the denominator only."""
    scores = scores.masked_fill(~mask, float("-inf"))
    top = torch.maximum(scores.amax(-1), sink).detach()
    exp = torch.exp(scores - top[..., None])
    return exp / (exp.sum(-1) + torch.exp(sink - top))[..., None]


def sublayers(
    p: Params,
    prefix: str,
    x: torch.Tensor,
    pre: torch.Tensor,
    attention: Callable[[torch.Tensor], torch.Tensor],
    s: Settings,
    top_k: int,
    drop: float = 0.0,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """One layer or stage over streams ``x [..., n, d]``: attention, then experts, with the carried ``pre`` (N3.1).

    Returns (streams, the ``pre`` for the next layer, expert shares). ``drop`` is dropout on both branch outputs.
    """
    a_pre, a_post, a_comb = mix(p, prefix + "hc_attn", x, s)
    row = rmsnorm(combine(x, pre), p[prefix + "attn_norm.weight"], s.eps).to(x.dtype)
    x = scatter(F.dropout(attention(row), drop, drop > 0), x, a_post, a_comb)
    f_pre, f_post, f_comb = mix(p, prefix + "hc_ffn", x, s)
    row = rmsnorm(combine(x, a_pre), p[prefix + "ffn_norm.weight"], s.eps).to(x.dtype)
    out, share = moe(p, prefix + "ffn.", row, s, top_k)
    return scatter(F.dropout(out, drop, drop > 0), x, f_post, f_comb), f_pre, share


def first_streams(p: Params, ids: torch.Tensor, s: Settings, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """(streams ``[..., n, d]``: copies of the embedding; pre ``[..., n]`` fp32: all weight on stream 0)."""
    row = F.embedding(ids, stored(p["embed.weight"])).to(dtype)
    pre = torch.zeros(*ids.shape, s.hc, device=row.device)
    pre[..., 0] = 1.0
    return row[..., None, :].expand(*ids.shape, s.hc, s.d), pre


def vocabulary(p: Params, hidden: torch.Tensor, norm: str, s: Settings) -> torch.Tensor:
    """fp32 logits ``[..., vocab]`` of the tied head; exact products of bf16 values, fp32 sums."""
    row = rmsnorm(hidden, p[norm], s.eps).to(hidden.dtype)
    return F.linear(row.float(), stored(p["embed.weight"]))
