"""Inputs of the operators on expert ids: words with known bits, padding of every length, tokens outside the table."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from dspark_ops._lazy import torch
from dspark_ops.contracts.contract import Case

if TYPE_CHECKING:
    from torch import Generator, Tensor

#: id, weight, word: O06, then the pair of N-B
KNOWN_WORDS = (
    (5, 0.5, 0x00053F00), (383, 1.0, 0x017F3F80), (-1, 0.0, 0xFFFF0000), (-1, -0.0, 0xFFFF8000),
    (5, -0.25, 0x0005BE80), (0, 1 / 3, 0x00003EAB), (32767, 1.0, 0x7FFF3F80), (383, 0.25, 0x017F3E80),
)  # fmt: skip
#: words whose weight needs a rule: rounding to even, infinities, NaN, subnormals, the lowest id
EDGE_WORDS = (
    (1, 1 + 2**-8, 0x00013F80), (1, 1 + 3 * 2**-8, 0x00013F82), (1, 1 + 2**-8 + 2**-20, 0x00013F81),
    (2, float("inf"), 0x00027F80), (2, float("-inf"), 0x0002FF80), (2, 3.4e38, 0x00027F80),
    (3, float("nan"), 0x00037FC0), (4, 2.0**-133, 0x00040001), (-32768, 1.0, 0x80003F80),
)  # fmt: skip


def _signed(word: int) -> int:
    return word - (1 << 32) if word >= 1 << 31 else word


def _words(words: tuple[tuple[int, float, int], ...]) -> tuple[dict[str, Any], dict[str, Any]]:
    ids = torch.tensor([[expert] for expert, _, _ in words], dtype=torch.int32)
    weights = torch.tensor([[weight] for _, weight, _ in words], dtype=torch.float32)
    packed = torch.tensor([[_signed(word)] for _, _, word in words], dtype=torch.int32)
    return {"ids": ids, "weights": weights}, {"output": packed}


def _choice(generator: Generator, rows: int, experts: int, top_k: int) -> tuple[Tensor, Tensor]:
    ids = torch.rand(rows, experts, generator=generator).argsort(-1)[:, :top_k].int()
    return ids.contiguous(), torch.rand(rows, top_k, generator=generator)


def pack_cases(scale: str, seed: int) -> Iterator[Case]:
    """Yield ids and weights to pack, both id types."""
    generator = torch.Generator().manual_seed(seed)
    for rows in (1, 6, 37) if scale == "small" else (6, 64, 8192):
        for experts, top_k in ((384, 6), (128, 3)):
            ids, weights = _choice(generator, rows, experts, top_k)
            yield Case(f"{rows}x{top_k}", {"ids": ids, "weights": weights})
            yield Case(f"{rows}x{top_k}, int64 ids", {"ids": ids.long(), "weights": weights})
            padded = (torch.arange(rows) >= rows // 2).unsqueeze(1)
            half = {"ids": ids.masked_fill(padded, -1), "weights": weights.masked_fill(padded, 0.0)}
            yield Case(f"{rows}x{top_k}, the second half padded", half)
    for name, words in (("O06", KNOWN_WORDS), ("edges of the weight", EDGE_WORDS)):
        inputs, expected = _words(words)
        yield Case(name, inputs, expected)
        yield Case(f"{name}, int64 ids", {**inputs, "ids": inputs["ids"].long()}, expected)
    nan = torch.tensor([[0x7FC00000, 0x7FFFFFFF, -1, -0x400000, 0x7F800001]], dtype=torch.int32)
    inputs = {"ids": torch.full((1, 5), 9, dtype=torch.int32), "weights": nan.view(torch.float32)}
    yield Case("NaN of every kind", inputs, {"output": torch.full((1, 5), 0x00097FC0, dtype=torch.int32)})
    empty = torch.empty(0, 6)
    yield Case("no rows", {"ids": empty.int(), "weights": empty}, {"output": empty.int()})


def fill_cases(scale: str, seed: int) -> Iterator[Case]:
    """Yield ids and weights with padding of every length, NaN in padded weights, rows of a wider buffer."""
    generator = torch.Generator().manual_seed(seed)
    for rows in (1, 5, 33) if scale == "small" else (6, 192, 8192):
        for top_k in (1, 3, 6, 8):
            ids, weights = _choice(generator, rows, 64, top_k)
            for valid in sorted({-3, 0, 1, rows - 1, rows, rows + 5}):
                poisoned = weights.clone()
                poisoned[max(valid, 0) :] = float("nan")
                inputs = {"ids": ids, "weights": poisoned, "num_valid": torch.tensor([valid], dtype=torch.int32)}
                yield Case(f"{rows}x{top_k}, {valid} valid", inputs)
            wide = torch.full((rows, top_k + 5), 77, dtype=torch.int32)
            wide[:, :top_k] = ids
            spread = torch.full((rows, top_k + 3), 7.5)
            spread[:, :top_k] = weights
            strided = {"ids": wide[:, :top_k], "weights": spread[:, :top_k], "pad_id": 0}
            yield Case(f"{rows}x{top_k}, strided rows", {**strided, "num_valid": torch.tensor([rows // 2])})
            long = {"ids": ids.long(), "weights": weights, "num_valid": torch.tensor([rows // 2])}
            yield Case(f"{rows}x{top_k}, int64 ids and count", long)
    empty = torch.empty(0, 6)
    yield Case("no rows", {"ids": empty.int(), "weights": empty, "num_valid": torch.tensor([0], dtype=torch.int32)})


def guarded_table() -> Tensor:
    """Return the table of O05, 16 tokens and 3 experts each, between two rows that must never be read."""
    buffer = torch.full((18, 3), 0x7F7F7F7F, dtype=torch.int32)
    buffer[1:17] = (torch.arange(16, dtype=torch.int32).unsqueeze(1) + torch.tensor([0, 3, 5])) % 8
    return buffer[1:17]


def hash_cases(scale: str, seed: int) -> Iterator[Case]:
    """Yield logits, tokens and tables; tokens outside the table, padding, degenerate rows."""
    generator = torch.Generator().manual_seed(seed)
    sizes = ((1, 8, 2, 5), (7, 128, 3, 50), (9, 384, 6, 97)) if scale == "small" else ((64, 384, 6, 129280),)
    for rows, experts, top_k, vocab in sizes:
        name = f"{rows}x{experts}, {top_k} chosen of {vocab} tokens"
        table = torch.randint(experts, (vocab, top_k), generator=generator, dtype=torch.int32)
        tokens = torch.randint(vocab, (rows,), generator=generator)
        for spread in (0.5, 8.0):
            logits = torch.randn(rows, experts, generator=generator) * spread
            plain = {"logits": logits, "input_ids": tokens, "table": table}
            yield Case(f"{name}, spread {spread:g}", plain)
        yield Case(f"{name}, a large epsilon", {**plain, "renorm_eps": 0.5})
        yield Case(f"{name}, bfloat16", {**plain, "logits": logits.bfloat16()})
        yield Case(f"{name}, float16, int32 tokens", {**plain, "logits": logits.half(), "input_ids": tokens.int()})
        yield Case(f"{name}, transposed logits", {**plain, "logits": logits.T.contiguous().T})
        poisoned = logits.clone()
        poisoned[rows // 2 :] = float("nan")
        count = torch.tensor([rows // 2], dtype=torch.int32)
        for pad_id in (-1, 0):
            padding = {"logits": poisoned, "num_valid": count, "pad_id": pad_id}
            yield Case(f"{name}, half of it padded with NaN, pad id {pad_id}", {**plain, **padding})
        strange = tokens.clone()
        strange[::2] = torch.tensor([vocab, -1, 2**40])[torch.arange(len(strange[::2])) % 3]
        outside = torch.where(((strange < 0) | (strange >= vocab)).unsqueeze(1), float("nan"), logits)
        yield Case(f"{name}, tokens outside the table, NaN there", {**plain, "input_ids": strange, "logits": outside})
    for dtype in (torch.int32, torch.int64):
        tokens = torch.tensor([0, 15, 16, -1, 2147483647], dtype=dtype)
        inputs = {"logits": torch.zeros(5, 8), "input_ids": tokens, "table": guarded_table()}
        ids = torch.tensor([[0, 3, 5], [7, 2, 4], *[[-1, -1, -1]] * 3], dtype=torch.int32)
        yield Case(f"O05, {str(dtype).removeprefix('torch.')}", inputs, {"ids": ids})
    low = torch.tensor([[float("-inf"), -200.0, float("-inf"), 1.0]])
    inputs = {"logits": low, "input_ids": torch.tensor([0]), "table": torch.tensor([[0, 2]], dtype=torch.int32)}
    yield Case("only experts without any score", inputs, {"weights": torch.zeros(1, 2)})
    empty = {"logits": torch.empty(0, 8), "input_ids": torch.empty(0, dtype=torch.int64), "table": guarded_table()}
    yield Case("no rows", empty, {"weights": torch.empty(0, 3), "ids": torch.empty(0, 3, dtype=torch.int32)})
