"""Inputs for the selection contracts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from dspark_ops._lazy import torch
from dspark_ops.contracts.contract import Case

if TYPE_CHECKING:
    from torch import Generator, Tensor


def topk_cases(scale: str, seed: int) -> Iterator[Case]:
    """Yield inputs of `topk_rows`."""
    yield from _known_topk()
    generator = torch.Generator().manual_seed(seed)
    small, model = ((1, 8, 16), (4, 97, 8), (6, 700, 512)), ((1, 65536, 512), (6, 65536, 512), (64, 4096, 512))
    for rows, width, top_k in small if scale == "small" else model:
        edges = torch.tensor([width, 0, 1, width // 2, width - 1, min(top_k, width)], dtype=torch.int32)
        lengths = edges.repeat(-(-rows // 6))[:rows]
        random = torch.randn(rows, width, generator=generator)
        columns = torch.arange(width)
        kinds = {
            "distinct scores": random,
            "rounded scores with many ties": (random * 2).round().relu(),
            "all zeros": torch.zeros_like(random),
            "zeros of both signs": torch.where(random > 0, 0.0, -0.0),
            "all -inf": torch.full_like(random, -torch.inf),
            "all NaN": torch.full_like(random, float("nan")),
            "some NaN and infinities": torch.where(columns % 7 == 3, float("nan"), 1 / random.round()),
            "large magnitudes": random * 3e38,
        }
        for kind, scores in kinds.items():
            for order in ("position", "score"):
                inputs = {"scores": scores, "lengths": lengths, "top_k": top_k, "order": order}
                yield Case(f"{kind}, {top_k} of {rows}x{width} by {order}", inputs)
        wide = torch.full((rows, width + 16), torch.inf)
        wide[:, 7 : width + 7] = random
        inputs = {"scores": wide[:, 7 : width + 7], "lengths": lengths, "top_k": top_k}
        yield Case(f"columns of a wider buffer, {top_k} of {rows}x{width}", inputs)
    empty = {"scores": random[:0], "lengths": lengths[:0], "top_k": 3}
    yield Case("no rows", empty, {"ids": torch.empty(0, 3, dtype=torch.int32)})


def _known_topk() -> Iterator[Case]:
    nan, inf = float("nan"), float("inf")
    step = torch.zeros(5000)
    step[4000:4060] = 1.0
    ids = [*range(4000, 4060), *range(964)]
    yield _row("O03 a: 60 ones among zeros", step, 5000, 1024, "score", ids)
    yield _row("O03 a: the same by position", step, 5000, 1024, "position", [*range(964), *range(4000, 4060)])
    shared = torch.full((5020,), inf)
    shared[7:5007] = step
    yield _row("O03 e: the same from column 7 of a buffer", shared[7:5007], 5000, 1024, "score", ids)
    mixed = torch.tensor([1, nan, 3, 3, 3, 2, nan, 0, 3, 1])
    yield _row("O03 b: NaN first", mixed, 10, 4, "score", [1, 6, 2, 3])
    yield _row("O03 c: fewer than asked for", torch.tensor([5.0, 9.0, 7.0]), 3, 4, "score", [1, 2, 0, -1])
    yield _row("O03 d: -inf is a score", torch.full((6,), -inf), 6, 4, "score", [0, 1, 2, 3])
    yield _row("what is not visible is never chosen", torch.tensor([1.0, inf, nan]), 1, 2, "score", [0, -1])


def _row(name: str, row: Tensor, length: int, top_k: int, order: str, ids: list[int]) -> Case:
    lengths = torch.tensor([length], dtype=torch.int32)
    inputs = {"scores": row.unsqueeze(0), "lengths": lengths, "top_k": top_k, "order": order}
    return Case(name, inputs, {"ids": torch.tensor([ids], dtype=torch.int32)})


def filter_cases(scale: str, seed: int) -> Iterator[Case]:
    """Yield inputs of `filter_topk_pages`."""
    generator = torch.Generator().manual_seed(seed)
    for name, inputs in _choices(scale, generator):
        indices = inputs["indices"]
        out = torch.full(indices.shape, -7, dtype=torch.int32)
        yield Case(name, {**inputs, "page_indices": out, "raw_indices": None})
        yield Case(f"{name}, raw", {**inputs, "page_indices": out.clone(), "raw_indices": torch.full_like(indices, -7)})
        padded = torch.full((len(indices), indices.shape[1] + 64), -1, dtype=torch.int32)
        into = {"page_indices": padded[:, : indices.shape[1]], "raw_indices": None}
        yield Case(f"{name}, into a wider buffer", {**inputs, **into})
    yield from _known_filter()


def finish_cases(scale: str, seed: int) -> Iterator[Case]:
    """Yield inputs of `finish_topk_pages`."""
    generator = torch.Generator().manual_seed(seed)
    for name, inputs in _choices(scale, generator):
        indices = inputs["indices"]
        rows, chosen = indices.shape
        width = inputs["scores"].shape[1]
        lengths = torch.randint(0, width + 4, (rows,), generator=generator).int()
        for check_scores in (True, False):
            common = {**inputs, "lengths": lengths, "check_scores": check_scores}
            what = f"{name}, {'scores checked' if check_scores else 'scores not checked'}"
            out = torch.full((rows, chosen), -7, dtype=torch.int32)
            yield Case(what, {**common, "page_indices": out, "raw_indices": None})
            larger = torch.full((rows + 2, -(-chosen // 64) * 64 + 64), -7)
            into = {"page_indices": larger.int(), "raw_indices": larger.to(indices.dtype)}
            yield Case(f"{what}, into more rows and columns", {**common, **into})


def _choices(scale: str, generator: Generator) -> Iterator[tuple[str, dict[str, Any]]]:
    small = ((1, 5, 3, 2), (2, 1, 4, 2), (6, 97, 16, 8), (3, 64, 80, 16))
    model = ((1, 65536, 512, 256), (64, 4096, 512, 64))
    for rows, width, chosen, page_size in small if scale == "small" else model:
        scores = torch.randn(rows, width, generator=generator)
        special = torch.rand(rows, width, generator=generator)
        scores = torch.where(special < 0.1, float("nan"), scores)
        scores = torch.where((special > 0.1) & (special < 0.2), -torch.inf, scores)
        scores = torch.where((special > 0.2) & (special < 0.3), torch.inf, scores)
        pages = -(-width // page_size)
        table = torch.randint(0, 4 * pages, (rows, pages), generator=generator).int()
        indices = torch.randint(-3, width + 3, (rows, chosen), generator=generator)
        size = f"{chosen} of {rows}x{width}, pages of {page_size}"
        plain: dict[str, Any] = {
            "scores": scores, "indices": indices, "page_table": table, "page_size": page_size,
        }  # fmt: skip
        yield f"random int64, {size}", plain
        yield f"random int32, {size}", {**plain, "indices": indices.int()}
        far = torch.where(indices % 2 == 0, 2**31 - 1, -(2**31))
        yield f"all far outside, {size}", {**plain, "indices": far}
        views = {name: _in_wider(plain[name]) for name in ("scores", "indices", "page_table")}
        yield f"rows of wider buffers, {size}", {**plain, **views}
    yield "no rows", {**plain, **{name: plain[name][:0] for name in ("scores", "indices", "page_table")}}


def _in_wider(values: Tensor) -> Tensor:
    wide = values.new_full((values.shape[0], values.shape[1] + 5), 3)
    wide[:, 2:-3] = values
    return wide[:, 2:-3]


def _known_filter() -> Iterator[Case]:
    nan, inf = float("nan"), float("inf")
    scores = torch.tensor([[0.5, nan, -inf, inf, -0.0, 1.0]])
    indices = torch.tensor([[5, 1, 2, 3, -1, 6, 4, 5]])
    inputs = {
        "scores": scores, "indices": indices, "page_table": torch.tensor([[7, 0, 2]], dtype=torch.int32),
        "page_size": 2, "page_indices": torch.zeros(1, 8, dtype=torch.int32), "raw_indices": torch.zeros_like(indices),
    }  # fmt: skip
    expected = {
        "page_indices": torch.tensor([[5, -1, -1, 1, -1, -1, 4, 5]], dtype=torch.int32),
        "raw_indices": torch.tensor([[5, -1, -1, 3, -1, -1, 4, 5]]),
    }
    yield Case("NaN, infinities, repeats and choices outside", inputs, expected)
