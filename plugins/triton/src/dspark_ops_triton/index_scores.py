"""Portable ``index_scores``: queries against a row's paged fp4 keys on matrix units."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from dspark_ops_triton.blocks.codes import e2m1_value, power_of_two
from dspark_ops_triton.blocks.dependent import begin, pdl_option
from dspark_ops_triton.blocks.launching import prepare_launch
from dspark_ops_triton.blocks.rotary import split_pairs
from dspark_ops_triton.blocks.tile_table import tiles_for

WIDTH = 128
#: Payload bytes, groups of 32 lanes, and payload bytes of a group, of a key.
BYTES, GROUPS, GROUP_BYTES = tl.constexpr(64), tl.constexpr(4), tl.constexpr(16)
MOST_HEADS = 64
#: Entries of a row: its programs are the grid's second dimension, which has 16 bits.
MOST_ENTRIES = 2**21


@dataclass(frozen=True, slots=True)
class Tiles:
    """How a row is cut for one family of devices.

    Attributes:
        entries: keys of a program at a time, a power of two from 16 on.
        warps: warps (waves on AMD) of a program.
        programs: as long as there are more programs than twice these, each takes another `entries` keys with the same
            query; 0: never.
        pdl: the kernel is set up while the one before it runs.
    """

    entries: int
    warps: int
    programs: int = 0
    pdl: bool = False


TILES = Tiles(entries=64, warps=4, programs=2112)
AMD_TILES = Tiles(entries=64, warps=4)


@triton.jit
def scaled_codes(code, factor, ENTRIES: tl.constexpr):
    """Return the bfloat16 values [ENTRIES, 64] of e2m1 codes, each group of 16 under its factor [ENTRIES, 4]; exact."""
    value = tl.reshape(e2m1_value(code), (ENTRIES, GROUPS, GROUP_BYTES)) * factor[:, :, None]
    return tl.reshape(value, (ENTRIES, BYTES)).to(tl.bfloat16)


@triton.jit
def load_pairs(q, row, head, heads):
    """Return the even and the odd lanes, bfloat16 [64, HEADS] each, of a row's heads; 0 where there is none."""
    HEADS: tl.constexpr = head.shape[0]
    place = (row * heads + head[:, None]) * (2 * BYTES) + tl.arange(0, 2 * BYTES)[None, :]
    even, odd = split_pairs(tl.load(q + place, mask=(head < heads)[:, None], other=0.0), HEADS, 2 * BYTES)
    return tl.trans(even), tl.trans(odd)


@triton.jit
def score_entries(
    even, odd, weight, cache, pages, out, entry, length, width, page_shift,
    ENTRIES: tl.constexpr, STEPS: tl.constexpr, ALIGNED: tl.constexpr,
):  # fmt: skip
    """Write the scores of entries [ENTRIES] of one row, whose pages are at `pages` and whose scores begin at `out`."""
    visible = entry < length
    page = tl.load(pages + (entry >> page_shift), mask=visible, other=0).to(tl.int64)
    inside = entry - ((entry >> page_shift) << page_shift)
    start = (page << page_shift) * (BYTES + GROUPS)
    if ALIGNED:
        start = tl.multiple_of(start, 16)
    byte = tl.arange(0, BYTES)[None, :]
    payload = tl.load(cache + (start + inside * BYTES)[:, None] + byte, mask=visible[:, None], other=0)
    scales = cache + start + (BYTES << page_shift) + inside * GROUPS
    scale = tl.load(scales[:, None] + tl.arange(0, GROUPS)[None, :], mask=visible[:, None], other=127)
    factor = power_of_two(scale.to(tl.int32))
    code = payload.to(tl.int32)
    dots = tl.dot(scaled_codes(code & 15, factor, ENTRIES), even)
    dots = tl.dot(scaled_codes(code >> 4, factor, ENTRIES), odd, dots)
    if STEPS:
        dots = dots.to(tl.bfloat16).to(tl.float32)
        product = (tl.maximum(dots, 0.0) * weight).to(tl.bfloat16).to(tl.float32)
        total = tl.sum(product, axis=1).to(tl.bfloat16).to(tl.float32)
    else:
        total = tl.sum(tl.maximum(dots, 0.0) * weight, axis=1)
    tl.store(out + entry, tl.where(visible, total, float("-inf")), mask=entry < width)


