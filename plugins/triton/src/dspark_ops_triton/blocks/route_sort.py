"""Routed pairs grouped by expert, in one launch whose first programs count alike, cut as data; items are pairs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from dspark_ops_triton.blocks.cutting import Cut, cut_options
from dspark_ops_triton.blocks.dependent import begin

#: Programs that sort at least: they share what lies between the pairs, too.
SORTERS = 8


#: 32-bit words of the buffer that a further program sets to zero.
ZEROS = 4096


#: Entries behind the last block that a sorting program fills at a time.
TAIL = 1024


#: Pairs that a sorting program holds.
LIMIT = 1024


BUFFERS = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}


@triton.jit
def expert_of(topk_ids, held, pair, pairs, live_rows, experts, TOP_K: tl.constexpr, MASKED: tl.constexpr,
              DEDUPE: tl.constexpr):  # fmt: skip
    """Return the expert of each pair, `experts` for a pair that takes no part."""
    row, slot = pair // TOP_K, pair % TOP_K
    there = (pair < pairs) & (row < live_rows)
    expert = tl.load(topk_ids + pair, mask=there, other=-1)
    taken = there & (expert >= 0) & (expert < experts)
    if MASKED:
        taken = taken & (tl.load(held + expert, mask=taken, other=0) != 0)
    if DEDUPE:
        for further in tl.static_range(1, TOP_K):
            later = tl.load(topk_ids + pair + further, mask=there & (slot + further < TOP_K), other=-1)
            taken = taken & (later != expert)
    return tl.where(taken, expert, experts)


@triton.jit(
    do_not_specialize=["rows", "experts", "words", "length"],
    do_not_specialize_on_alignment=["topk_ids", "topk_weights", "held", "num_valid"],
)
def sort_kernel(
    topk_ids, topk_weights, held, num_valid, sorted_ids, sorted_weights, sorted_expert_ids, num_valid_ids, buffer,
    rows, experts, words, length,
    TOP_K: tl.constexpr, PAIRS: tl.constexpr, OWN: tl.constexpr, SORTERS: tl.constexpr, EXPERTS: tl.constexpr,
    BLOCK_SIZE: tl.constexpr, MASKED: tl.constexpr, COUNTED: tl.constexpr, DEDUPE: tl.constexpr, ZEROS: tl.constexpr,
    TAIL: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """The first SORTERS programs place OWN pairs each; the others set ZEROS words of the buffer to zero each.

    A sorting program counts all pairs by itself, so that it needs nothing of the others. PAIRS and EXPERTS are powers
    of two, EXPERTS above the number of experts: one more stands for "no part".
    """
    begin(PDL)
    program = tl.program_id(0)
    if program >= SORTERS:
        word = (program - SORTERS).to(tl.int64) * ZEROS + tl.arange(0, ZEROS)
        tl.store(buffer + word, tl.zeros((ZEROS,), tl.int32), mask=word < words)
    else:
        live_rows = rows
        if COUNTED:
            live_rows = tl.minimum(tl.load(num_valid), rows)
        pairs = rows * TOP_K
        other = tl.arange(0, PAIRS)
        theirs = expert_of(topk_ids, held, other, pairs, live_rows, experts, TOP_K, MASKED, DEDUPE)
        pair = program * OWN + tl.arange(0, OWN)
        group = expert_of(topk_ids, held, pair, pairs, live_rows, experts, TOP_K, MASKED, DEDUPE)
        taken = group < experts
        weight = tl.load(topk_weights + pair, mask=taken, other=0.0)

        expert = tl.arange(0, EXPERTS)
        counts = tl.where(expert < experts, tl.histogram(theirs, EXPERTS), 0)
        blocks = tl.cdiv(counts, BLOCK_SIZE)
        starts = tl.cumsum(blocks, axis=0) - blocks
        # The others along the first axis: most of their sum then stays within a thread. Those before a pair in its
        # group are at most `pair` below it in the order of group and pair: as unsigned numbers one comparison tells.
        below = (group * PAIRS + pair - 1)[None, :] - (theirs * PAIRS + other)[:, None]
        before = below.to(tl.uint32, bitcast=True) < pair.to(tl.uint32, bitcast=True)[None, :]
        rank = tl.sum(before.to(tl.int32), axis=0)
        place = tl.gather(starts, group, 0) * BLOCK_SIZE + rank
        tl.store(sorted_ids + place, ((pair % TOP_K) << 24) | (pair // TOP_K), mask=taken)
        tl.store(sorted_weights + place, weight, mask=taken)
        local = expert
        if MASKED:
            mine = (tl.load(held + expert, mask=expert < experts, other=0) != 0).to(tl.int32)
            local = tl.cumsum(mine, axis=0) - mine
        # What is left of an expert's last block: fewer than BLOCK_SIZE entries.
        for further in range(program, BLOCK_SIZE - 1, SORTERS):
            filler = counts + further
            empty = filler < blocks * BLOCK_SIZE
            tl.store(sorted_ids + starts * BLOCK_SIZE + filler, tl.zeros((EXPERTS,), tl.int32) + ((TOP_K << 24) | rows),
                     mask=empty)  # fmt: skip
            tl.store(sorted_weights + starts * BLOCK_SIZE + filler, tl.zeros((EXPERTS,), tl.float32), mask=empty)
        for further in range(program, tl.max(blocks, axis=0), SORTERS):
            tl.store(sorted_expert_ids + starts + further, local, mask=further < blocks)
        # Nobody may count on what lies behind, but equal calls give equal bits.
        used = tl.sum(blocks, axis=0)
        for first in range(used * BLOCK_SIZE + program * TAIL, length, SORTERS * TAIL):
            entry = first + tl.arange(0, TAIL)
            tl.store(sorted_ids + entry, tl.zeros((TAIL,), tl.int32) + ((TOP_K << 24) | rows), mask=entry < length)
            tl.store(sorted_weights + entry, tl.zeros((TAIL,), tl.float32), mask=entry < length)
        for first in range(used + program * TAIL, tl.cdiv(length, BLOCK_SIZE), SORTERS * TAIL):
            entry = first + tl.arange(0, TAIL)
            behind = entry < tl.cdiv(length, BLOCK_SIZE)
            tl.store(sorted_expert_ids + entry, tl.zeros((TAIL,), tl.int32), mask=behind)
        if program == 0:
            tl.store(num_valid_ids, used * BLOCK_SIZE)
            if COUNTED:
                live_rows = tl.load(num_valid)
            tl.store(num_valid_ids + 1, live_rows)


def moe_sort(
    cut: Cut,
    topk_ids: Tensor,
    topk_weights: Tensor,
    experts: int,
    model_dim: int,
    block_size: int = 32,
    buffer_dtype: str = "bfloat16",
    accumulate: bool = False,
    expert_mask: Tensor | None = None,
    num_valid: Tensor | None = None,
    dedupe: bool = False,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Return pairs grouped by expert in whole blocks: ``moe_sort`` (A4), arguments as in its contract."""
    rows, top_k = topk_ids.shape
    device = topk_ids.device
    fits = 1 <= top_k <= min(experts, 127) and block_size >= 1 and rows * top_k <= LIMIT and buffer_dtype in BUFFERS
    if not fits or model_dim < 1 or model_dim * BUFFERS[buffer_dtype].itemsize % 16:
        got = (
            f"{rows} rows of {top_k}, {experts} experts, blocks of {block_size}, {model_dim} columns of {buffer_dtype}"
        )
        raise ValueError(f"moe_sort: wanted up to {LIMIT} pairs and 127 slots, and rows of whole 16 bytes, got {got}")
    length = rows * top_k + experts * block_size - top_k
    zeroed = expert_mask is not None or accumulate
    shape = (rows, model_dim) if zeroed else (0, 0)
    buffer = torch.empty(shape, dtype=BUFFERS[buffer_dtype], device=device)
    sorted_ids = torch.empty(length, dtype=torch.int32, device=device)
    sorted_weights = torch.empty(length, dtype=torch.float32, device=device)
    expert_ids = torch.empty(triton.cdiv(length, block_size), dtype=torch.int32, device=device)
    if not rows:
        return sorted_ids, sorted_weights, expert_ids, torch.zeros(2, dtype=torch.int32, device=device), buffer
    totals = torch.empty(2, dtype=torch.int32, device=device)
    words = buffer.numel() * buffer.element_size() // 4
    constants = launch_constants(
        cut, rows, top_k, experts, block_size, expert_mask is not None, num_valid is not None, dedupe
    )  # fmt: skip
    sort_kernel[(constants["SORTERS"] + triton.cdiv(words, ZEROS),)](
        topk_ids, topk_weights, topk_ids if expert_mask is None else expert_mask,
        topk_ids if num_valid is None else num_valid, sorted_ids, sorted_weights, expert_ids, totals,
        buffer.view(torch.int32) if zeroed else totals, rows, experts, words, length,
        **constants, **cut_options(cut),
    )  # fmt: skip
    return sorted_ids, sorted_weights, expert_ids, totals, buffer


