"""``sparse_mla_decode`` by FlashMLA's kernels for SM100, given the schedule that dspark-ops makes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from dspark_ops_triton.blocks.dependent import begin, has_pdl, pdl_option
from dspark_ops_triton.blocks.mla_records import mla_sched_meta
from dspark_ops_triton.blocks.row_argmax import unit_count

#: What the kernels are built for: heads of a request, lanes of a head, columns that a row of slots is padded to.
HEADS, WIDTH, COLUMNS = 64, 512, 128
#: Bytes of a cached token by layout, and whether it is read by the kernels that the package calls legacy.
FORMATS = {"kv_v4": (584, True), "kv_v41_new": (528, False), "kv_v41_fp4_new": (288, False)}


@triton.jit(do_not_specialize=["heads", "index_row", "width", "slots"], do_not_specialize_on_alignment=["indices"])
def padded_inputs_kernel(
    q, indices, padded_q, padded_indices, heads, index_row, width, slots,
    HEADS: tl.constexpr, LANES: tl.constexpr, PADDED: tl.constexpr, COPY: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Write one row of slots, -1 in place of those that are none; with COPY its heads into a row of HEADS heads."""
    begin(PDL)
    row = tl.program_id(0).to(tl.int64)
    for first in tl.static_range(0, PADDED, 128):
        column = first + tl.arange(0, 128)
        slot = tl.load(indices + row * index_row + column, mask=column < width, other=-1)
        tl.store(padded_indices + row * PADDED + column, tl.where((slot >= 0) & (slot < slots), slot, -1))
    if COPY:
        lane = tl.arange(0, 16)[:, None] * LANES + tl.arange(0, LANES)[None, :]
        for first in range(0, heads, 16):
            mask = (first + tl.arange(0, 16) < heads)[:, None]
            value = tl.load(q + (row * heads + first) * LANES + lane, mask=mask, other=0.0)
            tl.store(padded_q + (row * HEADS + first) * LANES + lane, value, mask=mask)


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
        self, q: Tensor, cache: Tensor, indices: Tensor, lengths: Tensor | None = None, sink: Tensor | None = None,
        extra_cache: Tensor | None = None, extra_indices: Tensor | None = None, extra_lengths: Tensor | None = None,
        page_size: int = 64, extra_page_size: int = 64, layout: str = "kv_v4", scale: float | None = None,
        extra_layout: str | None = None, sched_meta: Tensor | None = None, num_splits: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
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
            layout: ``kv_v4`` or ``kv_v41_new``.
            scale: factor of the scores; None means 512 ** -0.5.
            extra_layout: of `extra_cache`: ``kv_v41_fp4_new`` beside ``kv_v41_new``, or that of `cache`, as is None.
            sched_meta: [P, 8] int32, the schedule of this call, used where P is the number of units; None: it is made.
            num_splits: [T + 1] int32, written with it.

        Returns:
            out [T, A, 512] bfloat16, lse [T, A] float32, without the sink. No valid entry gives 0 and +inf.

        Raises:
            ValueError: another layout or width, more than 64 heads, or only one of `extra_cache` and `extra_indices`,
                or of `sched_meta` and `num_splits`.

        Bytes moved: those of each valid entry; what is padded, twice. Launches: inputs of each cache, the schedule
        where none is handed over, FlashMLA's two, and the results where heads are padded; none for no rows.

        Source: N appendix A, N4.7, N7.1.
        """
        rows, heads, lanes = q.shape
        extra = layout if extra_layout is None else extra_layout
        beside = extra == layout or (layout, extra) == ("kv_v41_new", "kv_v41_fp4_new")
        known = layout in ("kv_v4", "kv_v41_new") and beside
        if not known or lanes != WIDTH or heads > HEADS or not q.is_contiguous():
            got = f"{layout}, {extra} and queries {list(q.shape)} with strides {list(q.stride())}"
            wanted = f"layout kv_v4 or kv_v41_new and contiguous queries of {WIDTH} lanes and at most {HEADS} heads"
            raise ValueError(f"sparse_mla_decode: wanted {wanted}, got {got}")
        if (extra_cache is None) != (extra_indices is None):
            raise ValueError("sparse_mla_decode: wanted extra_cache and extra_indices together, got one of them")
        if (sched_meta is None) != (num_splits is None):
            raise ValueError("sparse_mla_decode: wanted sched_meta and num_splits together, got one of them")
        if not rows:
            return torch.empty_like(q), torch.empty(rows, heads, dtype=torch.float32, device=q.device)
        new = {"dtype": torch.int32, "device": q.device}
        padded = heads < HEADS
        queries = torch.empty(rows, HEADS, WIDTH, dtype=q.dtype, device=q.device) if padded else q
        slots = self._slots(q, queries, indices, cache.shape[0] * page_size, padded)
        counted = lengths if lengths is not None else torch.full((rows,), indices.shape[1], **new)
        extra_slots = extra_pages = extra_counted = None
        if extra_cache is not None and extra_indices is not None and extra_indices.shape[1]:
            extra_slots = self._slots(q, queries, extra_indices, extra_cache.shape[0] * extra_page_size, False)
            extra_pages = _pages(extra_cache, extra_page_size, extra)
            full = torch.full((rows,), extra_indices.shape[1], **new) if extra_lengths is None else extra_lengths
            extra_counted = full
        meta, splits = sched_meta, num_splits
        if meta is None or splits is None or meta.shape[0] != self._parts:
            meta, splits = torch.empty(self._parts, 8, **new), torch.empty(rows + 1, **new)
            columns = 0 if extra_slots is None else extra_slots.shape[2]
            mla_sched_meta(self._pdl, counted, meta, splits, extra_counted, columns)
        sinks = sink
        if sink is not None and padded:
            sinks = torch.nn.functional.pad(sink, (0, HEADS - heads))
        out, lse = self._function(
            queries.unsqueeze(1), _pages(cache, page_size, layout), None, None, WIDTH,
            self._schedule(tile_scheduler_metadata=meta, num_splits=splits),
            softmax_scale=WIDTH**-0.5 if scale is None else scale, is_fp8_kvcache=True, indices=slots,
            attn_sink=sinks, extra_k_cache=extra_pages, extra_indices_in_kvcache=extra_slots, topk_length=counted,
            extra_topk_length=extra_counted, use_legacy=FORMATS[layout][1],
        )  # fmt: skip
        return out[:, 0, :heads].contiguous(), lse[:, :heads, 0].contiguous()

    def _slots(self, q: Tensor, queries: Tensor, indices: Tensor, slots: int, copy: bool) -> Tensor:
        """Return rows of slots as FlashMLA wants them, [T, 1, columns]; with `copy`, write the padded queries, too."""
        rows, width = indices.shape
        columns = triton.cdiv(width, COLUMNS) * COLUMNS
        target = torch.empty(rows, 1, columns, dtype=torch.int32, device=q.device)
        padded_inputs_kernel[(rows,)](
            q, indices, queries, target, q.shape[1], indices.stride(0), width, slots,
            HEADS=HEADS, LANES=WIDTH, PADDED=columns, COPY=copy, PDL=self._pdl, num_warps=4, **pdl_option(self._pdl),
        )  # fmt: skip
        return target


def _pages(cache: Tensor, page_size: int, layout: str) -> Tensor:
    """Return a cache as FlashMLA sees it: pages of tokens of so many bytes, one head."""
    token, _ = FORMATS[layout]
    return cache.as_strided((cache.shape[0], page_size, 1, token), (cache.shape[1], token, token, 1))


def sparse_mla_decode(
    q: Tensor, cache: Tensor, indices: Tensor, lengths: Tensor | None = None, sink: Tensor | None = None,
    extra_cache: Tensor | None = None, extra_indices: Tensor | None = None, extra_lengths: Tensor | None = None,
    page_size: int = 64, extra_page_size: int = 64, layout: str = "kv_v4", scale: float | None = None,
    extra_layout: str | None = None, sched_meta: Tensor | None = None, num_splits: Tensor | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Return the attention of each query head over the cache slots that its row names, and the log-sum-exp.

    It is a call of `FlashMla`, which states the arguments.

    Source: N appendix A, N4.7.
    """
    return FlashMla(unit_count(q.device))(
        q, cache, indices, lengths, sink, extra_cache, extra_indices, extra_lengths,
        page_size, extra_page_size, layout, scale, extra_layout, sched_meta, num_splits,
    )  # fmt: skip


