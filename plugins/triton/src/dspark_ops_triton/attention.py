"""Portable ``sparse_mla_decode`` for the page layouts of V4 and of V4.1."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
import triton
from torch import Tensor

from dspark_ops_triton.blocks import kv_v4, kv_v41
from dspark_ops_triton.blocks.kv_v4 import WIDTH, page_shift
from dspark_ops_triton.blocks.scratch import ScratchMemory
from dspark_ops_triton.blocks.sparse_decode import (
    LOG2_E,
    Tiles,
    merge_constants,
    merge_kernel,
    merge_options,
    part_constants,
    part_kernel,
    part_options,
)
from dspark_ops_triton.blocks.sparse_whole import whole_part_kernel
from dspark_ops_triton.blocks.tile_table import tiles_for

#: Parts are programs of the grid's last dimension, which has 16 bits.
MOST_PARTS = 65535
#: The layout that an extra cache may have beside a window of another one (N7.1).
BESIDE = {"kv_v41": "kv_v41_fp4", "kv_v41_new": "kv_v41_fp4_new"}
#: 64 entries are 64 KB as bfloat16, and 128 registers of each of 256 threads: two programs share a multiprocessor of
#: Hopper. 640 entries of a row are 10 programs, whose sums the second launch reads all at once.
TILES = Tiles(heads=16, entries=64, warps=8, merged=16, merge_warps=4, whole=True)
AMD_TILES = Tiles(heads=16, entries=64, warps=4, merged=8, merge_warps=2)


class SparseDecode:
    """``sparse_mla_decode`` bound to one device. It keeps the memory through which its two launches meet."""

    __slots__ = ("_scratch", "_tiles")

    def __init__(self, tiles: Tiles) -> None:
        self._tiles = tiles
        self._scratch = ScratchMemory()

    def __call__(
        self,
        q: Tensor,
        cache: Tensor,
        indices: Tensor,
        lengths: Tensor | None = None,
        sink: Tensor | None = None,
        extra_cache: Tensor | None = None,
        extra_indices: Tensor | None = None,
        extra_lengths: Tensor | None = None,
        page_size: int = 64,
        extra_page_size: int = 64,
        layout: str = "kv_v4",
        scale: float | None = None,
        extra_layout: str | None = None,
        sched_meta: Tensor | None = None,
        num_splits: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Return the attention of each query head over the cache slots that its row names, and the log-sum-exp.

        Args:
            q: [T, A, 512] bfloat16, contiguous.
            cache: [pages, page_bytes] uint8, contiguous.
            indices: [T, W] int32, last stride 1. -1, or a slot beyond the last page, adds nothing.
            lengths: [T] int32: only the first ``lengths[t]`` columns of row t count; None counts all W.
            sink: [A] float32, joins the denominator only; None or -inf: no sink.
            extra_cache: second cache, its entries under the same softmax; None for none.
            extra_indices: [T, X] int32, last stride 1.
            extra_lengths: [T] int32.
            page_size: slots of a page of `cache`, a power of two.
            extra_page_size: slots of a page of `extra_cache`, a power of two.
            layout: page layout of `cache`: ``kv_v4``, ``kv_v41``, ``kv_v41_fp4``, or one of the last two with ``_new``.
            scale: factor of the scores; None means 512 ** -0.5.
            extra_layout: page layout of `extra_cache`; None means `layout`. Beside ``kv_v41`` it may be
                ``kv_v41_fp4``, and beside ``kv_v41_new`` ``kv_v41_fp4_new``.
            sched_meta: [P, 8] int32 or None, left aside.
            num_splits: [T + 1] int32 or None, left aside.

        Returns:
            out [T, A, 512] bfloat16, lse [T, A] float32, without the sink. No valid entry gives 0 and +inf.

        Raises:
            ValueError: another layout or width, layouts that do not go together, a cache that has not its page size,
                only one of `extra_cache` and `extra_indices`, or more than four million columns.

        Entries are multiplied as bfloat16, which holds them exactly; sums are float32; weights are rounded to bfloat16.
        Parts do not follow the records of `mla_sched_meta`, given or not: a row is cut where its own columns say, so
        its bits are the same among any others, and a part beyond a row's length ends at once.

        Bytes moved: 584 (in V4.1 528 or 288) per valid entry and 16 heads; ``2*A*512`` in, as much out, and 4104 per
        head and part of 64 columns through scratch memory. Launches: 2, none for no rows.

        Source: N appendix A, N7.1, C5.2.
        """
        tokens, heads, lanes = q.shape
        extra = layout if extra_layout is None else extra_layout
        if extra not in (layout, BESIDE.get(layout)) or lanes != WIDTH or not q.is_contiguous():
            got = f"{layout} and {extra}, and queries {list(q.shape)} with strides {list(q.stride())}"
            raise ValueError(
                f"sparse_mla_decode: wanted caches of one layout, or fp4 entries beside a V4.1 window, and contiguous "
                f"queries of {WIDTH} lanes, got {got}"
            )
        if (extra_cache is None) != (extra_indices is None):
            raise ValueError("sparse_mla_decode: wanted extra_cache and extra_indices together, got one of them")
        units = _page_units(layout, cache, page_size)
        more, more_indices, more_size, more_units = cache, indices, page_size, units
        if extra_cache is not None:
            more, more_indices, more_size = extra_cache, extra_indices, extra_page_size
            more_units = _page_units(extra, extra_cache, extra_page_size)
        else:
            extra = layout
        out, lse = torch.empty_like(q), torch.empty(tokens, heads, dtype=torch.float32, device=q.device)
        if tokens == 0:
            return out, lse
        tiles = self._tiles
        width, extra_width = indices.shape[1], 0 if extra_cache is None else more_indices.shape[1]
        window_parts = triton.cdiv(width, tiles.entries)
        count = max(1, window_parts + triton.cdiv(extra_width, tiles.entries))
        if count > MOST_PARTS:
            most, got = MOST_PARTS * tiles.entries, f"{width} and {extra_width}"
            raise ValueError(f"sparse_mla_decode: wanted at most {most} columns in both caches together, got {got}")
        places = tokens * heads * count
        scratch = self._scratch.take(places * (WIDTH + 2), q)
        sums, statistics = scratch[: places * WIDTH], scratch[places * WIDTH :]
        factor = (WIDTH**-0.5 if scale is None else scale) * LOG2_E.value
        kernel = whole_part_kernel if tiles.whole else part_kernel
        kernel[(tokens, triton.cdiv(heads, tiles.heads), count)](
            q, cache, indices, indices if lengths is None else lengths,
            more, more_indices, indices if extra_lengths is None else extra_lengths, sums, statistics,
            heads, width, extra_width, indices.stride(0), more_indices.stride(0),
            cache.shape[0] * page_size, more.shape[0] * more_size,
            page_shift(page_size), units, page_shift(more_size), more_units, window_parts,
            int(lengths is not None), int(extra_lengths is not None), factor,
            **part_constants(tiles, layout, extra, isinstance(kernel, triton.JITFunction)), **part_options(tiles),
        )  # fmt: skip
        merge_kernel[(tokens, heads)](
            sums, statistics, sink, out, lse, count, **merge_constants(tiles), **merge_options(tiles)
        )  # fmt: skip
        return out, lse


