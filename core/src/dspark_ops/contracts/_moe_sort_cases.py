"""Inputs of `moe_sort`: masks of every kind, full and overfull blocks, padded and repeated rows, known vectors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from dspark_ops._lazy import torch
from dspark_ops.contracts.contract import Case

if TYPE_CHECKING:
    from torch import Generator, Tensor


def cases(scale: str, seed: int) -> Iterator[Case]:
    """Yield routed rows to sort."""
    generator = torch.Generator().manual_seed(seed)
    small = ((1, 8, 2, 4), (4, 16, 3, 4), (24, 384, 6, 32), (37, 128, 3, 32))
    for rows, experts, top_k, block in small if scale == "small" else _model_sizes():
        name = f"{rows} rows, {top_k} of {experts}, blocks of {block}"
        ids, weights = _routed(generator, rows, experts, top_k)
        plain = {
            "topk_ids": ids, "topk_weights": weights, "experts": experts,
            "model_dim": 16 if scale == "small" else 5120, "block_size": block,
        }  # fmt: skip
        yield Case(f"{name}, no mask", plain)
        yield Case(
            f"{name}, no mask, accumulating in float32", {**plain, "accumulate": True, "buffer_dtype": "float32"}
        )
        for what, mask in _masks(generator, experts):
            yield Case(f"{name}, {what}", {**plain, "expert_mask": mask})
        mask = torch.zeros(experts, dtype=torch.int32)
        mask[: experts // 4] = 1
        ranked = {**plain, "expert_mask": mask}
        for pad_id in (-1, 0):
            padded = ids.clone()
            padded[rows // 2 :] = pad_id
            masked_weights = weights.clone()
            masked_weights[rows // 2 :] = 0.0
            rest = {**ranked, "topk_ids": padded, "topk_weights": masked_weights}
            yield Case(f"{name}, half padded with {pad_id}", rest)
            yield Case(f"{name}, half padded with {pad_id}, highest slot only", {**rest, "dedupe": True})
        for valid in sorted({0, rows // 2, rows}):
            wild = ids.clone()
            wild[valid:], wild[valid:, :1] = 2**31 - 1, experts
            count = torch.tensor([valid], dtype=torch.int32)
            rest = {**ranked, "topk_ids": wild, "num_valid": count}
            yield Case(f"{name}, {valid} live rows, garbage behind", rest)
            yield Case(f"{name}, {valid} live rows, experts behind", {**rest, "topk_ids": ids, "expert_mask": None})
    yield from _full_blocks()
    many = torch.arange(2 * 128, dtype=torch.int32).view(2, 128) % 140
    wide = {"topk_ids": many, "topk_weights": torch.rand(2, 128), "experts": 140, "model_dim": 8, "block_size": 4}
    yield Case("more than 127 slots, whose words are negative", wide)
    outside = {**wide, "topk_ids": many[:, :3].contiguous() + 138, "topk_weights": torch.ones(2, 3)}
    yield Case("ids at the number of experts and behind", outside, {"num_valid_ids": torch.tensor([8, 2]).int()})
    yield from _known()
    for what, held in (("none", None), ("held", [1, 1]), ("remote", [0, 0])):
        inputs = _inputs([], None, held, block=4, top_k=2, experts=2)
        expected = {"num_valid_ids": torch.zeros(2, dtype=torch.int32)}
        yield Case(f"O17 d: no rows, mask {what}", inputs, expected)


def _model_sizes() -> Iterator[tuple[int, int, int, int]]:
    for rows in (1, 4, 24, 32, 37, 128, 192):
        yield rows, 384, 6, 32
        yield rows, 128, 3, 32


def _routed(generator: Generator, rows: int, experts: int, top_k: int) -> tuple[Tensor, Tensor]:
    ids = torch.rand(rows, experts, generator=generator).argsort(-1)[:, :top_k]
    return ids.int().contiguous(), torch.rand(rows, top_k, generator=generator)


def _masks(generator: Generator, experts: int) -> Iterator[tuple[str, Tensor]]:
    yield "random mask", torch.randint(2, (experts,), generator=generator, dtype=torch.int32)
    yield "all held, mask values of any size", torch.arange(1, experts + 1, dtype=torch.int32) * 7
    yield "all remote", torch.zeros(experts, dtype=torch.int32)
    one = torch.zeros(experts, dtype=torch.int32)
    one[experts // 2] = -1
    yield "one expert held", one
    rank = torch.zeros(experts, dtype=torch.int32)
    rank[experts // 2 : experts // 2 + experts // 4] = 1
    yield "the third of four ranks", rank


def _full_blocks() -> Iterator[Case]:
    for rows, blocks in ((32, 1), (33, 2), (128, 4)):
        ids = torch.stack((torch.full((rows,), 2), torch.arange(rows) % 2), 1).int()
        inputs = {
            "topk_ids": ids, "topk_weights": torch.rand(rows, 2), "experts": 4, "model_dim": 8, "block_size": 32,
            "expert_mask": torch.tensor([0, 0, 1, 1], dtype=torch.int32),
        }  # fmt: skip
        expected = {"num_valid_ids": torch.tensor([blocks * 32, rows], dtype=torch.int32)}
        yield Case(f"{rows} rows on one expert: {blocks} blocks", inputs, expected)


def _inputs(
    ids: list[list[int]], weights: list[list[float]] | None, mask: list[int] | None, block: int, **sizes: int
) -> dict[str, Any]:
    top_k = sizes.get("top_k", 2)
    chosen = torch.tensor(ids, dtype=torch.int32).view(len(ids), top_k)
    shares = torch.ones(chosen.shape) if weights is None else torch.tensor(weights)
    return {
        "topk_ids": chosen, "topk_weights": shares, "experts": sizes.get("experts", 4), "model_dim": 8,
        "block_size": block, "expert_mask": None if mask is None else torch.tensor(mask, dtype=torch.int32),
    }  # fmt: skip


def _known() -> Iterator[Case]:
    def count(*values: int) -> dict[str, Tensor]:
        return {"num_valid_ids": torch.tensor(values, dtype=torch.int32)}

    shares = [[0.5, 0.25], [0.75, 0.125], [0.3, 0.6]]
    yield Case("the vector of A4", _inputs([[0, 3], [3, 1], [2, 3]], shares, [1, 0, 1, 1], 4), count(12, 3))
    yield Case("O17 a", _inputs([[0, 2], [2, 0], [2, 3]], None, [1, 0, 1, 0], 4), count(8, 3))
    yield Case("O17 b", _inputs([[0, 2], [2, 0], [2, 3]], None, [0, 1, 0, 0], 4), count(0, 3))
    twice = _inputs([[2, 2, 1], [1, 2, 1], [3, 3, 3]], None, None, 4, top_k=3)
    yield Case("experts named twice in a row", {**twice, "dedupe": True}, count(12, 3))
    alone = _inputs([[0], [1], [-1], [0]], None, [1], 4, experts=1, top_k=1)
    yield Case("a single expert, and ids that are none", alone, count(4, 4))
    every = [[2, 0], [2, 1], [2, 3], [2, 0], [2, 1]]
    yield Case("O17 c", _inputs(every, None, [0, 0, 1, 0], 4), count(8, 5))
