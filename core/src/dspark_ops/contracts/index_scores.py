"""Index scores: how well each cached entry suits a query row, by which the entries to attend to are chosen."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from dspark_ops._lazy import torch
from dspark_ops.contracts.contract import Argument, Case, Contract, Option, Output, Site
from dspark_ops.contracts.exactness import relative
from dspark_ops.contracts.layouts import page_layout
from dspark_ops.contracts.numerics import round_bf16
from dspark_ops.contracts.values import between, index_into
from dspark_ops.errors import ContractError

if TYPE_CHECKING:
    from torch import Tensor

    from dspark_ops.contracts.model_shapes import ModelShapes

NUMERICS = ("bf16_steps", "fp32")


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

    A score is the sum over the heads of ``relu(q . key) * weight``. With ``bf16_steps``, the rounding that the model
    was trained with, the dot product, each head's product and the sum are rounded to bfloat16, so that equal scores are
    common; with ``fp32`` nothing is. The two differ by up to a hundredth of the spread of the scores and choose
    different entries: they are two operators under one name, never stand-ins for each other.

    Args:
        q: [T, A, D] bfloat16, rotated and rounded to the fp4 grid of each 32 lanes.
        weights: [T, A] bfloat16 or float32, of the heads, scaled.
        cache: [pages, page_bytes] uint8, index keys.
        page_table: [T, P] int32, pages of each row's keys; those behind its last entry are not read.
        lengths: [T] int32, entries that the row may see: ``(position + 1) // ratio``, at most ``P * page_size``.
        page_size: slots of a page of `cache`, a power of two.
        numerics: ``bf16_steps`` or ``fp32``.
        layout: name of the page layout of `cache`.

    Returns:
        [T, P * page_size] float32.

    Raises:
        ContractError: unknown numerics or layout, queries of another width, or a cache without the layout's page size.

    Source: N10.1. Accumulated in float64, row by row: codes and scales are exact there, and a row's bits do not depend
    on the other rows of the call.
    """
    pages = page_layout(layout)
    if numerics not in NUMERICS:
        raise ContractError(f"index_scores: numerics is {numerics!r}: wanted {' or '.join(NUMERICS)}")
    if q.shape[-1] != pages.width:
        raise ContractError(f"index_scores: wanted {pages.width} lanes for layout {layout}, got {q.shape[-1]}")
    pages.views(cache, page_size)
    column = torch.arange(page_table.shape[1] * page_size, device=q.device)
    visible = column < lengths[:, None]
    slots = page_table.long()[:, column // page_size] * page_size + column % page_size
    out = torch.full(visible.shape, -torch.inf, device=q.device)
    for row in range(q.shape[0]):
        keys = pages.load(cache, torch.where(visible[row], slots[row], 0), page_size)
        dots = (q[row].double() @ keys.double().t()).float()
        score = head_sum(dots, weights[row].float(), numerics)
        out[row] = torch.where(visible[row], score, -torch.inf)
    return out


def head_sum(dots: Tensor, weights: Tensor, numerics: str) -> Tensor:
    """Return the scores [N] float32 of dot products [A, N] float32 under the weights [A] float32 of the heads."""
    if numerics == "fp32":
        return (dots.relu().double() * weights.double()[:, None]).sum(0).float()
    products = round_bf16(round_bf16(dots).relu() * weights[:, None])
    return round_bf16(products.double().sum(0).float())


def _cases(scale: str, seed: int) -> Iterator[Case]:
    generator = torch.Generator().manual_seed(seed)
    sizes = ((1, 2, 3, 8), (6, 4, 5, 16), (5, 32, 3, 64)) if scale == "small" else ((1, 32, 256, 64), (6, 32, 256, 256))
    for rows, heads, pages, page_size in sizes:
        inputs = _inputs(rows, heads, pages, page_size, generator)
        name = f"{rows} rows, {heads} heads, {pages} pages of {page_size}"
        for numerics in NUMERICS:
            for kind, changed in _changed(inputs, generator):
                yield Case(f"{kind}, {name}, {numerics}", {**inputs, **changed, "numerics": numerics})
    nothing = {key: inputs[key][:0] for key in ("q", "weights", "page_table", "lengths")}
    yield Case("no rows", {**inputs, **nothing})


def _changed(inputs: dict[str, Any], generator: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    q, table, width = inputs["q"], inputs["page_table"], inputs["page_table"].shape[1] * inputs["page_size"]
    yield "full rows", {}
    edges = torch.tensor([0, 1, inputs["page_size"], inputs["page_size"] + 1, width - 1, width], dtype=torch.int32)
    lengths = edges.repeat(-(-len(q) // 6))[: len(q)]
    yield "lengths at the borders of pages", {"lengths": lengths}
    beyond = torch.arange(table.shape[1]) * inputs["page_size"] >= lengths[:, None]
    yield "pages of -1 behind the last entry", {"lengths": lengths, "page_table": torch.where(beyond, -1, table).int()}
    yield "queries of zero", {"q": torch.zeros_like(q)}
    yield "weights of both signs in float32", {"weights": torch.randn(q.shape[:2], generator=generator)}
    yield "weights of zero", {"weights": torch.zeros_like(inputs["weights"])}


def _inputs(rows: int, heads: int, pages: int, page_size: int, generator: Any) -> dict[str, Any]:
    layout = page_layout("index_k_page68")
    cache = torch.zeros(pages + 1, layout.page_bytes(page_size), dtype=torch.uint8)
    keys = torch.randn((pages + 1) * page_size, layout.width, generator=generator) * 2
    layout.store(cache, torch.arange(len(keys)), keys, page_size)
    grid = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])[torch.randint(0, 8, (rows, heads, 128), generator=generator)]
    sign = torch.where(torch.rand(rows, heads, 128, generator=generator) < 0.5, -1.0, 1.0)
    step = torch.randint(-4, 3, (rows, heads, 4), generator=generator).repeat_interleave(32, -1)
    table = torch.stack([torch.randperm(pages + 1, generator=generator)[:pages] for _ in range(rows)])
    return {
        "q": torch.ldexp(grid * sign, step).bfloat16(),
        "weights": (torch.randn(rows, heads, generator=generator) * 0.05).bfloat16(),
        "cache": cache,
        "page_table": table.int(),
        "lengths": torch.full((rows,), pages * page_size, dtype=torch.int32),
        "page_size": page_size,
        "layout": "index_k_page68",
    }


def _sites(shapes: ModelShapes) -> tuple[Site, ...]:
    axes = {"A": shapes.index_heads, "D": shapes.index_head_dim}
    options = {"numerics": "bf16_steps", "layout": "index_k_page68"}
    return (Site("verify", axes=axes, layouts={"cache": "index_k_page68"}, options=options),)


INDEX_SCORES = Contract(
    name="index_scores",
    summary="Score of each cached entry for each query row.",
    source="N10.1",
    phases=("verify",),
    parameters=(
        Argument("q", ("T", "A", "D"), ("bfloat16",), doc="queries on the fp4 grid"),
        Argument("weights", ("T", "A"), ("bfloat16", "float32"), doc="weights of the heads"),
        Argument("cache", ("*", "*"), ("uint8",), layouts=("index_k_page68",), doc="pages of index keys"),
        Argument(
            "page_table",
            ("T", "*"),
            ("int32",),
            strides="unit_last",
            doc="pages of each row",
            values=index_into("cache[0]", leading="lengths/page_size"),
        ),
        Argument(
            "lengths",
            ("T",),
            ("int32",),
            doc="entries that the row may see",
            values=between(0, "page_table[1]*page_size"),
        ),
        Option("page_size", "int", doc="slots of a page, a power of two"),
        Option("numerics", "str", "bf16_steps", NUMERICS, "what is rounded to bfloat16"),
        Option("layout", "str", "index_k_page68", ("index_k_page68",), "page layout of cache"),
    ),
    outputs=(
        Output(
            "scores",
            ("T", "*"),
            "float32",
            relative(1e-4),
            "scores; -inf, exactly, where not visible",
            shape_of=lambda call: (call["q"].shape[0], call["page_table"].shape[1] * call["page_size"]),
        ),
    ),
    rows="T",
    reference=index_scores,
    cases=_cases,
    sites=_sites,
)

CONTRACTS = (INDEX_SCORES,)
