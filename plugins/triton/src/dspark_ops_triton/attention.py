"""Portable ``sparse_mla_decode`` for the layout ``kv_v4``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
import triton
from torch import Tensor

from dspark_ops_triton.blocks.kv_v4 import WIDTH, page_shift, page_units
from dspark_ops_triton.blocks.scratch import ScratchMemory
from dspark_ops_triton.blocks.sparse_decode import (
    LOG2_E,
    Tiles,
    merge_kernel,
    merge_options,
    part_constants,
    part_kernel,
    part_options,
)

#: Parts are programs of the grid's last dimension, which has 16 bits.
MOST_PARTS = 65535
#: The threads hold 64 entries as bfloat16 between the two products; 640 entries of a row are 10 programs.
TILES = Tiles(heads=16, entries=64, warps=8, merged=8, merge_warps=4)
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
            layout: ``kv_v4``.
            scale: factor of the scores; None means 512 ** -0.5.
            extra_layout: None or ``kv_v4``.

        Returns:
            out [T, A, 512] bfloat16, lse [T, A] float32, without the sink. No valid entry gives 0 and +inf.

        Raises:
            ValueError: another layout or width, a cache that has not its page size, only one of `extra_cache` and
                `extra_indices`, or more than four million columns.

        Entries are multiplied as bfloat16, which holds them exactly; sums are float32; weights are rounded to bfloat16.

        Bytes moved: 584 per valid entry and 16 heads; ``2*A*512`` in, as much out, and 4104 per head and part of 64
        columns through scratch memory. Launches: 2, none for no rows.

        Source: N appendix A, C5.2.
        """
        tokens, heads, lanes = q.shape
        if layout != "kv_v4" or extra_layout not in (None, layout) or lanes != WIDTH or not q.is_contiguous():
            layouts = layout if extra_layout in (None, layout) else f"{layout} and {extra_layout}"
            got = f"{layouts} and queries {list(q.shape)} with strides {list(q.stride())}"
            raise ValueError(
                f"sparse_mla_decode: wanted layout kv_v4 and contiguous queries of {WIDTH} lanes, got {got}"
            )
        if (extra_cache is None) != (extra_indices is None):
            raise ValueError("sparse_mla_decode: wanted extra_cache and extra_indices together, got one of them")
        units = page_units("sparse_mla_decode", cache, page_size)
        more, more_indices, more_size, more_units = cache, indices, page_size, units
        if extra_cache is not None:
            more, more_indices, more_size = extra_cache, extra_indices, extra_page_size
            more_units = page_units("sparse_mla_decode", extra_cache, extra_page_size)
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
        part_kernel[(tokens, triton.cdiv(heads, tiles.heads), count)](
            q, cache, indices, indices if lengths is None else lengths,
            more, more_indices, indices if extra_lengths is None else extra_lengths, sums, statistics,
            heads, width, extra_width, indices.stride(0), more_indices.stride(0),
            cache.shape[0] * page_size, more.shape[0] * more_size,
            page_shift(page_size), units, page_shift(more_size), more_units, window_parts,
            int(lengths is not None), int(extra_lengths is not None), factor,
            **part_constants(tiles), **part_options(tiles),
        )  # fmt: skip
        merge_kernel[(tokens, heads)](
            sums, statistics, sink, out, lse, count, MERGED=tiles.merged, **merge_options(tiles)
        )  # fmt: skip
        return out, lse


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
) -> tuple[Tensor, Tensor]:
    """Return the attention of each query head over the cache slots that its row names, and the log-sum-exp.

    It is a call of `SparseDecode`, which states the arguments, with scratch memory of its own.

    Source: N appendix A, C5.2.
    """
    return SparseDecode(tiles_of(_arch(q.device)))(
        q, cache, indices, lengths, sink, extra_cache, extra_indices, extra_lengths,
        page_size, extra_page_size, layout, scale, extra_layout,
    )  # fmt: skip


def prepare_sparse_mla_decode(device: Any, site: Any, rows: Sequence[int]) -> SparseDecode:
    """Return ``sparse_mla_decode`` with memory for the site's calls, compiled with a sink and without."""
    bound = SparseDecode(tiles_of(device.arch.name))
    if device.arch.vendor != "cpu":
        heads = site.axes["A"]
        q = torch.zeros(1, heads, WIDTH, dtype=torch.bfloat16, device="cuda")
        cache = torch.zeros(1, 1152, dtype=torch.uint8, device="cuda")
        indices = torch.full((1, 1), -1, dtype=torch.int32, device="cuda")
        for sink in (None, torch.zeros(heads, device="cuda")):
            bound(q, cache, indices, sink=sink, page_size=1)
    return bound


def tiles_of(arch: str) -> Tiles:
    """Return how the work is cut on an architecture, by name."""
    return replace(AMD_TILES, fnuz=arch == "gfx942") if arch.startswith("gfx") else TILES


def _arch(device: torch.device) -> str:
    """Return the name of an AMD device's architecture; others share their tiles, and their names are not asked for."""
    return torch.cuda.get_device_properties(device).gcnArchName.partition(":")[0] if torch.version.hip else ""


__all__ = ["AMD_TILES", "TILES", "SparseDecode", "prepare_sparse_mla_decode", "sparse_mla_decode", "tiles_of"]
