"""``sparse_mla_decode`` by FlashMLA's kernel for Hopper, given the schedule that dspark-ops makes."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import torch
import triton
from torch import Tensor

from dspark_ops_nvidia_sm90.inputs import inputs_kernel
from dspark_ops_triton.blocks.dependent import has_pdl
from dspark_ops_triton.blocks.kv_v4 import page_units
from dspark_ops_triton.blocks.mla_records import mla_sched_meta
from dspark_ops_triton.blocks.mla_walk import schedule_options, walk_constants
from dspark_ops_triton.blocks.row_argmax import unit_count

#: What the kernel is built for: heads of a request, lanes of a head, bytes of a cached token, entries of a block.
HEADS, WIDTH, TOKEN_BYTES, BLOCK = 64, 512, 584, 64
#: Its rows of slots are multiples of two blocks.
COLUMNS = 2 * BLOCK
#: Columns that a program copies: four to each of 128 threads, so that no load waits behind the store of another.
TILE = 512


class FlashMla:
    """``sparse_mla_decode`` bound to one device.

    Each row is a request of its own, so that rows may have lengths of their own, and the work of all rows is spread
    over the device in equal parts, as `mla_sched_meta` says: a row's bits depend on the lengths of the others.
    """

    __slots__ = ("_function", "_parts", "_pdl", "_schedule")

    def __init__(self, units: int, pdl: bool = False) -> None:
        # Imported only where it was chosen: the module of another distribution has the same name.
        from flash_mla import flash_mla_with_kvcache
        from flash_mla.flash_mla_interface import FlashMLASchedMeta

        self._function, self._schedule = flash_mla_with_kvcache, FlashMLASchedMeta
        self._parts = units
        self._pdl = pdl

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
            q: [T, A, 512] bfloat16, contiguous, A at most 64.
            cache: [pages, page_bytes] uint8, contiguous.
            indices: [T, W] int32, last stride 1. -1, or a slot beyond the last page, adds nothing.
            lengths: [T] int32, contiguous: only the first ``lengths[t]`` columns of row t count; None counts all W.
            sink: [A] float32, joins the denominator only; None or -inf: no sink.
            extra_cache: second cache, its entries under the same softmax; None for none.
            extra_indices: [T, X] int32, last stride 1.
            extra_lengths: [T] int32, contiguous.
            page_size: slots of a page of `cache`, a power of two.
            extra_page_size: slots of a page of `extra_cache`, a power of two.
            layout: ``kv_v4``.
            scale: factor of the scores; None means 512 ** -0.5.
            extra_layout: ``kv_v4`` or None.
            sched_meta: [P, 8] int32, the schedule of this call, used where P is the number of units; None: it is made.
            num_splits: [T + 1] int32, written with it.

        Returns:
            out [T, A, 512] bfloat16, lse [T, A] float32, without the sink. No valid entry gives 0 and +inf. Both are
            views of what FlashMLA writes, in which a row has 64 heads.

        Raises:
            ValueError: another layout or width, more than 64 heads, a cache that has not its page size, or only one of
                `extra_cache` and `extra_indices`, or of `sched_meta` and `num_splits`.

        FlashMLA takes -1 for no entry and follows every other index, a slot beyond the last page too, which adds
        nothing here. So indices are copied even where their rows have the width that it wants.

        Bytes moved: 584 per valid entry; queries that are padded, twice. Launches: the inputs, with the schedule where
        none is handed over, and FlashMLA's two: 3; none for no rows. And one for lengths that are not given, unless a
        schedule is and the rows have a multiple of 128 columns.

        Source: N appendix A, N4.7.
        """
        rows, heads, lanes = q.shape
        if (
            layout != "kv_v4"
            or extra_layout not in (None, "kv_v4")
            or lanes != WIDTH
            or heads > HEADS
            or not q.is_contiguous()
        ):
            got = f"{layout}, {extra_layout} and queries {list(q.shape)} with strides {list(q.stride())}"
            wanted = (
                f"layout kv_v4, extra_layout None and contiguous queries of {WIDTH} lanes and at most {HEADS} heads"
            )
            raise ValueError(f"sparse_mla_decode: wanted {wanted}, got {got}")
        if (extra_cache is None) != (extra_indices is None):
            raise ValueError("sparse_mla_decode: wanted extra_cache and extra_indices together, got one of them")
        if (sched_meta is None) != (num_splits is None):
            raise ValueError("sparse_mla_decode: wanted sched_meta and num_splits together, got one of them")
        pages = _pages(cache, page_size)
        extra_pages = None if extra_cache is None else _pages(extra_cache, extra_page_size)
        if not rows:
            return torch.empty_like(q), torch.empty(rows, heads, dtype=torch.float32, device=q.device)
        pad = heads < HEADS
        width, extra_width = indices.shape[1], 0 if extra_indices is None else extra_indices.shape[1]
        columns, extra_columns = (triton.cdiv(size, COLUMNS) * COLUMNS for size in (width, extra_width))
        new = {"dtype": torch.int32, "device": q.device}
        meta, splits = sched_meta, num_splits
        made = meta is None or splits is None or meta.shape[0] != self._parts
        if made:
            meta, splits = torch.empty(self._parts, 8, **new), torch.empty(rows + 1, **new)
        slots = torch.empty(rows, 1, columns, **new)
        extra_slots = torch.empty(rows, 1, extra_columns, **new) if extra_width else None
        queries = torch.empty(rows, 1, HEADS, WIDTH, dtype=q.dtype, device=q.device) if pad else q.unsqueeze(1)
        sinks = sink
        if sink is not None and pad:
            sinks = torch.empty(HEADS, dtype=torch.float32, device=q.device)
        counted = _counted(lengths, rows, width, q, made)
        extra_counted = _counted(extra_lengths, rows, extra_width, q, made) if extra_width else None
        walked = rows if made else 1  # without a schedule to make, one build serves all rows
        inputs_kernel[(rows + made, triton.cdiv(max(columns, extra_columns), TILE))](
            q, indices, counted, sink, extra_indices, extra_counted,
            queries, slots, sinks, extra_slots, meta, splits,
            rows, self._parts, extra_width, heads,
            indices.stride(0), extra_indices.stride(0) if extra_width else 0, width, extra_width,
            cache.shape[0] * page_size, extra_cache.shape[0] * extra_page_size if extra_width else 0,
            **walk_constants(walked, self._parts, "sparse", 2 if extra_width else 0, BLOCK),
            COLUMNS=columns, EXTRA_COLUMNS=extra_columns, TILE=TILE, PAD=pad, SCHEDULE=made, PDL=self._pdl,
            **schedule_options(walked, self._pdl),
        )  # fmt: skip
        schedule = self._schedule(tile_scheduler_metadata=meta, num_splits=splits)
        padded, padded_lse = self._function(
            queries, pages, None, None, WIDTH, schedule,
            softmax_scale=WIDTH**-0.5 if scale is None else scale, is_fp8_kvcache=True, indices=slots,
            attn_sink=sinks, extra_k_cache=extra_pages if extra_width else None, extra_indices_in_kvcache=extra_slots,
            topk_length=counted, extra_topk_length=extra_counted, use_legacy=True,
        )  # fmt: skip
        return padded[:, 0, :heads], padded_lse[:, :heads, 0]