def launch_constants(
    cut: Cut, rows: int, top_k: int, experts: int, block_size: int, masked: bool, counted: bool, dedupe: bool
) -> dict[str, Any]:
    """Return the compile-time arguments of a launch."""
    pairs = max(64, triton.next_power_of_2(rows * top_k))
    return {
        "TOP_K": top_k, "PAIRS": pairs, "OWN": cut.items, "SORTERS": max(SORTERS, pairs // cut.items),
        "EXPERTS": triton.next_power_of_2(experts + 1), "BLOCK_SIZE": block_size, "MASKED": masked, "COUNTED": counted,
        "DEDUPE": dedupe, "ZEROS": ZEROS, "TAIL": TAIL, "PDL": cut.pdl,
    }  # fmt: skip


def compile_moe_sort(call: Callable[..., Any], site: Any, rows: Sequence[int]) -> None:
    """Call `moe_sort`, cut somehow, once per build that a site needs."""
    top_k, experts = site.axes["K"], site.axes["E"]
    one = torch.ones(1, dtype=torch.int32, device="cuda")
    mask = torch.ones(experts, dtype=torch.int32, device="cuda")
    names = ("model_dim", "block_size", "buffer_dtype", "accumulate")
    options = {name: site.options[name] for name in names}
    for pairs in sorted({max(64, triton.next_power_of_2(count * top_k)) for count in rows if count}):
        ids = torch.zeros(pairs // top_k, top_k, dtype=torch.int32, device="cuda")
        for held in (None, mask):
            for count in (None, one):
                call(ids, ids.float(), experts, expert_mask=held, num_valid=count, **options)
