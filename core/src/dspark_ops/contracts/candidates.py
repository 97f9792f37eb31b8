"""Candidate blocks: a source layer publishes the best blocks of entries, and later index layers search only there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from dspark_ops._lazy import torch
from dspark_ops.contracts._candidate_cases import block_cases, length_cases
from dspark_ops.contracts.contract import Argument, Contract, Option, Output, Semantic, Site
from dspark_ops.contracts.exactness import bitwise
from dspark_ops.contracts.ordering import order_by_score
from dspark_ops.contracts.values import between
from dspark_ops.errors import ContractError

if TYPE_CHECKING:
    from torch import Tensor

    from dspark_ops.contracts.model_shapes import ModelShapes


def candidate_blocks(
    logits: Tensor, seq_lens: Tensor, published: Tensor | None = None, topk_blocks: int = 2048, block_size: int = 8
) -> tuple[Tensor, Tensor | None]:
    """Return the logits that a row may use, and in a source layer which entries it publishes to later layers.

    Source layer (no `published`): a block's score is its largest visible logit, NaN if one of them is NaN; the block of
    the newest visible entry has score +inf, even if it holds a NaN. The `topk_blocks` blocks of largest score are
    chosen, NaN before +inf, the lowest of equal ones first; a chosen block whose score is NaN or -inf is not kept. So
    blocks of NaN use up places, and they alone (or other +inf) can keep the newest block out.

    Consumer (with `published`): only what is visible and published keeps its logit; nothing is chosen.

    Args:
        logits: [R, W] float32, bfloat16 or float16, last stride 1. What lies behind the visible part is not used.
        seq_lens: [R] int32, visible entries of each row, 0 to W.
        published: [R, W] bool, kept entries of the source layer.
        topk_blocks: blocks that a row keeps at most.
        block_size: entries of a block; the last block may be shorter.

    Returns:
        masked: [R, W] float32, the logits, -inf where a row may not look. A visible NaN stays.
        keep: [R, W] bool, entries in kept blocks, whole blocks, also behind the newest entry; None for a consumer.

    Raises:
        ContractError: `topk_blocks` or `block_size` is not positive, or `published` has another shape.

    Source: N10.3, N10.4, choice 2 of the index. The set is what counts: with ``ties = "any"`` another set of equal
    scores may be kept, and with ``nan = "ignored"`` a NaN does not take part in its block's score.
    """
    _require_sizes("candidate_blocks", topk_blocks, block_size)
    if published is not None and published.shape != logits.shape:
        raise ContractError(f"candidate_blocks: wanted published {list(logits.shape)}, got {list(published.shape)}")
    rows, width = logits.shape
    visible = torch.arange(width, device=logits.device) < seq_lens[:, None]
    if published is not None:
        return torch.where(visible & published, logits.float(), -torch.inf), None
    masked = torch.where(visible, logits.float(), -torch.inf)

    blocks = -(-width // block_size)
    padded = torch.nn.functional.pad(masked, (0, blocks * block_size - width), value=-torch.inf)
    score = padded.view(rows, blocks, block_size).amax(-1)
    newest = torch.arange(blocks, device=logits.device) == ((seq_lens - 1) // block_size)[:, None]
    score = torch.where(newest & (seq_lens > 0)[:, None], torch.inf, score)
    chosen = order_by_score(score)[:, :topk_blocks]
    kept = torch.zeros_like(score, dtype=torch.bool).scatter(1, chosen, True) & (score > -torch.inf)
    return masked, kept.repeat_interleave(block_size, 1)[:, :width].contiguous()


def candidate_lengths(
    seq_lens: Tensor, topk_blocks: int = 2048, block_size: int = 8, exact_tail: bool = False
) -> tuple[Tensor, Tensor, Tensor]:
    """Return how many blocks each row has, how long its packed candidates are, and their page table.

    Args:
        seq_lens: [R] int32, visible entries of each row, not negative.
        topk_blocks: blocks that a row keeps at most.
        block_size: entries of a block.
        exact_tail: count only the visible entries of the newest block, which is then packed last; otherwise every kept
            block counts whole.

    Returns:
        block_lens: [R] int32, blocks that hold a visible entry, kept or not.
        compact_lens: [R] int32, entries of the kept blocks.
        compact_page_table: [R, 1] int32 zeros: with pages that hold all packed entries of a row, a power of two, it
            maps every entry to itself, so that the paged selection runs on the packed row.

    Raises:
        ContractError: `topk_blocks` or `block_size` is not positive.

    Source: A15 (whole blocks), N10.5 (exact tail).
    """
    _require_sizes("candidate_lengths", topk_blocks, block_size)
    block_lens = (seq_lens + block_size - 1) // block_size
    compact = block_lens.clamp(max=topk_blocks) * block_size
    if exact_tail:
        compact = torch.where(seq_lens > 0, compact - block_size + (seq_lens - 1) % block_size + 1, 0)
    return block_lens.int(), compact.int(), seq_lens.new_zeros(len(seq_lens), 1, dtype=torch.int32)


def _require_sizes(operator: str, topk_blocks: int, block_size: int) -> None:
    if topk_blocks < 1 or block_size < 1:
        raise ContractError(
            f"{operator}: wanted positive topk_blocks and block_size, got {topk_blocks} and {block_size}"
        )


def _sites(shapes: ModelShapes) -> tuple[Site, ...]:
    return (Site("verify", strides={"logits": "unit_last"}, options=_block_options(shapes)),)


def _length_sites(shapes: ModelShapes) -> tuple[Site, ...]:
    return (Site("verify", options=_block_options(shapes)),)


def _block_options(shapes: ModelShapes) -> dict[str, int]:
    return {"topk_blocks": shapes.candidate_topk_blocks, "block_size": shapes.candidate_block_size}


_SEQ_LENS = Argument("seq_lens", ("R",), ("int32",), doc="visible entries of each row", values=between(0, "logits[1]"))
_TOPK_BLOCKS = Option("topk_blocks", "int", 2048, doc="blocks that a row keeps at most")
_BLOCK_SIZE = Option("block_size", "int", 8, doc="entries of a block")


def _like_logits(arguments: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(arguments["logits"].shape)


CANDIDATE_BLOCKS = Contract(
    name="candidate_blocks",
    summary="Index logits that a row may use, and the entries that it publishes to later layers.",
    source="N10.3, N10.4",
    phases=("verify",),
    parameters=(
        Argument("logits", ("R", "*"), ("float32", "bfloat16", "float16"), strides="unit_last", doc="index scores"),
        _SEQ_LENS,
        Argument("published", ("R", "*"), ("bool",), strides="unit_last", optional=True, doc="entries of the source"),
        *(_TOPK_BLOCKS, _BLOCK_SIZE),
    ),
    outputs=(
        Output("masked", ("R", "*"), "float32", bitwise(), "logits, -inf where not allowed", shape_of=_like_logits),
        Output(
            "keep",
            ("R", "*"),
            "bool",
            bitwise(),
            "entries in kept blocks; None for a consumer",
            none_with="published",
            shape_of=_like_logits,
        ),
    ),
    rows="R",
    reference=candidate_blocks,
    cases=block_cases,
    sites=_sites,
    semantics=(
        Semantic("ties", "lowest", ("lowest", "torch", "any"), "which of several equally good blocks are kept"),
        Semantic("nan", "dropped", ("dropped", "ignored"), "what a NaN does to its block"),
    ),
)

CANDIDATE_LENGTHS = Contract(
    name="candidate_lengths",
    summary="Blocks and packed length of each row's candidates, with a page table that maps them to themselves.",
    source="A15, N10.5",
    phases=("verify",),
    parameters=(
        replace(_SEQ_LENS, values=between(0, None)), _TOPK_BLOCKS, _BLOCK_SIZE,
        Option("exact_tail", "bool", False, doc="count only the visible entries of the newest block"),
    ),
    outputs=(
        Output("block_lens", ("R",), "int32", bitwise(), "blocks that hold a visible entry"),
        Output("compact_lens", ("R",), "int32", bitwise(), "entries of the kept blocks"),
        Output("compact_page_table", ("R", 1), "int32", bitwise(), "zeros"),
    ),
    rows="R",
    reference=candidate_lengths,
    cases=length_cases,
    sites=_length_sites,
    small=True,
)  # fmt: skip

CONTRACTS = (CANDIDATE_BLOCKS, CANDIDATE_LENGTHS)