def _counted(lengths: Tensor | None, rows: int, width: int, like: Tensor, made: bool) -> Tensor | None:
    """Return lengths: those given, or the full width for every row; None where FlashMLA takes that from the columns."""
    if lengths is not None or (width % COLUMNS == 0 and not made):
        return lengths
    return torch.full((rows,), width, dtype=torch.int32, device=like.device)


def _pages(cache: Tensor, page_size: int) -> Tensor:
    """Return a cache as FlashMLA sees it: pages of tokens of 584 bytes, one head."""
    page_units("sparse_mla_decode", cache, page_size)
    shape = (cache.shape[0], page_size, 1, TOKEN_BYTES)
    return cache.as_strided(shape, (cache.shape[1], TOKEN_BYTES, TOKEN_BYTES, 1))


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

    It is a call of `FlashMla`, which states the arguments.

    Source: N appendix A, N4.7.
    """
    return FlashMla(unit_count(q.device))(
        q, cache, indices, lengths, sink, extra_cache, extra_indices, extra_lengths,
        page_size, extra_page_size, layout, scale, extra_layout, sched_meta, num_splits,
    )  # fmt: skip


def prepare_sparse_mla_decode(device: Any, site: Any, rows: Sequence[int]) -> FlashMla:
    """Return ``sparse_mla_decode`` by FlashMLA, with the kernels around it compiled for the planned rows."""
    units = device.units or unit_count(torch.device("cuda"))
    bound = FlashMla(units, has_pdl(device))
    heads, width, extra_width = site.axes["A"], site.axes["W"], site.axes.get("X", 0)
    page_size = site.options.get("page_size", BLOCK)
    cache = torch.zeros(1, -(-page_size * TOKEN_BYTES // 576) * 576, dtype=torch.uint8, device="cuda")
    sink = torch.zeros(heads, device="cuda")
    for count in {max(lanes for lanes in rows if _lanes(lanes) == size) for size in {_lanes(row) for row in rows}}:
        q = torch.zeros(count, heads, WIDTH, dtype=torch.bfloat16, device="cuda")
        indices = torch.full((count, width), -1, dtype=torch.int32, device="cuda")
        extra = torch.full((count, extra_width), -1, dtype=torch.int32, device="cuda")
        for columns in {0, extra_width}:
            both = (cache, extra, None) if columns else (None, None, None)
            schedule = _schedule(units, q, width, columns)
            for given, scheduled in itertools.product((None, sink), ((None, None), schedule)):
                bound(q, cache, indices, None, given, *both, page_size, page_size, "kv_v4", None, None, *scheduled)
    return bound


def _schedule(parts: int, q: Tensor, width: int, extra_width: int) -> tuple[Tensor, Tensor]:
    """Return the schedule of full rows."""
    rows, new = q.shape[0], {"dtype": torch.int32, "device": q.device}
    meta, splits = torch.empty(parts, 8, **new), torch.empty(rows + 1, **new)
    mla_sched_meta(False, torch.full((rows,), width, **new), meta, splits, None, extra_width)
    return meta, splits


def _lanes(rows: int) -> int:
    return int(walk_constants(max(rows, 1), 1, "sparse", 0, BLOCK)["REQUESTS"])


__all__ = ["FlashMla", "prepare_sparse_mla_decode", "sparse_mla_decode"]
