"""Inputs of `markov_block`, made so that every implementation must find the same drafts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from dspark_ops._lazy import torch
from dspark_ops.contracts.contract import Case

if TYPE_CHECKING:
    from torch import Generator


def cases(scale: str, seed: int) -> Iterator[Case]:
    """Yield test inputs: every kind of head, ties, special values, greedy, drawn and mixed rows."""
    generator = torch.Generator().manual_seed(seed)
    sizes = ((3, 5, 67, 16), (2, 3, 1031, 8)) if scale == "small" else ((1, 5, 129280, 256), (8, 5, 129280, 256))
    for rows, gamma, vocab, rank in sizes:
        name = f"{rows}x{gamma}, vocabulary {vocab}, rank {rank}"
        exact = _inputs(generator, rows, gamma, vocab, rank, coarse=True)
        yield Case(f"{name}, exact products with ties", exact)
        for dtype in ("bfloat16", "float16"):
            yield Case(f"{name}, exact products, sum in {dtype}", {**exact, "step_dtype": dtype})
        half = {**exact, "embed": exact["embed"].bfloat16(), "head": exact["head"].bfloat16()}
        yield Case(f"{name}, bfloat16 head with ties", half)
        plain = _inputs(generator, rows, gamma, vocab, rank)
        drawn = _sampling(generator, rows, gamma)
        yield Case(name, plain)
        yield Case(f"{name}, drawn", {**plain, **drawn})
        cold = torch.tensor([0.0, 1e-6, 0.7]).repeat(rows)[:rows]
        yield Case(f"{name}, greedy and drawn rows", {**plain, **drawn, "temperature": cold})
        for kind in ("gated", "rnn"):
            gate = _gate(generator, kind, rows, gamma, rank)
            yield Case(f"{name}, {kind}", {**plain, **gate})
            yield Case(f"{name}, {kind}, drawn", {**plain, **gate, **drawn})
        wide = torch.full((rows, gamma, vocab + 24), 1e30)
        wide[..., :vocab] = plain["base"]
        yield Case(f"{name}, columns of wider logits", {**plain, "base": wide[..., :vocab]})
        padded = plain["anchor"].clone()
        padded[-1] = -1
        padded[0] = vocab + 3
        yield Case(f"{name}, anchors outside the table", {**plain, "anchor": padded})
    yield from _special_values()
    empty = _inputs(generator, 0, 5, 16, 4)
    yield Case("no rows", empty, {"drafts": torch.empty(0, 5, dtype=torch.int64)})


def _inputs(generator: Generator, rows: int, gamma: int, vocab: int, rank: int, coarse: bool = False) -> dict[str, Any]:
    base = torch.randn(rows, gamma, vocab, generator=generator) * 2
    embed = torch.randn(vocab, rank, generator=generator)
    head = torch.randn(vocab, rank, generator=generator) * rank**-0.5
    if coarse:  # quarters: every product and sum is exact in any order, and equal sums are common
        base, embed, head = base.round(), (embed * 2).round() / 4, (head * 4).round() / 4
    return {"base": base, "anchor": torch.randint(vocab, (rows,), generator=generator), "embed": embed, "head": head}


def _gate(generator: Generator, kind: str, rows: int, gamma: int, rank: int, width: int = 24) -> dict[str, Any]:
    shape = (rank, width + rank) if kind == "gated" else (3 * rank, 2 * rank + width)
    return {
        "hidden": torch.randn(rows, gamma, width, generator=generator).bfloat16(),
        "gate_weight": torch.randn(shape, generator=generator) * shape[1] ** -0.5,
        "gate_bias": torch.randn(shape[0], generator=generator) * 0.1,
        "kind": kind,
    }


def _sampling(generator: Generator, rows: int, gamma: int) -> dict[str, Any]:
    return {
        "uniforms": torch.rand(rows, gamma, generator=generator),
        "temperature": 0.5 + torch.rand(rows, generator=generator),
    }


def _special_values() -> Iterator[Case]:
    nan, inf = float("nan"), float("inf")
    rows = torch.tensor(
        [
            [nan] * 6,
            [1, nan, 5, nan, 0, 0],
            [-inf] * 6,
            [2, 7, 7, 1, 7, 0],
            [inf, 3, inf, nan, 0, 0],
            [0, inf, 0, inf, 0, 0],
        ]
    )
    inputs = {
        "base": rows.unsqueeze(1), "anchor": torch.zeros(6, dtype=torch.int64),
        "embed": torch.zeros(6, 2), "head": torch.ones(6, 2),
    }  # fmt: skip
    greedy = torch.tensor([[0], [1], [0], [1], [3], [1]])
    yield Case("NaN, infinities and ties", inputs, {"drafts": greedy})
    hot = {"uniforms": torch.full((6, 1), 0.999), "temperature": torch.ones(6)}
    drawn = greedy.clone()
    drawn[3] = 4  # the only row that has a law: three times 0.33, and 0.999 falls into the tail of the last
    law = torch.nn.functional.one_hot(greedy, 6).float()
    law[3, 0] = rows[3].double().softmax(-1).float()
    yield Case("the same, drawn", {**inputs, **hot}, {"drafts": drawn, "probs": law})
    opposite = torch.tensor([[3.0], [-3.0]])
    anchors = {"base": torch.zeros(3, 1, 2), "embed": opposite, "head": opposite, "anchor": torch.tensor([0, -1, 1])}
    yield Case("token 0 as the anchor, and none", anchors, {"drafts": torch.tensor([[0], [0], [1]])})
    two = {**inputs, "base": torch.tensor([[[0.0, -inf, 0.0, -inf, -inf, -inf]]]), "anchor": torch.zeros(1).long()}
    edge = {"temperature": torch.ones(1)}
    for coin, token in ((0.0, 0), (0.4999, 0), (0.5, 2), (1.0, 2)):
        case = {**two, **edge, "uniforms": torch.tensor([[coin]])}
        yield Case(f"two equal tokens, coin {coin}", case, {"drafts": torch.tensor([[token]])})
    least = {**two, "temperature": torch.tensor([1e-5]), "uniforms": torch.tensor([[0.6]])}
    yield Case("two equal tokens at the least temperature that draws", least, {"drafts": torch.tensor([[2]])})
