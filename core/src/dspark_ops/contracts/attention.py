"""Sparse decode attention over paged latent KV: one latent row per token is key and value of every head."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from dspark_ops._lazy import torch
from dspark_ops.contracts.contract import Argument, Case, Contract, Option, Output, Site
from dspark_ops.contracts.exactness import absolute, relative
from dspark_ops.contracts.layouts import KV_LAYOUTS, OTHER_EXTRA_LAYOUT, page_layout
from dspark_ops.contracts.mla_schedule import mla_sched_meta
from dspark_ops.contracts.values import between
from dspark_ops.errors import ContractError

if TYPE_CHECKING:
    from torch import Tensor

    from dspark_ops.contracts.layouts import PageLayout
    from dspark_ops.contracts.model_shapes import ModelShapes

_COUNTS = between(0, None)


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

    Args:
        q: [T, A, D] bfloat16, rotated at the query position.
        cache: [pages, page_bytes] uint8.
        indices: [T, W] int32 cache slots. -1, or a slot beyond the last page, adds nothing.
        lengths: [T] int32: only the first ``lengths[t]`` columns of row t count; None counts all W.
        sink: [A] float32, the logit of an entry without a value: it joins the denominator only. None or -inf: no sink.
        extra_cache: second cache, its entries under the same softmax; None for none.
        extra_indices: [T, X] int32 slots of the extra cache.
        extra_lengths: [T] int32, as `lengths`.
        page_size: slots of a page of `cache`.
        extra_page_size: slots of a page of `extra_cache`.
        layout: name of the page layout of `cache`.
        scale: factor of the scores; None means D ** -0.5.
        extra_layout: name of the page layout of `extra_cache`; None means `layout`. Beside ``kv_v41`` it may be
            ``kv_v41_fp4``, and beside ``kv_v41_new`` ``kv_v41_fp4_new``.
        sched_meta: [P, 8] int32, the records of `mla_sched_meta` for these rows, or None. A kernel may divide its work
            by them, or leave them aside where it cuts otherwise or into another number of parts: the result is the same
            within the operator's tolerance.
        num_splits: [T + 1] int32, written with them.

    A caller that hands over a schedule guarantees that it is the one of this call, written by `mla_sched_meta` in the
    form ``sparse`` and blocks of 64 entries, over the same `lengths` and `extra_lengths`, where None stands for W and
    X, and with an `extra_topk` just where X is above 0. Nothing checks that: a kernel given the schedule of other
    lengths attends to other entries, and may read foreign memory. One schedule serves all layers of a step whose
    lengths are equal.

    Returns:
        out [T, A, D] bfloat16, and lse [T, A] float32: the natural log-sum-exp of the scores, without the sink. A row
        without a valid entry gives 0 and +inf.

    Raises:
        ContractError: queries do not have the layout's width, a cache does not have its page size, the two layouts do
            not go together, or only one of `extra_cache` and `extra_indices`, or of `sched_meta` and `num_splits`, is
            given.

    Source: N appendix A, N4, N7.1, C5.2. Entries are dequantised as code times scale, which is exact. What invalid
    columns point at is never read. Lanes of the output are still rotated at the key positions.
    """
    pages = page_layout(layout)
    if q.shape[-1] != pages.width:
        raise ContractError(f"sparse_mla_decode: wanted {pages.width} lanes for layout {layout}, got {q.shape[-1]}")
    beside = page_layout(layout if extra_layout is None else extra_layout)
    if beside.name not in (layout, OTHER_EXTRA_LAYOUT.get(layout)):
        both = " or ".join(filter(None, (layout, OTHER_EXTRA_LAYOUT.get(layout))))
        raise ContractError(f"sparse_mla_decode: wanted extra_layout {both} beside {layout}, got {beside.name}")
    if (extra_cache is None) != (extra_indices is None):
        raise ContractError("sparse_mla_decode: wanted extra_cache and extra_indices together, got one of them")
    if (sched_meta is None) != (num_splits is None):
        raise ContractError("sparse_mla_decode: wanted sched_meta and num_splits together, got one of them")
    table, chosen = _entries(pages, cache, indices, lengths, page_size)
    if extra_cache is not None and extra_indices is not None:
        more, more_chosen = _entries(beside, extra_cache, extra_indices, extra_lengths, extra_page_size)
        chosen = tuple(torch.cat([own, extra + len(table)]) for own, extra in zip(chosen, more_chosen, strict=True))
        table = torch.cat([table, more])
    factor = q.shape[-1] ** -0.5 if scale is None else scale
    out, lse = torch.zeros_like(q), torch.empty(q.shape[:2], device=q.device)
    # Row by row and in float64: a row's bits do not depend on the other rows of the call, nor on their NaNs.
    for row, slots in enumerate(chosen):
        entries = table.index_select(0, slots)
        scores = q[row].double() @ entries.t() * factor
        total = scores.logsumexp(-1)
        weights = (scores - total[:, None]).exp()
        if sink is not None:
            weights = weights / (1 + (sink.double() - total).exp())[:, None]
        out[row] = (weights @ entries).float()
        lse[row] = total if len(slots) else torch.inf
    return out, lse


