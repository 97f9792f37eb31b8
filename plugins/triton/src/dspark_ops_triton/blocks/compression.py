"""Compressed entries of single tokens and of pairs in the layout ``kv_v4``; the warps of a row are data."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from dspark_ops_triton.blocks.alignment import stride_unit
from dspark_ops_triton.blocks.dependent_stages import begin_at
from dspark_ops_triton.blocks.keep_last import SEARCHED, keep_last_kernel
from dspark_ops_triton.blocks.kv_v4 import (
    GROUP,
    GROUPS,
    LANES,
    ROPE,
    WIDTH,
    load_groups,
    load_last_turns,
    normalise_groups,
    page_shift,
    page_units,
    store_compressed_entry,
    store_groups,
)
from dspark_ops_triton.blocks.launching import RowTiles, row_options
from dspark_ops_triton.blocks.pairs import copy_row, pool_pair

FORMS = ("decode", "verify", "extend")


VERIFY, EXTEND = tl.constexpr("verify"), tl.constexpr("extend")


@triton.jit(
    do_not_specialize=["kv_stride", "slots", "page_shift", "page_units"],
    do_not_specialize_on_alignment=["positions", "out_loc"],
)
def compress_c1_kernel(
    kv, weight, freqs, positions, out_loc, cache, latents, kv_stride, slots, page_shift, page_units, eps,
    UNIT: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Normalise one row and store its entry; `kv_stride` counts groups of UNIT elements."""
    row = tl.program_id(0).to(tl.int64)
    kv += row * kv_stride * UNIT
    gain = load_groups(weight)  # no kernel of a step writes weights: it comes while the one before may still be running
    begin_at((kv, positions, out_loc, freqs, cache, latents, slots), PDL)
    # All loads but the table's are under way together; that one waits for the position alone.
    slot = tl.load(out_loc + row).to(tl.int64)
    place = tl.load(positions + row).to(tl.int64)
    groups = load_groups(kv)
    kept = (slot > 0) & (slot < slots)
    cosines, sines = load_last_turns(freqs + place * GROUP, kept)
    latent = normalise_groups(groups, gain, eps).to(tl.bfloat16)
    store_groups(latents + row * LANES, latent)
    if kept:
        store_compressed_entry(cache, slot, latent, cosines, sines, page_shift, page_units)


