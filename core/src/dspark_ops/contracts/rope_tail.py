"""Rotation of a head's last lanes without fused multiply-adds, and what the indexer's queries become after it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dspark_ops._lazy import torch
from dspark_ops.contracts._rope_tail_cases import copy_cases, fake_quant_cases, pack_cases
from dspark_ops.contracts.contract import Argument, Contract, Decomposition, Option, Output, Site
from dspark_ops.contracts.exactness import bitwise
from dspark_ops.contracts.numerics import fp4_fake_quant_e4m3_scale, fp4_fake_quant_ue8m0_scale, round_bf16
from dspark_ops.contracts.quantize import fp4_quantize_rows
from dspark_ops.contracts.rope import rotations
from dspark_ops.contracts.values import index_into
from dspark_ops.errors import ContractError

if TYPE_CHECKING:
    from torch import Tensor

    from dspark_ops.contracts.model_shapes import ModelShapes

SCALES = ("ue8m0_32", "e4m3_16")
_LANES_OF_HEADS = 16
_HEAD_GROUPS = 4


def rotate_plain(lanes: Tensor, cosine: Tensor, sine: Tensor, inverse: bool = False) -> Tensor:
    """Return the lanes rotated, float32, with every product and sum rounded: no fused multiply-add.

    Args:
        lanes: [..., P] any float dtype, pairs (2i, 2i + 1).
        cosine: [..., P / 2] float32, broadcast over the leading dimensions.
        sine: as `cosine`.
        inverse: rotate backward: the sine changes sign.

    Source: A14, A2 (stage A). It differs from the fused form in a few last bits, so each operator names its own.
    """
    even, odd = lanes[..., 0::2].float(), lanes[..., 1::2].float()
    turn = -sine if inverse else sine
    return torch.stack([even * cosine - odd * turn, odd * cosine + even * turn], -1).flatten(-2)


def rope_tail_copy(
    q: Tensor, out: Tensor, freqs: Tensor, positions: Tensor | None = None, inverse: bool = False
) -> None:
    """Write each head with its last P lanes rotated into `out`; the other lanes are copied bit for bit.

    Args:
        q: [T, A, D] bfloat16, any strides; not modified unless it is `out` itself.
        out: [T, A, D] bfloat16, any strides, such as the first heads of a padded buffer. It is `q` or apart from it.
        freqs: [S, P] float32 interleaved, the table; [T, P], a row per token, without positions.
        positions: [T] int32 or int64, below S, or None. They are trusted.
        inverse: rotate backward.

    Raises:
        ContractError: `out` has another shape than `q`, or positions have another dtype.

    Source: A14. Even lane a*c - b*s, odd lane b*c + a*s, each operation rounded to float32, then once to bfloat16.
    """
    if out.shape != q.shape:
        raise ContractError(f"rope_tail_copy: wanted out of shape {list(q.shape)}, got {list(out.shape)}")
    cosine, sine = _rows(freqs, positions)
    plain = q.shape[2] - freqs.shape[1]
    turned = rotate_plain(q[..., plain:], cosine[:, None], sine[:, None], inverse).bfloat16()
    out[..., :plain] = q[..., :plain]
    out[..., plain:] = turned


def rope_tail_fp4_fake_quant(
    x: Tensor, freqs: Tensor, positions: Tensor | None = None, inverse: bool = False, scale: str = "ue8m0_32"
) -> Tensor:
    """Return the heads with their last P lanes rotated and all lanes rounded to fp4 values, [T, A, D] bfloat16.

    Args:
        x: [T, A, D] bfloat16; rows may be spaced. Finite values.
        freqs: [S, P] float32 interleaved, the table; [T, P], a row per token, without positions.
        positions: [T] int32 or int64, or None. One that is negative or not below S counts as 0.
        inverse: rotate backward.
        scale: ``ue8m0_32``: a power of two per 32 lanes (indexer); ``e4m3_16``: an e4m3 number per 16 lanes
            (compressed KV). Small negatives become -0.0, an exact -0.0 becomes +0.0.

    Raises:
        ContractError: an unknown scale, lanes that are no whole groups, or positions of another dtype.

    Source: A2 (stages A and B and the related operator).
    """
    if scale not in SCALES:
        raise ContractError(f"rope_tail_fp4_fake_quant: wanted scale {' or '.join(SCALES)}, got {scale!r}")
    group = int(scale.rpartition("_")[2])
    if x.shape[2] % group:
        raise ContractError(f"rope_tail_fp4_fake_quant: wanted heads in groups of {group} lanes, got {x.shape[2]}")
    cosine, sine = _rows(freqs, _within(positions, freqs.shape[0]))
    plain = x.shape[2] - freqs.shape[1]
    turned = round_bf16(rotate_plain(x[..., plain:], cosine[:, None], sine[:, None], inverse))
    rows = torch.cat([x[..., :plain].float(), turned], -1)
    quantise = fp4_fake_quant_ue8m0_scale if scale == "ue8m0_32" else fp4_fake_quant_e4m3_scale
    return quantise(rows).bfloat16()


def index_q_rope_fp4_pack(
    q: Tensor,
    freqs: Tensor,
    positions: Tensor,
    partials: Tensor | None = None,
    weight_scale: float = 1.0,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return the indexer's queries, rotated, rounded to fp4 and packed; their scale bytes; and its head weights.

    Args:
        q: [T, A, D] bfloat16 (V4.1: A = 32, D = 128), rows may be spaced; A is 16, 32, 48 or 64. Finite values.
        freqs: [S, P] float32 interleaved.
        positions: [T] int32 or int64. One that is negative or not below S counts as 0.
        partials: [Z, T, A] float32, partial sums of the head weights, added in their order; None for no weights.
        weight_scale: factor of the head weights.

    Returns:
        q_fp4 [T, A, D / 2] uint8, even lanes in the low nibble; q_scale [T, 1, D / 32, 16, 4] uint8, the byte of head h
        at [h % 16, h // 16], 0 where there is no such head; weights [T, A] bfloat16, or None.

    Raises:
        ContractError: another number of heads, heads that `fp4_quantize_rows` refuses, or positions of another dtype.

    Source: A2. Two quantisations on purpose: rounding first and packing then differs from packing at once where the
    largest scaled value of a group lies between 3 and 3.5. The weights are rounded to bfloat16 before the factor too.
    """
    _require_heads(q.shape[1])
    rows = rope_tail_fp4_fake_quant(q, freqs, positions)
    payload, words = fp4_quantize_rows(rows.flatten(0, 1))
    return _for_logits(q, payload, words, partials, weight_scale)