@triton.jit(
    do_not_specialize=["heads", "width", "table_stride", "page_shift", "tiles"],
    do_not_specialize_on_alignment=["weights", "page_table", "lengths", "out"],
)
def scores_kernel(
    q, weights, cache, page_table, lengths, out, heads, width, table_stride, page_shift, tiles,
    HEADS: tl.constexpr, ENTRIES: tl.constexpr, STEPS: tl.constexpr, ALIGNED: tl.constexpr, SEVERAL: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """Write the scores of ENTRIES entries of one row, or of `tiles` times as many; STEPS rounds after every step.

    HEADS is a power of two, at least `heads` and 16. The even lanes of a key are the low halves of its bytes, the odd
    ones the high halves: two products, and nothing is interleaved. ALIGNED: pages begin on 16 bytes.
    """
    begin(PDL)
    row = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)
    head = tl.arange(0, HEADS)
    lane = tl.arange(0, ENTRIES)
    length = tl.minimum(tl.load(lengths + row), width)
    pages, scores = page_table + row * table_stride, out + row * width
    if part * tiles * ENTRIES < length:
        weight = tl.load(weights + row * heads + head, mask=head < heads, other=0.0).to(tl.float32)[None, :]
        even, odd = load_pairs(q, row, head, heads)
        if SEVERAL:
            for tile in range(tiles):
                entry = (part * tiles + tile) * ENTRIES + lane
                score_entries(
                    even, odd, weight, cache, pages, scores, entry, length, width, page_shift, ENTRIES, STEPS, ALIGNED
                )
        else:
            entry = part * ENTRIES + lane
            score_entries(
                even, odd, weight, cache, pages, scores, entry, length, width, page_shift, ENTRIES, STEPS, ALIGNED
            )
    else:
        for tile in range(tiles):
            entry = (part * tiles + tile) * ENTRIES + lane
            tl.store(scores + entry, tl.full((ENTRIES,), float("-inf"), tl.float32), mask=entry < width)


def index_scores(
    q: Tensor,
    weights: Tensor,
    cache: Tensor,
    page_table: Tensor,
    lengths: Tensor,
    page_size: int,
    numerics: str = "bf16_steps",
    layout: str = "index_k_page68",
) -> Tensor:
    """Return the score of each cached entry for each query row, -inf for entries that the row may not see.

    Args:
        q: [T, A, 128] bfloat16, contiguous, on the fp4 grid; A up to `MOST_HEADS`.
        weights: [T, A] bfloat16 or float32, contiguous.
        cache: [pages, 68 * page_size] uint8, contiguous.
        page_table: [T, P] int32, last stride 1; up to `MOST_ENTRIES` entries a row.
        lengths: [T] int32, entries that the row may see.
        page_size: slots of a page, a power of two.
        numerics: ``bf16_steps`` rounds dot products, products and sums to bfloat16, ``fp32`` nothing.
        layout: ``index_k_page68``.

    Returns:
        [T, P * page_size] float32.

    Raises:
        ValueError: another layout, numerics or width, too many heads or entries, or a cache that has not its page size.

    Bytes moved: 68 per visible entry, 4 per entry of the table out. Launches: 1, none for no entries.

    Source: N10.1.
    """
    return _index_scores(
        AMD_TILES if torch.version.hip else TILES, q, weights, cache, page_table, lengths, page_size, numerics, layout
    )


