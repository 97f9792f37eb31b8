"""Row argmax: the target's greedy token for each verify row."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from dspark_ops._lazy import torch
from dspark_ops.contracts.contract import Argument, Case, Contract, Output, Semantic, Site
from dspark_ops.contracts.exactness import bitwise

if TYPE_CHECKING:
    from torch import Tensor

    from dspark_ops.contracts.model_shapes import ModelShapes


def argmax_rows(x: Tensor) -> Tensor:
    """Return the index of each row's first NaN, else of its maximum, the lowest of equal ones.

    Args:
        x: [R, V] float32, bfloat16 or float16, last stride 1.

    Returns:
        [R] int64. -0.0 equals +0.0; a row of -inf gives 0.

    Source: N1, choice 1 of the index. Torch's own argmax has this rule; it is spelled out so that it cannot change.
    """
    nan = torch.isnan(x)
    largest = torch.where(nan, -torch.inf, x).amax(-1, keepdim=True)
    hit = torch.where(nan.any(-1, keepdim=True), nan, x == largest)
    return hit.int().argmax(-1)


def _cases(scale: str, seed: int) -> Iterator[Case]:
    generator = torch.Generator().manual_seed(seed)
    sizes = ((1, 8), (3, 97), (6, 4099), (7, 8192)) if scale == "small" else ((1, 129280), (6, 129280), (64, 129280))
    for rows, vocab in sizes:
        x = torch.randn(rows, vocab, generator=generator)
        yield Case(f"random {rows}x{vocab}", {"x": x})
        yield Case(f"coarse values with many ties {rows}x{vocab}", {"x": (x * 2).round()})
        yield Case(f"bfloat16 {rows}x{vocab}", {"x": x.bfloat16()})
        yield Case(f"all equal {rows}x{vocab}", {"x": torch.zeros(rows, vocab)})
        wide = torch.full((rows, vocab + 64), 1e30)
        wide[:, :vocab] = x
        yield Case(f"columns of a wider buffer {rows}x{vocab}", {"x": wide[:, :vocab]})
    yield from _special_rows(sizes[-1][1])
    yield Case("no rows", {"x": torch.empty(0, 16)}, {"output": torch.empty(0, dtype=torch.int64)})


def _special_rows(vocab: int) -> Iterator[Case]:
    nan, inf = float("nan"), float("inf")
    rows = torch.tensor(
        [
            [nan] * 8,
            [1, nan, 5, nan, 0, 0, 0, 0],
            [-inf] * 8,
            [2, 7, 7, 1, 7, 0, 0, 0],
            [-inf, -inf, -inf, -5, -inf, -inf, -inf, -inf],
            [inf, 3, inf, nan, 0, 0, 0, 0],
            [-0.0, 0.0, -0.0, 0, 0, 0, 0, 0],
        ]
    )
    expected = {"output": torch.tensor([0, 1, 0, 1, 3, 3, 0])}
    yield Case("NaN, infinities, ties and signed zeros", {"x": rows}, expected)
    yield Case("the same in bfloat16", {"x": rows.bfloat16()}, expected)
    embedded = torch.full((7, vocab), -inf)
    embedded[:, :8] = rows
    embedded[0] = nan
    yield Case("the same at the head of a wide row", {"x": embedded}, expected)
    tail = torch.full((1, vocab), -inf)
    tail[0, -1] = nan
    yield Case("a NaN in the last column only", {"x": tail}, {"output": torch.tensor([vocab - 1])})


def _sites(shapes: ModelShapes) -> tuple[Site, ...]:
    return (Site("verify", axes={"V": shapes.vocab}, strides={"x": "unit_last"}),)


ARGMAX_ROWS = Contract(
    name="argmax_rows",
    summary="Greedy token id of each row of logits.",
    source="N1",
    phases=("verify",),
    parameters=(Argument("x", ("R", "V"), ("float32", "bfloat16", "float16"), strides="unit_last", doc="logits"),),
    outputs=(Output("output", ("R",), "int64", bitwise(), "column index per row"),),
    rows="R",
    reference=argmax_rows,
    cases=_cases,
    sites=_sites,
    semantics=(
        Semantic("nan", "first", ("first", "ignored"), "which id a row with a NaN gives"),
        Semantic("ties", "lowest", ("lowest", "any"), "which of several equal maxima"),
    ),
)

CONTRACTS = (ARGMAX_ROWS,)