def _compose_pack(
    ops: Any,
    q: Tensor,
    freqs: Tensor,
    positions: Tensor,
    partials: Tensor | None = None,
    weight_scale: float = 1.0,
) -> tuple[Tensor, Tensor, Tensor | None]:
    _require_heads(q.shape[1])
    rows = ops.rope_tail_fp4_fake_quant(q, freqs, positions)
    payload, words = ops.fp4_quantize_rows(rows.flatten(0, 1))
    return _for_logits(q, payload, words, partials, weight_scale)


def _for_logits(
    q: Tensor, payload: Tensor, words: Tensor, partials: Tensor | None, weight_scale: float
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return packed rows [T*A, D / 2] and scale words [T*A] as the logits kernel reads them, and the head weights."""
    tokens, heads, width = q.shape
    chunks = width // 32
    byte = words.view(tokens, heads)[..., None] >> (8 * torch.arange(chunks, device=words.device))
    scales = torch.zeros(tokens, 1, chunks, _LANES_OF_HEADS, _HEAD_GROUPS, dtype=torch.uint8, device=q.device)
    by_group = (byte & 255).to(torch.uint8).view(tokens, heads // _LANES_OF_HEADS, _LANES_OF_HEADS, chunks)
    scales[:, 0, :, :, : heads // _LANES_OF_HEADS] = by_group.permute(0, 3, 2, 1)
    return payload.view(tokens, heads, width // 2), scales, _head_weights(partials, weight_scale)


def _head_weights(partials: Tensor | None, weight_scale: float) -> Tensor | None:
    if partials is None:
        return None
    total = torch.zeros_like(partials[0])
    for partial in partials:
        total = total + partial
    return (round_bf16(total) * weight_scale).bfloat16()


def _require_heads(heads: int) -> None:
    if heads % _LANES_OF_HEADS or not 0 < heads <= _LANES_OF_HEADS * _HEAD_GROUPS:
        raise ContractError(f"index_q_rope_fp4_pack: wanted 16, 32, 48 or 64 heads, got {heads}")


def _rows(freqs: Tensor, positions: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return cosines and sines, [T, P / 2] each, of the table's rows, or of all rows without positions."""
    return (freqs[:, 0::2], freqs[:, 1::2]) if positions is None else rotations(freqs, positions)


def _within(positions: Tensor | None, length: int) -> Tensor | None:
    """Return the positions with 0 for those that are not in the table."""
    return None if positions is None else torch.where((positions >= 0) & (positions < length), positions, 0)


def _draft_sites(shapes: ModelShapes) -> tuple[Site, ...]:
    axes = {"A": shapes.heads, "D": shapes.head_dim, "P": shapes.rope_dim}
    return (Site("draft", axes=axes, strides={"q": "any", "out": "any"}),)


def _index_sites(shapes: ModelShapes) -> tuple[Site, ...]:
    return (Site("verify", axes={"A": shapes.index_heads, "D": shapes.index_head_dim, "P": shapes.rope_dim}),)


_TABLE = Argument("freqs", ("*", "P"), ("float32",), doc="table of rotations, interleaved")
_POSITIONS = Argument("positions", ("T",), ("int64", "int32"), optional=True, doc="position of each row")
_INVERSE = Option("inverse", "bool", False, doc="rotate backward")

ROPE_TAIL_COPY = Contract(
    name="rope_tail_copy",
    summary="Heads with rotated last lanes in another buffer.",
    source="A14",
    phases=("draft",),
    parameters=(
        Argument("q", ("T", "A", "D"), ("bfloat16",), strides="any", doc="heads"),
        Argument("out", ("T", "A", "D"), ("bfloat16",), strides="any", written=True, doc="heads after rotation"),
        _TABLE,
        Argument(
            "positions",
            ("T",),
            ("int64", "int32"),
            optional=True,
            doc="position of each row",
            values=index_into("freqs[0]"),
        ),
        _INVERSE,
    ),
    outputs=(Output("out", ("T", "A", "D"), "bfloat16", bitwise(), "all elements written"),),
    rows="T",
    reference=rope_tail_copy,
    cases=copy_cases,
    sites=_draft_sites,
    empty="launches nothing",
)

ROPE_TAIL_FP4_FAKE_QUANT = Contract(
    name="rope_tail_fp4_fake_quant",
    summary="Heads with rotated last lanes, all lanes rounded to fp4 values.",
    source="A2",
    phases=("verify",),
    parameters=(
        Argument("x", ("T", "A", "D"), ("bfloat16",), strides="unit_last", doc="heads; rows may be spaced"),
        *(_TABLE, _POSITIONS, _INVERSE),
        Option("scale", "str", "ue8m0_32", SCALES, doc="format of the scales and lanes that share one"),
    ),
    outputs=(Output("output", ("T", "A", "D"), "bfloat16", bitwise(), "values on the fp4 grid"),),
    rows="T",
    reference=rope_tail_fp4_fake_quant,
    cases=fake_quant_cases,
    sites=_index_sites,
)

INDEX_Q_ROPE_FP4_PACK = Contract(
    name="index_q_rope_fp4_pack",
    summary="Packed fp4 queries of the indexer, their scales and the head weights.",
    source="A2",
    phases=("verify",),
    parameters=(
        Argument("q", ("T", "A", "D"), ("bfloat16",), strides="unit_last", doc="index queries; rows may be spaced"),
        _TABLE,
        Argument("positions", ("T",), ("int64", "int32"), doc="position of each row"),
        Argument("partials", ("*", "T", "A"), ("float32",), optional=True, doc="partial sums of the head weights"),
        Option("weight_scale", "float", 1.0, doc="factor of the head weights"),
    ),
    outputs=(
        Output("q_fp4", ("T", "A", "D/2"), "uint8", bitwise(), "two codes to a byte, even lane low"),
        Output("q_scale", ("T", 1, "D/32", 16, 4), "uint8", bitwise(), "scale bytes, head h at [h % 16, h // 16]"),
        Output("weights", ("T", "A"), "bfloat16", bitwise(), "head weights", none_without="partials"),
    ),
    rows="T",
    reference=index_q_rope_fp4_pack,
    cases=pack_cases,
    sites=_index_sites,
    decomposition=Decomposition(
        ("rope_tail_fp4_fake_quant", "fp4_quantize_rows"), _compose_pack, rows={"fp4_quantize_rows": "T*A"}
    ),
)

CONTRACTS = (ROPE_TAIL_COPY, ROPE_TAIL_FP4_FAKE_QUANT, INDEX_Q_ROPE_FP4_PACK)
