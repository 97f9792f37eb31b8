"""Split-KV schedule of the sparse decode attention: which blocks of which request each part of the chip works on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dspark_ops._lazy import torch
from dspark_ops.contracts._mla_schedule_cases import sched_meta_cases
from dspark_ops.contracts.contract import Argument, Contract, Option, Output, Site
from dspark_ops.contracts.exactness import bitwise
from dspark_ops.contracts.values import between
from dspark_ops.errors import ContractError

if TYPE_CHECKING:
    from torch import Tensor

    from dspark_ops.contracts.model_shapes import ModelShapes

FORMS = ("sparse", "dense")


def mla_sched_meta(
    lengths: Tensor,
    meta: Tensor,
    num_splits: Tensor,
    extra_lengths: Tensor | None = None,
    extra_topk: int = 0,
    form: str = "sparse",
    overhead: int = 5,
    block_size: int = 64,
) -> None:
    """Write one work record per part and the running number of splits, for attention over paged KV in P parts.

    A part takes blocks in the order of the requests until its share is used up; a request may be split over parts. A
    record holds, word by word: 0 first request, 1 last request, 2 first block (of the first request), 3 end block (of
    the last request, exclusive), 4 splits of the first request that earlier parts made, 5 whether the first request is
    split, 6 whether the last one is, 7 zero. A part that is left without work has B in word 0 and B - 1 in word 1, the
    end of request B - 1 in word 3, and zeros.

    Args:
        lengths: [B] int32, entries of each request, not negative: the first columns of its index row that count
            (``sparse``), or its cached positions (``dense``). Engines that give no lengths mean the full row: fill it.
        meta: [P, 8] int32, written whole.
        num_splits: [B + 1] int32, written: splits of all requests before b.
        extra_lengths: [B] int32, entries of the second cache, which come after the first one's, rounded up to whole
            blocks. None with an `extra_topk`: that many for every request.
        extra_topk: columns of the second cache's index row; 0 means that there is no second cache.
        form: ``sparse`` counts a length of 0 as 1, so that every request has a block; ``dense`` keeps it.
        overhead: cost of one more request or split of a part, in blocks.
        block_size: entries of a block.

    Raises:
        ContractError: no request, no part, sizes that do not fit each other, an unknown form, a second cache of a dense
            one, or extra lengths without a second cache. Nothing is written then.

    Source: N4, choice 15 of the index. Integers only; nothing is read back to the host.
    """
    _require(lengths, meta, num_splits, extra_lengths, extra_topk, form)
    batch, parts = lengths.shape[0], meta.shape[0]
    length = lengths.long().clamp(min=1) if form == "sparse" else lengths.long()
    if extra_topk:
        main = (length + block_size - 1) // block_size * block_size
        length = main + (extra_topk if extra_lengths is None else extra_lengths.long())
    blocks = (length - 1).clamp(min=0) // block_size + 1
    before = torch.nn.functional.pad((blocks + overhead).cumsum(0), (1, 0))  # cost of all requests before b
    share = (before[-1:] + parts - 1) // parts + overhead

    begins = [before.new_zeros(3, 1)]  # request, block and split at which each part begins, and where the last one ends
    for _ in range(parts):
        request, block, split = begins[-1]
        reach = before[request] + block + share
        stop = torch.searchsorted(before, reach, right=True) - 1  # the first request that this part does not finish
        taken = torch.where(stop < batch, (reach - before[stop] - overhead).clamp(min=0), 0)
        made = torch.where(stop == request, split, 0) + 1
        begins.append(torch.stack([stop, taken, torch.where(taken > 0, made, 0)]))
    request, block, split = torch.cat(begins, 1)

    last_request = request[1:] - (block[1:] == 0).long()
    whole = torch.where(length == 0, 0, blocks)[last_request]
    end_block = torch.where(block[1:] > 0, block[1:], whole)
    first_is_split, last_is_split = block[:-1] > 0, end_block != whole
    either = (request[:-1] == last_request) & (first_is_split | last_is_split)
    words = (request[:-1], last_request, block[:-1], end_block, split[:-1], first_is_split | either,
             last_is_split | either, torch.zeros_like(end_block))  # fmt: skip
    meta.copy_(torch.stack([word.int() for word in words], 1))
    inside = torch.zeros_like(before).index_add_(0, request[1:], (block[1:] > 0).long())  # ends of parts in a request
    num_splits.copy_(torch.nn.functional.pad((inside[:batch] + 1).cumsum(0), (1, 0)))


def num_sm_parts(family: str, units: int, query_rows: int, heads: int, head_dim: int = 512) -> tuple[int, int]:
    """Return the parts P that the attention kernel of an architecture works in, and its overhead in blocks.

    Args:
        family: ``sm_9x`` or ``sm_10x``, the families whose kernels read these records.
        units: multiprocessors of the device.
        query_rows: rows of a request that share one length.
        heads: query heads after padding: a multiple of 64 on ``sm_9x``, 64 or 128 on ``sm_10x``.
        head_dim: 512, or 576 for latent KV with separate rotated lanes.

    Raises:
        ContractError: another family, or heads that its kernel does not have.

    Source: N4.1.
    """
    if family == "sm_9x" and heads > 0 and heads % 64 == 0:
        return max(units // query_rows // (heads // 64), 1), 5
    if family == "sm_10x" and heads in (64, 128):
        halved = heads == 128 and head_dim == 512
        return (max(units // query_rows // 2, 1), 3) if halved else (max(units // query_rows, 1), 5)
    raise ContractError(
        f"num_sm_parts: wanted family sm_9x with a multiple of 64 heads, or sm_10x with 64 or 128, "
        f"got {family!r} with {heads}"
    )


def covered_blocks(meta: list[list[int]], lengths: list[int], block_size: int = 64) -> list[tuple[int, int, int]]:
    """Return (request, block, split) for every block that the records assign, in the order of the parts.

    Args:
        meta: records as `mla_sched_meta` writes them.
        lengths: entries of each request, as the walk saw them (N4.2).
        block_size: entries of a block.
    """
    covered = []
    for first, last, begin, end, split, *_ in meta:
        for request in range(first, last + 1):
            start = begin if request == first else 0
            stop = end if request == last else -(-lengths[request] // block_size)
            covered += [(request, block, split if request == first else 0) for block in range(start, stop)]
    return covered


def _require(
    lengths: Tensor, meta: Tensor, num_splits: Tensor, extra_lengths: Tensor | None, extra_topk: int, form: str
) -> None:
    batch, parts = lengths.shape[0], meta.shape[0]
    if form not in FORMS:
        raise ContractError(f"mla_sched_meta: form is {form!r}: wanted {' or '.join(FORMS)}")
    if form == "dense" and extra_topk:
        raise ContractError(f"mla_sched_meta: extra_topk is {extra_topk}: a dense cache has no second one, wanted 0")
    if extra_lengths is not None and not extra_topk:
        raise ContractError("mla_sched_meta: extra_lengths are given: wanted extra_topk, the columns they count, too")
    if batch < 1 or parts < 1:
        raise ContractError(f"mla_sched_meta: wanted at least one request and one part, got {batch} and {parts}")
    if list(meta.shape) != [parts, 8] or list(num_splits.shape) != [batch + 1]:
        raise ContractError(
            f"mla_sched_meta: wanted meta [P, 8] and num_splits [{batch + 1}] for {batch} requests, "
            f"got {list(meta.shape)} and {list(num_splits.shape)}"
        )


def _sites(shapes: ModelShapes) -> tuple[Site, ...]:
    # Every row has its own length, so rows are requests here. Draft rows see the window and no compressed entries.
    return (Site("verify", options={"extra_topk": shapes.index_topk}), Site("draft", options={"extra_topk": 0}))


MLA_SCHED_META = Contract(
    name="mla_sched_meta",
    summary="Work records and split counts of the split-KV decode attention.",
    source="N4",
    phases=("verify", "draft"),
    parameters=(
        Argument("lengths", ("B",), ("int32",), doc="entries of each request", values=between(0, None)),
        Argument("meta", ("*", 8), ("int32",), written=True, doc="one record per part"),
        Argument("num_splits", ("B+1",), ("int32",), written=True, doc="splits of the requests before each"),
        Argument(
            "extra_lengths",
            ("B",),
            ("int32",),
            optional=True,
            doc="entries of the second cache",
            values=between(0, None),
        ),
        Option("extra_topk", "int", 0, doc="columns of the second cache; 0 for none"),
        Option("form", "str", "sparse", FORMS, "whether a length of 0 counts as 1"),
        Option("overhead", "int", 5, doc="cost of one more request or split, in blocks"),
        Option("block_size", "int", 64, doc="entries of a block", values=between(1, None)),
    ),
    outputs=(
        Output("meta", ("*", 8), "int32", bitwise(), "work record of each part; word 7 is 0"),
        Output("num_splits", ("B+1",), "int32", bitwise(), "running number of splits"),
    ),
    rows="B",
    reference=mla_sched_meta,
    cases=sched_meta_cases,
    sites=_sites,
    empty="is refused: a step without requests has no schedule",
)

CONTRACTS = (MLA_SCHED_META,)
