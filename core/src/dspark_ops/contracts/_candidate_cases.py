"""Inputs for the candidate contracts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from dspark_ops._lazy import torch
from dspark_ops.contracts.contract import Case

if TYPE_CHECKING:
    from torch import Generator, Tensor


def block_cases(scale: str, seed: int) -> Iterator[Case]:
    """Yield inputs of `candidate_blocks` in both forms."""
    generator = torch.Generator().manual_seed(seed)
    small = ((65, 32, 8), (65, 8, 2), (511, 8, 16), (4096, 128, 8))
    model = ((32768, 2048, 8), (4096, 8, 2048), (65536, 8, 2048), (1048576, 2048, 8), (1048576, 8, 2048))
    for width, block_size, topk_blocks in small if scale == "small" else model:
        lens = torch.tensor([0, 1, width // 2, width - 1, width, width], dtype=torch.int32)
        sizes = {"topk_blocks": topk_blocks, "block_size": block_size}
        for kind, logits in _logits(width, block_size, generator):
            name = f"{kind}, 6x{width}, {topk_blocks} blocks of {block_size}"
            plain: dict[str, Any] = {"logits": logits, "seq_lens": lens, **sizes}
            yield Case(name, plain)
            published = torch.rand(6, width, generator=generator) < 0.3
            yield Case(f"{name}, consumer", {**plain, "published": published})
        yield Case(f"{name}, bfloat16", {**plain, "logits": logits.bfloat16()})
        wide = torch.full((6, width + 24), float("nan"))
        wide[:, 8 : width + 8] = logits
        yield Case(f"{name}, columns of a wider buffer", {**plain, "logits": wide[:, 8 : width + 8]})
    yield Case("no rows", {**plain, "logits": logits[:0], "seq_lens": lens[:0]})


def _logits(width: int, block_size: int, generator: Generator) -> Iterator[tuple[str, Tensor]]:
    nan = float("nan")
    random = torch.randn(6, width, generator=generator)
    yield "distinct scores", random
    yield "coarse scores with many ties", (random * 2).round().relu()
    yield "all zeros", torch.zeros(6, width)
    yield "zeros of both signs", torch.where(random > 0, 0.0, -0.0)
    yield "all -inf", torch.full((6, width), -torch.inf)
    yield "a NaN in column 0", torch.where(torch.arange(width) == 0, nan, random)
    yield "NaN in every other block", torch.where(torch.arange(width) // block_size % 2 == 0, nan, random)
    yield "NaN in every newest block", torch.where(torch.arange(width) >= width // 2 - 1, nan, random)
    yield "infinities", torch.where(torch.arange(width) % (3 * block_size) == 1, torch.inf, random)


def length_cases(scale: str, seed: int) -> Iterator[Case]:
    """Yield inputs of `candidate_lengths`."""
    edges = torch.tensor([0, 1, 7, 8, 9, 16383, 16384, 16385, 1000000, 1048571], dtype=torch.int32)
    for rows in (0, 1, 65) if scale == "small" else (1023, 1024, 1025):
        lens = edges.repeat(-(-rows // len(edges)))[:rows]
        for topk_blocks, block_size in ((2048, 8), (1, 8), (256, 8), (8, 2048)):
            for exact_tail in (False, True):
                sizes = {"topk_blocks": topk_blocks, "block_size": block_size, "exact_tail": exact_tail}
                tail = "exact tails" if exact_tail else "whole blocks"
                yield Case(f"{rows} rows, {topk_blocks} blocks of {block_size}, {tail}", {"seq_lens": lens, **sizes})
    yield _known_lengths("A15: whole blocks", [0, 9, 16385], False, [0, 2, 2049], [0, 16, 16384])
    yield _known_lengths("N10.5: exact tails", [0, 9, 16384, 16385], True, [0, 2, 2048, 2049], [0, 9, 16384, 16377])


def _known_lengths(name: str, lens: list[int], exact_tail: bool, blocks: list[int], compact: list[int]) -> Case:
    expected = {
        "block_lens": torch.tensor(blocks, dtype=torch.int32),
        "compact_lens": torch.tensor(compact, dtype=torch.int32),
        "compact_page_table": torch.zeros(len(lens), 1, dtype=torch.int32),
    }
    return Case(name, {"seq_lens": torch.tensor(lens, dtype=torch.int32), "exact_tail": exact_tail}, expected)