def _index_scores(
    tiles: Tiles, q: Tensor, weights: Tensor, cache: Tensor, page_table: Tensor, lengths: Tensor, page_size: int,
    numerics: str = "bf16_steps", layout: str = "index_k_page68",
) -> Tensor:  # fmt: skip
    rows, heads, lanes = q.shape
    power = page_size > 0 and page_size & (page_size - 1) == 0
    cached = cache.shape[1] == 68 * page_size and cache.is_contiguous()
    if layout != "index_k_page68" or lanes != WIDTH or not (1 <= heads <= MOST_HEADS and power and cached):
        got = f"{layout}, {heads} heads of {lanes}, pages of {page_size} and a cache {list(cache.shape)}"
        raise ValueError(
            f"index_scores: wanted index_k_page68, up to {MOST_HEADS} heads of {WIDTH} lanes and a contiguous cache "
            f"[pages, 68 * page_size] with a power of two, got {got}"
        )
    if numerics not in ("bf16_steps", "fp32"):
        raise ValueError(f"index_scores: wanted numerics bf16_steps or fp32, got {numerics!r}")
    width = page_table.shape[1] * page_size
    if width > MOST_ENTRIES:
        raise ValueError(f"index_scores: wanted a page table of up to {MOST_ENTRIES} entries a row, got {width}")
    out = torch.empty(rows, width, dtype=torch.float32, device=q.device)
    if rows and width:
        each = tiles_each(tiles, rows, width)
        scores_kernel[(rows, triton.cdiv(width, tiles.entries * each))](
            q, weights, cache, page_table, lengths, out, heads, width, page_table.stride(0), page_size.bit_length() - 1,
            each, **launch_constants(tiles, heads, numerics, page_size, each > 1), **launch_options(tiles),
        )  # fmt: skip
    return out


def tiles_each(tiles: Tiles, rows: int, width: int) -> int:
    """Return how many times `tiles.entries` keys a program takes."""
    count = rows * triton.cdiv(width, tiles.entries)
    return max(1, count // tiles.programs) if tiles.programs else 1


def launch_constants(
    tiles: Tiles, heads: int, numerics: str, page_size: int = 64, several: bool = False
) -> dict[str, Any]:
    """Return the compile-time arguments of a launch; `several`: a program takes more than one tile."""
    return {
        "HEADS": max(16, triton.next_power_of_2(heads)), "ENTRIES": tiles.entries, "STEPS": numerics == "bf16_steps",
        "ALIGNED": page_size % 4 == 0, "SEVERAL": several, "PDL": tiles.pdl,
    }  # fmt: skip


def launch_options(tiles: Tiles) -> dict[str, Any]:
    """Return the compiler options of a launch. Contraction is off: products round before they are added.

    The loop over tiles is not pipelined: the other programs of a multiprocessor fill the wait, and need its registers.
    """
    return {"num_warps": tiles.warps, "num_stages": 1, "enable_fp_fusion": False, **pdl_option(tiles.pdl)}


def prepare_index_scores(device: Any, site: Any, rows: Sequence[int]) -> Callable[..., Tensor]:
    """Return `index_scores`, compiled for the site's heads and numerics, for weights of both dtypes and pages of 64.

    Both forms are compiled: programs of one tile, as short tables have, and of several.
    """
    tiles = tiles_for("index_scores", device, site, AMD_TILES if device.arch.vendor == "amd" else TILES)
    return prepare_launch(_index_scores, tiles, index_scores, functools.partial(_compile, tiles), device, site, rows)


def _compile(tiles: Tiles, call: Callable[..., Any], site: Any, rows: Sequence[int]) -> None:
    cache = torch.zeros(1, 64 * 68, dtype=torch.uint8, device="cuda")
    length = torch.ones(1, dtype=torch.int32, device="cuda")
    for pages in (1, 2 * tiles.programs * tiles.entries // 64) if tiles.programs else (1,):
        q = torch.zeros(1, site.axes["A"], WIDTH, dtype=torch.bfloat16, device="cuda")
        table = torch.zeros(1, pages, dtype=torch.int32, device="cuda")
        for weights in (q[:, :, 0].contiguous(), q[:, :, 0].float()):
            call(q, weights, cache, table, length, 64, site.options["numerics"])


__all__ = [
    "AMD_TILES", "TILES", "Tiles", "index_scores", "launch_constants", "launch_options", "prepare_index_scores",
    "scores_kernel", "tiles_each",
]  # fmt: skip