@triton.jit(
    do_not_specialize=["slots", "page_shift", "page_units", "ring_size", "draft_len"],
    do_not_specialize_on_alignment=["positions", "requests", "out_loc"],
)
def compress_c2_kernel(
    kv_score, state, weight, freqs, positions, requests, out_loc, cache, latents,
    slots, page_shift, page_units, ring_size, draft_len, eps,
    FORM: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Pool, normalise and store the pair that one row completes, or put the row into the ring.

    No row of these forms is put where another one reads: a block is shorter than the ring. The form ``extend`` has no
    such bound, and its rows are put into the ring by the next launch.
    """
    row = tl.program_id(0).to(tl.int64)
    own = kv_score + row * (2 * LANES)
    first = tl.program_id(0) % draft_len == 0
    gain = load_groups(weight)  # no kernel of a step writes weights: it comes while the one before may still be running
    begin_at((own, positions, requests, out_loc, state, cache, latents, slots, first), PDL)
    slot = tl.load(out_loc + row).to(tl.int64)
    place = tl.load(positions + row).to(tl.int64)
    ring = tl.load(requests + row) * ring_size
    live, odd = slot != 0, place % 2 == 1
    if live & odd:
        # In 32 bits, which hold every position that a table has a row for: 64 take several times as long.
        partner = state + (ring + (place - 1).to(tl.int32) % ring_size) * (2 * LANES)
        if FORM == VERIFY:
            if not first:
                partner = own - 2 * LANES
        elif FORM == EXTEND:
            before = tl.maximum(row - 1, 0)
            same = tl.load(requests + before) == tl.load(requests + row)
            follows = tl.load(positions + before).to(tl.int64) + 1 == place
            if (row > 0) & same & follows & (tl.load(out_loc + before) != 0):
                partner = own - 2 * LANES
        entry = slot >> 1
        kept = (entry >= 0) & (entry < slots)
        cosines, sines = load_last_turns(freqs + (place - 1) * GROUP, kept)
        pooled = pool_pair(partner, own).to(tl.bfloat16)
        latent = normalise_groups(pooled, gain, eps).to(tl.bfloat16)
        store_groups(latents + row * LANES, latent)
        if kept:
            store_compressed_entry(cache, entry, latent, cosines, sines, page_shift, page_units)
    else:
        store_groups(latents + row * LANES, tl.zeros((GROUPS, GROUP), tl.bfloat16))
        if live & (FORM != EXTEND):
            copy_row(own, state + (ring + place.to(tl.int32) % ring_size) * (2 * LANES))


def compress_c1(
    tiles: RowTiles, kv: Tensor, weight: Tensor, freqs: Tensor, positions: Tensor, out_loc: Tensor, cache: Tensor,
    page_size: int, layout: str = "kv_v4", eps: float = 1e-20,
) -> Tensor:  # fmt: skip
    """Return latents and store entries: ``compress_c1`` (N8.2), arguments as in its contract."""
    units = _units("compress_c1", kv.shape[1], freqs, cache, page_size, layout)
    latents = torch.empty(kv.shape[0], WIDTH, dtype=torch.bfloat16, device=kv.device)
    if kv.shape[0]:
        unit = stride_unit(kv)
        compress_c1_kernel[(kv.shape[0],)](
            kv, weight, freqs, positions, out_loc, cache, latents,
            kv.stride(0) // unit, cache.shape[0] * page_size, page_shift(page_size), units, eps,
            UNIT=unit, PDL=tiles.pdl, **row_options(tiles),
        )  # fmt: skip
    return latents


def compress_c2(
    tiles: RowTiles, kv_score: Tensor, state: Tensor, weight: Tensor, freqs: Tensor, positions: Tensor,
    requests: Tensor, out_loc: Tensor, cache: Tensor, page_size: int, ring_size: int, form: str = "decode",
    draft_len: int = 1, layout: str = "kv_v4", eps: float = 1e-20,
) -> Tensor:  # fmt: skip
    """Return latents of pairs and store entries: ``compress_c2`` (N8.3), arguments as in its contract."""
    rows = kv_score.shape[0]
    if form not in FORMS or (form == "verify" and (draft_len < 1 or rows % draft_len or ring_size <= draft_len)):
        wanted = f"form {', '.join(FORMS)}, whole requests of draft_len rows, ring_size above draft_len"
        got = f"form {form!r}, {rows} rows, draft_len {draft_len}, ring_size {ring_size}"
        raise ValueError(f"compress_c2: wanted {wanted}, got {got}")
    units = _units("compress_c2", kv_score.shape[1] // 2, freqs, cache, page_size, layout)
    latents = torch.empty(rows, WIDTH, dtype=torch.bfloat16, device=kv_score.device)
    if rows:
        compress_c2_kernel[(rows,)](
            kv_score, state, weight, freqs, positions, requests, out_loc, cache, latents,
            cache.shape[0] * page_size, page_shift(page_size), units, ring_size, draft_len, eps,
            FORM=form, PDL=tiles.pdl, **row_options(tiles),
        )  # fmt: skip
        if form == "extend":
            keep_last_kernel[(rows,)](
                kv_score, state, positions, requests, out_loc, rows, ring_size,
                SEARCHED=SEARCHED, PDL=tiles.pdl, **row_options(tiles),
            )  # fmt: skip
    return latents


def _units(operator: str, width: int, freqs: Tensor, cache: Tensor, page_size: int, layout: str) -> int:
    if layout != "kv_v4" or width != WIDTH or freqs.shape[1] != ROPE:
        got = f"layout {layout}, {width} and {freqs.shape[1]}"
        raise ValueError(f"{operator}: wanted layout kv_v4, {WIDTH} lanes and {ROPE} rotated ones, got {got}")
    return page_units(operator, cache, page_size)


def compile_compress_c1(call: Callable[..., Any], site: Any, rows: Sequence[int]) -> None:
    """Call the operator once per build: positions and slots of either dtype, rows at 16-byte boundaries."""
    weight, freqs, integers, cache = _inputs()
    for positions in integers:
        for slots in integers:
            call(weight[None], weight, freqs, positions, slots, cache, 1)


def compile_compress_c2(call: Callable[..., Any], site: Any, rows: Sequence[int]) -> None:
    """Call the operator once per build: its forms, positions and slots of one dtype."""
    weight, freqs, integers, cache = _inputs()
    row = torch.zeros(1, 2 * WIDTH, device="cuda")
    state = torch.zeros(2, 2 * WIDTH, device="cuda")
    for both in integers:
        for form in FORMS:
            call(row, state, weight, freqs, both, integers[0], both, cache, 1, 2, form)


def _inputs() -> tuple[Tensor, Tensor, tuple[Tensor, Tensor], Tensor]:
    """Return a weight, a table of one row, a zero as int64 and as int32, and a cache of one slot."""
    zero = torch.zeros(1, dtype=torch.int64, device="cuda")
    weight = torch.zeros(WIDTH, dtype=torch.bfloat16, device="cuda")
    cache = torch.zeros(1, 1152, dtype=torch.uint8, device="cuda")
    return weight, torch.zeros(1, ROPE, device="cuda"), (zero, zero.int()), cache