def _page_units(layout: str, cache: Tensor, page_size: int) -> int:
    """Return the size of a page of `cache` in the unit of its layout."""
    if layout == "kv_v4":
        return kv_v4.page_units("sparse_mla_decode", cache, page_size)
    return kv_v41.page_units("sparse_mla_decode", layout, cache, page_size)


def sparse_mla_decode(
    q: Tensor,
    cache: Tensor,
    indices: Tensor,
    lengths: Tensor | None = None,
    sink: Tensor | None = None,
    extra_cache: Tensor | None = None,
    extra_indices: Tensor | None = None,
    extra_lengths: Tensor | None = None,
    page_size: int = 64,
    extra_page_size: int = 64,
    layout: str = "kv_v4",
    scale: float | None = None,
    extra_layout: str | None = None,
    sched_meta: Tensor | None = None,
    num_splits: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Return the attention of each query head over the cache slots that its row names, and the log-sum-exp.

    It is a call of `SparseDecode`, which states the arguments, with scratch memory of its own.

    Source: N appendix A, C5.2.
    """
    return SparseDecode(tiles_of(_arch(q.device)))(
        q, cache, indices, lengths, sink, extra_cache, extra_indices, extra_lengths,
        page_size, extra_page_size, layout, scale, extra_layout, sched_meta, num_splits,
    )  # fmt: skip


def prepare_sparse_mla_decode(device: Any, site: Any, rows: Sequence[int]) -> SparseDecode:
    """Return ``sparse_mla_decode`` with memory for the site's calls, compiled with a sink and without.

    Compiled are the site's layout in both caches and, where another may stand beside it, that one in the extra cache.
    """
    bound = SparseDecode(tiles_for("sparse_mla_decode", device, site, tiles_of(device.arch.name)))
    if device.arch.vendor != "cpu":
        heads = site.axes["A"]
        q = torch.zeros(1, heads, WIDTH, dtype=torch.bfloat16, device="cuda")
        layout = site.options.get("layout", "kv_v4")
        indices = torch.full((1, 1), -1, dtype=torch.int32, device="cuda")
        cache = _empty_page(layout)
        for sink in (None, torch.zeros(heads, device="cuda")):
            bound(q, cache, indices, sink=sink, page_size=1, layout=layout)
        if beside := BESIDE.get(layout):
            other = _empty_page(beside)
            bound(q, cache, indices, None, None, other, indices, None, 1, 1, layout, None, beside)
    return bound


def _empty_page(layout: str) -> Tensor:
    """Return a cache of one page of one slot."""
    size = 1152 if layout == "kv_v4" else kv_v41.FORMS[layout].page_bytes(1)
    return torch.zeros(1, size, dtype=torch.uint8, device="cuda")


def tiles_of(arch: str) -> Tiles:
    """Return how the work is cut on an architecture, by name."""
    return replace(AMD_TILES, fnuz=arch == "gfx942") if arch.startswith("gfx") else TILES


def _arch(device: torch.device) -> str:
    """Return the name of an AMD device's architecture; others share their tiles, and their names are not asked for."""
    return torch.cuda.get_device_properties(device).gcnArchName.partition(":")[0] if torch.version.hip else ""


__all__ = ["AMD_TILES", "TILES", "SparseDecode", "prepare_sparse_mla_decode", "sparse_mla_decode", "tiles_of"]