def prepare_sparse_mla_decode(device: Any, site: Any, rows: Sequence[int]) -> FlashMla:
    """Return ``sparse_mla_decode`` by FlashMLA, called once for each planned number of rows."""
    bound = FlashMla(device.units or unit_count(torch.device("cuda")), has_pdl(device))
    heads, width, extra_width = site.axes["A"], site.axes["W"], site.axes.get("X", 0)
    page_size, layout = site.options.get("page_size", 64), site.options.get("layout", "kv_v4")
    token, old = FORMATS[layout]
    page_bytes = triton.cdiv(page_size * token, 576) * 576 if old else page_size * token
    cache = torch.zeros(1, page_bytes, dtype=torch.uint8, device="cuda")
    sink = torch.zeros(heads, device="cuda")
    for count in sorted({count for count in rows if count}):
        q = torch.zeros(count, heads, WIDTH, dtype=torch.bfloat16, device="cuda")
        indices = torch.full((count, width), -1, dtype=torch.int32, device="cuda")
        bound(q, cache, indices, None, sink, page_size=page_size, layout=layout)
        if extra_width:
            extra = torch.full((count, extra_width), -1, dtype=torch.int32, device="cuda")
            bound(q, cache, indices, None, sink, cache, extra, None, page_size, page_size, layout)
    return bound


__all__ = ["FlashMla", "padded_inputs_kernel", "prepare_sparse_mla_decode", "sparse_mla_decode"]
