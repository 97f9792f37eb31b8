"""Paged index logits over packed fp4: scores of query rows against a request's index keys, from the split key cache."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dspark_ops._lazy import torch
from dspark_ops.contracts._paged_logits_cases import logits_cases
from dspark_ops.contracts.contract import Argument, Contract, Option, Output, Site
from dspark_ops.contracts.exactness import relative
from dspark_ops.contracts.index_layouts import INDEX_K_SPLIT
from dspark_ops.contracts.index_scores import head_sum
from dspark_ops.contracts.numerics import e2m1_decode, ue8m0_decode, unpack_nibbles
from dspark_ops.contracts.values import between, index_into
from dspark_ops.errors import ContractError

if TYPE_CHECKING:
    from torch import Tensor

    from dspark_ops.contracts.model_shapes import ModelShapes


def paged_mqa_logits_fp4(
    q: Tensor,
    q_scale: Tensor,
    kv: Tensor,
    kv_scale: Tensor,
    block_tables: Tensor,
    weights: Tensor,
    context_lens: Tensor,
    max_seq_len: int,
    weight_scale: float = 1.0,
    cta_info: Tensor | None = None,
    block_k: int = 256,
) -> Tensor:
    """Return the index logits of each query row over its request's keys, -inf for keys that the row may not see.

    Row n of a request sees keys t up to ``context - next_n + n``; a row of which that is negative sees none. A logit is
    ``weight_scale * sum over heads of weight * relu(q . key)``. Dots and sums are float32: this is another operator
    than scores in bfloat16 steps (see `index_scores`).

    Args:
        q: [B, next_n, H, 64] uint8, queries: e2m1 codes, the even lane in the low nibble.
        q_scale: [B, next_n, 1, 4, 16, S] uint8, scale byte of head h and group c at ``[..., c, h % 16, h // 16]``. S is
            H / 16 rounded up to a multiple of 4; bytes of heads that do not exist are not used.
        kv: [pages, 1, 4, 64, 16] uint8, keys: group, slot, and the bytes of the group's 32 lanes.
        kv_scale: [pages, 1, 4, 64] uint8, scale byte of slot o at place ``o % 16 * 4 + o // 16``.
        block_tables: [B, W] int32, pages of each request. Kernels read ahead: W is a multiple of 4, with at least 4
            columns behind the last page, and all entries are pages that exist.
        weights: [B * next_n, H] bfloat16, of the heads.
        context_lens: [B] int32, keys of each request, the step's own ones included.
        max_seq_len: columns of the result. Keys beyond have no column.
        weight_scale: factor of the result.
        cta_info: [P, 4] int32, the work list of `varctx_schedule` for these contexts and `block_k`; without it an
            implementation makes its own. The result is the same.
        block_k: keys of a chunk of `cta_info`.

    Returns:
        [B * next_n, max_seq_len] float32. Every element is written, requests without keys included.

    Raises:
        ContractError: sizes that do not fit each other.

    Source: A17b, A1 (split layout), A2 (layout of queries). Accumulated in float64 on the exact values of the codes.
    """
    batch, next_n = q.shape[:2]
    _require_shapes(q, q_scale, kv, kv_scale)
    queries, page_size = query_rows(q, q_scale), INDEX_K_SPLIT.page_size
    column = torch.arange(max_seq_len, device=q.device)
    last = context_lens.long()[:, None] - next_n + torch.arange(next_n, device=q.device)
    visible = column <= last[..., None]  # [B, next_n, max_seq_len]
    page = (column // page_size).clamp(max=max(block_tables.shape[1] - 1, 0))
    slots = block_tables.long()[:, page] * page_size + column % page_size
    out = torch.full((batch, next_n, max_seq_len), -torch.inf, device=q.device)
    for request in range(batch):
        seen = torch.where(visible[request, -1], slots[request], 0)
        keys = INDEX_K_SPLIT.load(kv.flatten(1), kv_scale.flatten(1), seen).double()
        for n in range(next_n):
            dots = (queries[request, n].double() @ keys.t()).float()
            row = weights[request * next_n + n].float()
            score = head_sum(dots, row, "fp32") * weight_scale
            out[request, n] = torch.where(visible[request, n], score, -torch.inf)
    return out.flatten(0, 1)


def query_rows(q: Tensor, q_scale: Tensor) -> Tensor:
    """Return the queries [B, next_n, H, 128] float32 that packed codes and scales mean."""
    scales = q_scale[:, :, 0].permute(0, 1, 4, 3, 2).flatten(2, 3)[:, :, : q.shape[2]]  # [B, next_n, H, 4]
    groups = e2m1_decode(unpack_nibbles(q)).view(*scales.shape, 32)
    return (groups * ue8m0_decode(scales)[..., None]).flatten(-2)


def _require_shapes(q: Tensor, q_scale: Tensor, kv: Tensor, kv_scale: Tensor) -> None:
    batch, next_n, heads = q.shape[:3]
    padded = -(-heads // 64) * 4
    wanted = (
        ("q", q, [batch, next_n, heads, 64]),
        ("q_scale", q_scale, [batch, next_n, 1, 4, 16, padded]),
        ("kv", kv, [kv.shape[0], 1, 4, 64, 16]),
        ("kv_scale", kv_scale, [kv.shape[0], 1, 4, 64]),
    )
    for name, tensor, shape in wanted:
        if list(tensor.shape) != shape:
            raise ContractError(f"paged_mqa_logits_fp4: wanted {name} {shape}, got {list(tensor.shape)}")


def _sites(shapes: ModelShapes) -> tuple[Site, ...]:
    # Behind the uniform expansion of a verify step every query row is a request of its own.
    axes = {"N": 1, "H": shapes.index_heads, "S": -(-shapes.index_heads // 64) * 4}
    layouts = dict.fromkeys(("kv", "kv_scale"), INDEX_K_SPLIT.name)
    return (Site("verify", axes=axes, layouts=layouts, options={"block_k": 256}),)


_SPLIT = (INDEX_K_SPLIT.name,)

PAGED_MQA_LOGITS_FP4 = Contract(
    name="paged_mqa_logits_fp4",
    summary="Index logits of each query row over its request's packed keys.",
    source="A17b",
    phases=("verify",),
    parameters=(
        Argument("q", ("B", "N", "H", 64), ("uint8",), doc="packed queries"),
        Argument("q_scale", ("B", "N", 1, 4, 16, "S"), ("uint8",), doc="scale bytes by group, head % 16, head // 16"),
        Argument("kv", ("*", 1, 4, 64, 16), ("uint8",), layouts=_SPLIT, doc="packed keys by page and group"),
        Argument("kv_scale", ("*", 1, 4, 64), ("uint8",), layouts=_SPLIT, doc="their scale bytes, slots permuted"),
        Argument("block_tables", ("B", "*"), ("int32",), doc="pages of each request", values=index_into("kv[0]")),
        Argument("weights", ("B*N", "H"), ("bfloat16",), doc="weights of the heads"),
        Argument(
            "context_lens", ("B",), ("int32",), doc="keys of each request", values=between(0, "block_tables[1]*64")
        ),
        Option("max_seq_len", "int", doc="columns of the result"),
        Option("weight_scale", "float", 1.0, doc="factor of the result"),
        Argument("cta_info", ("P", 4), ("int32",), optional=True, doc="work list of varctx_schedule"),
        Option("block_k", "int", 256, doc="keys of a chunk of cta_info"),
    ),
    outputs=(Output("logits", ("B*N", "L"), "float32", relative(1e-4), "logits; -inf, exactly, where not visible"),),
    rows="B",
    reference=paged_mqa_logits_fp4,
    cases=logits_cases,
    sites=_sites,
    sizes={"L": "max_seq_len"},
)

CONTRACTS = (PAGED_MQA_LOGITS_FP4,)