def _entries(
    pages: PageLayout, cache: Tensor, indices: Tensor, lengths: Tensor | None, page_size: int
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Return the distinct entries that any row names, [n, D] float64, and for each row which of them, in its order.

    Each slot is dequantised once, however many rows name it, and slots of invalid columns are not read.
    """
    valid = (indices >= 0) & (indices < cache.shape[0] * page_size)
    if lengths is not None:
        valid &= torch.arange(indices.shape[1], device=indices.device) < lengths[:, None]
    slots, where = torch.unique(indices[valid], return_inverse=True)
    return pages.load(cache, slots, page_size).double(), torch.split(where, valid.sum(1).tolist())


def _filled_cache(slots: int, page_size: int, generator: torch.Generator, layout: str = "kv_v4") -> Tensor:
    pages = -(-slots // page_size)
    cache = torch.zeros(pages, page_layout(layout).page_bytes(page_size), dtype=torch.uint8)
    rows = torch.randn(pages * page_size, 512, generator=generator)
    page_layout(layout).store(cache, torch.arange(pages * page_size), rows, page_size)
    return cache


def _cases(scale: str, seed: int) -> Iterator[Case]:
    generator = torch.Generator().manual_seed(seed)
    sizes = ((1, 2, 8, 4), (3, 3, 16, 16)) if scale == "small" else ((1, 16, 128, 512), (6, 16, 128, 512))
    for rows, heads, width, extra in sizes:
        page_size = 16 if scale == "small" else 64
        cache = _filled_cache(4 * width, page_size, generator)
        extra_cache = _filled_cache(4 * extra, page_size, generator)
        q = (2 * torch.randn(rows, heads, 512, generator=generator)).bfloat16()
        indices = torch.rand(rows, 4 * width, generator=generator).argsort(-1)[:, :width].int()
        extra_indices = torch.rand(rows, 4 * extra, generator=generator).argsort(-1)[:, :extra].int()
        sink = torch.randn(heads, generator=generator) * 3
        main: dict[str, Any] = {"q": q, "cache": cache, "indices": indices, "page_size": page_size}
        both = {**main, "extra_cache": extra_cache, "extra_indices": extra_indices, "extra_page_size": page_size}
        lengths = torch.randint(1, width + 1, (rows,), generator=generator).int()
        extra_lengths = torch.randint(1, extra + 1, (rows,), generator=generator).int()
        size = f"{rows}x{heads}, {width}+{extra} entries"
        yield Case(f"window only, {size}", main)
        yield Case(f"window with sink, {size}", {**main, "sink": sink})
        yield Case(f"window and extra cache with sink, {size}", {**both, "sink": sink})
        yield Case(
            f"lengths below the width, {size}",
            {**both, "sink": sink, "lengths": lengths, "extra_lengths": extra_lengths},
        )
        yield from _scheduled(size, {**both, "sink": sink}, lengths, extra_lengths, 12 if scale == "small" else 132)
        holes = indices.clone()
        holes[:, ::3] = -1
        yield Case(f"every third index is -1, {size}", {**both, "indices": holes, "sink": sink})
        beyond = indices.clone()
        beyond[:, 1] = cache.shape[0] * page_size
        yield Case(f"an index beyond the last page, {size}", {**main, "indices": beyond, "sink": sink})
        yield Case(f"slot 0, {size}", {**main, "indices": torch.where(indices == indices[:, :1], 0, indices)})
        yield Case(f"a sink of minus infinity is none, {size}", {**main, "sink": torch.full((heads,), -torch.inf)})
        yield Case(f"another scale, {size}", {**main, "sink": sink, "scale": 0.02})
    yield from _degenerate_cases(main, both, sink)
    yield from _known_pair()
    for layout in KV_LAYOUTS[1:]:
        caches = [_filled_cache(4 * entries, page_size, generator, layout) for entries in (width, extra)]
        other = {**both, "cache": caches[0], "extra_cache": caches[1], "layout": layout, "sink": sink}
        yield Case(f"both caches in {layout}, {size}", other)
    for layout, extra_layout in OTHER_EXTRA_LAYOUT.items():
        caches = [_filled_cache(4 * width, page_size, generator, layout)]
        caches.append(_filled_cache(4 * extra, page_size, generator, extra_layout))
        pair = {"cache": caches[0], "extra_cache": caches[1], "layout": layout, "extra_layout": extra_layout}
        yield Case(f"window in {layout}, extra entries in {extra_layout}, {size}", {**both, **pair, "sink": sink})


def _scheduled(size: str, both: dict[str, Any], lengths: Tensor, extra_lengths: Tensor, parts: int) -> Iterator[Case]:
    """Yield calls with the schedule of their lengths, in so many parts: full rows, some of each row, one cache."""
    rows, full, extra_full = len(lengths), torch.empty_like(lengths), torch.empty_like(lengths)
    full.fill_(both["indices"].shape[1])
    extra_full.fill_(both["extra_indices"].shape[1])
    some = {"lengths": lengths, "extra_lengths": extra_lengths}
    one = {"extra_cache": None, "extra_indices": None}
    for name, given, own, others in (
        ("full rows", {}, full, extra_full),
        ("lengths below the width", some, lengths, extra_lengths),
        ("one cache", {**one, "lengths": lengths}, lengths, None),
    ):
        meta, splits = torch.empty(parts, 8, dtype=torch.int32), torch.empty(rows + 1, dtype=torch.int32)
        mla_sched_meta(own, meta, splits, others, 0 if others is None else both["extra_indices"].shape[1])
        schedule = {"sched_meta": meta, "num_splits": splits}
        yield Case(f"a schedule of {parts} parts, {name}, {size}", {**both, **given, **schedule})


def _known_pair() -> Iterator[Case]:
    """Yield a call on bytes written by hand: a window entry of 3.0 in every lane, an extra one of 0.75, no query.

    The second time its schedule, by hand too, is handed over: of its two blocks, the extra one behind the window's.
    """
    cache = torch.tensor([0x44] * 512 + [127] * 16 + [0] * 496, dtype=torch.uint8)[None]
    extra_cache = torch.tensor([0x77] * 256 + [0x20] * 32 + [0] * 224, dtype=torch.uint8)[None]
    first = torch.zeros(1, 1, dtype=torch.int32)
    inputs = {
        "q": torch.zeros(1, 2, 512, dtype=torch.bfloat16), "cache": cache, "indices": first, "page_size": 1,
        "extra_cache": extra_cache, "extra_indices": first, "extra_page_size": 1,
        "layout": "kv_v41", "extra_layout": "kv_v41_fp4",
    }  # fmt: skip
    both = {"out": torch.full((1, 2, 512), 1.875, dtype=torch.bfloat16), "lse": torch.full((1, 2), 0.6931472)}
    schedule = {
        "sched_meta": torch.tensor([[0, 0, 0, 2, 0, 0, 0, 0]], dtype=torch.int32),
        "num_splits": torch.tensor([0, 1], dtype=torch.int32),
    }
    yield Case("two entries of equal weight, by their bytes in kv_v41 and kv_v41_fp4", inputs, both)
    yield Case("two entries of equal weight, with their schedule in one part", {**inputs, **schedule}, both)


def _degenerate_cases(main: dict[str, Any], both: dict[str, Any], sink: Tensor) -> Iterator[Case]:
    q, indices, cache = main["q"], main["indices"], main["cache"]
    rows, heads = q.shape[:2]
    nothing = {"out": torch.zeros_like(q), "lse": torch.full((rows, heads), torch.inf)}
    yield Case("all indices are -1", {**main, "indices": torch.full_like(indices, -1), "sink": sink}, nothing)
    yield Case("lengths of 0", {**main, "lengths": torch.zeros(rows, dtype=torch.int32), "sink": sink}, nothing)
    only_extra = {**both, "lengths": torch.zeros(rows, dtype=torch.int32), "sink": sink}
    yield Case("no window entry but extra ones", only_extra)
    poisoned = cache.clone()
    poisoned[0] = 0x7F
    away = torch.where(indices < main["page_size"], -1, indices)
    yield Case("NaN bytes in a page that no valid index names", {**main, "cache": poisoned, "indices": away})
    yield Case("one entry named twice counts twice", {**main, "indices": indices[:, :1].repeat(1, 2), "sink": sink})
    yield Case("no rows", {**main, "q": q[:0], "indices": indices[:0], "sink": sink})


def _sites(shapes: ModelShapes) -> tuple[Site, ...]:
    axes = {"A": shapes.heads, "D": shapes.head_dim, "W": shapes.window, "X": shapes.index_topk}
    facts: dict[str, Any] = {
        "layouts": {"cache": "kv_v4", "extra_cache": "kv_v4"},
        "options": {"page_size": shapes.page_size, "layout": "kv_v4"},
    }
    # A draft block sees the window and its own rows, and no compressed entries.
    draft = {**axes, "W": shapes.window + shapes.gamma, "X": 0}
    return (Site("verify", axes=axes, **facts), Site("draft", axes=draft, **facts))


SPARSE_MLA_DECODE = Contract(
    name="sparse_mla_decode",
    summary="Attention of each query head over the named cache entries, and its log-sum-exp.",
    source="N appendix A, N4, N7.1, C5.2",
    phases=("verify", "draft"),
    parameters=(
        Argument("q", ("T", "A", "D"), ("bfloat16",), doc="rotated queries"),
        Argument("cache", ("*", "*"), ("uint8",), layouts=KV_LAYOUTS, doc="pages of bytes"),
        Argument("indices", ("T", "W"), ("int32",), strides="unit_last", doc="cache slots, -1 for none"),
        Argument("lengths", ("T",), ("int32",), optional=True, doc="columns that count", values=between(0, "W")),
        Argument("sink", ("A",), ("float32",), optional=True, doc="logit that joins the denominator only"),
        Argument("extra_cache", ("*", "*"), ("uint8",), layouts=KV_LAYOUTS, optional=True, doc="compressed entries"),
        Argument("extra_indices", ("T", "X"), ("int32",), strides="unit_last", optional=True, doc="their slots"),
        Argument("extra_lengths", ("T",), ("int32",), optional=True, doc="columns that count", values=between(0, "X")),
        Option("page_size", "int", 64, doc="slots of a page of cache"),
        Option("extra_page_size", "int", 64, doc="slots of a page of extra_cache"),
        Option("layout", "str", "kv_v4", KV_LAYOUTS, doc="page layout of cache"),
        Option("scale", "float", None, doc="factor of the scores; None means D ** -0.5"),
        Option("extra_layout", "str", None, KV_LAYOUTS, doc="page layout of extra_cache; None means layout"),
        Argument("sched_meta", ("*", 8), ("int32",), optional=True, doc="records of its schedule", values=_COUNTS),
        Argument("num_splits", ("T+1",), ("int32",), optional=True, doc="splits before each row", values=_COUNTS),
    ),
    outputs=(
        Output("out", ("T", "A", "D"), "bfloat16", relative(1e-2), "weighted sum of the entries"),
        Output("lse", ("T", "A"), "float32", absolute(1e-4), "log-sum-exp without the sink; +inf without an entry"),
    ),
    rows="T",
    reference=sparse_mla_decode,
    cases=_cases,
    sites=_sites,
)

CONTRACTS = (SPARSE_MLA_DECODE,)
