"""Inputs of `accept_sampled`: laws in 256ths, whose sums and products are exact in any order, and the edges."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from dspark_ops._lazy import torch
from dspark_ops.contracts.contract import Case

if TYPE_CHECKING:
    from torch import Generator, Tensor

BELOW_ONE = 1.0 - 2.0**-24
"""The largest float32 below 1."""


def cases(scale: str, seed: int) -> Iterator[Case]:
    """Yield test inputs: both variants, both trims, ragged and padded rows, degenerate laws, known draws."""
    generator = torch.Generator().manual_seed(seed)
    sizes = ((1, 1, 16), (5, 3, 67), (4, 5, 512)) if scale == "small" else ((1, 5, 129280), (16, 5, 129280))
    for batch, gamma, vocab in sizes:
        step = _step(generator, batch, gamma, vocab)
        lens = torch.randint(gamma + 2, (batch,), generator=generator)
        name = f"{batch} requests, {gamma} drafts, vocabulary {vocab}"
        for variant, trim in (("token", "fresh"), ("token", "boundary"), ("block", "fresh")):
            form = {"variant": variant, "trim": trim}
            yield Case(f"{name}, {variant}, {trim}", {**step, **form})
            yield Case(f"{name}, {variant}, {trim}, ragged int32", {**step, **form, "verify_lens": lens.int()})
            yield Case(f"{name}, {variant}, {trim}, ragged int64", {**step, **form, "verify_lens": lens})
            yield Case(f"{name}, {variant}, {trim}, rows past the cut poisoned", _poisoned(step, lens, form))
            damaged = _damaged(step, form)
            yield Case(f"{name}, {variant}, {trim}, missing drafts and NaN rows", damaged)
            yield Case(f"{name}, {variant}, {trim}, missing drafts, ragged", {**damaged, "verify_lens": lens})
        yield Case(f"{name}, one-hot laws", _greedy(step))
    yield _refused_behind_the_cut()
    yield from _known_draws()
    empty = _step(generator, 0, 5, 16)
    none = torch.empty(0, dtype=torch.int32)
    yield Case("no requests", empty, {"correct_len": none, "bonus": none.long(), "cap_trim": none})


def _refused_behind_the_cut() -> Case:
    """Return a cut block whose next draft, though it takes part in the boundary form, is refused."""
    target = torch.tensor([[[0, 1, 0, 0], [0, 0, 0.25, 0.75], [1, 0, 0, 0]]])
    draft = torch.tensor([[[0, 1.0, 0, 0], [0, 0, 1, 0]]])
    inputs = {
        "candidates": torch.tensor([[0, 1, 2]]), "target_probs": target, "draft_probs": draft,
        "accept_uniforms": torch.tensor([[0.5, 0.9]]), "final_uniforms": torch.tensor([0.0]),
        "verify_lens": torch.tensor([2]), "variant": "token", "trim": "boundary",
    }  # fmt: skip
    one, none = torch.ones(1, dtype=torch.int32), torch.zeros(1, dtype=torch.int32)
    expected = {"correct_len": one, "bonus": torch.tensor([3]), "cap_trim": none}
    return Case("a draft refused right behind the cut", inputs, expected)


def _law(generator: Generator, *shape: int) -> Tensor:
    """Return laws whose entries are multiples of 1/256 and sum to 1."""
    vocab = shape[-1]
    picks = torch.randint(vocab, (*shape[:-1], 256), generator=generator)
    picks[..., :192] %= min(vocab, 5)  # most of the mass on few tokens, so that drafts are often kept
    counts = torch.zeros(shape).scatter_add_(-1, picks, torch.ones(picks.shape))
    return counts / 256


def _step(generator: Generator, batch: int, gamma: int, vocab: int) -> dict[str, Any]:
    draft = _law(generator, batch, gamma, vocab)
    first = draft.cumsum(-1) > torch.rand(batch, gamma, 1, generator=generator)
    anchor = torch.zeros(batch, 1, dtype=torch.int64)
    return {
        "candidates": torch.cat((anchor, first.int().argmax(-1)), 1),
        "target_probs": _law(generator, batch, gamma + 1, vocab),
        "draft_probs": draft,
        "accept_uniforms": torch.rand(batch, gamma, generator=generator),
        "final_uniforms": torch.rand(batch, generator=generator),
    }


def _poisoned(step: dict[str, Any], lens: Tensor, form: dict[str, Any]) -> dict[str, Any]:
    """Fill what a cut row does not own: target rows past the cut, and the whole of a padded request."""
    target, candidates, draft = step["target_probs"].clone(), step["candidates"].clone(), step["draft_probs"].clone()
    for row, length in enumerate(lens.tolist()):
        target[row, length:] = float("nan")
        if length == 0:
            candidates[row], draft[row] = 2**40, float("inf")
    poisoned = {"target_probs": target, "candidates": candidates, "draft_probs": draft, "verify_lens": lens.int()}
    return {**step, **poisoned, **form}


def _damaged(step: dict[str, Any], form: dict[str, Any]) -> dict[str, Any]:
    candidates, target, draft = step["candidates"].clone(), step["target_probs"].clone(), step["draft_probs"].clone()
    candidates[0, -1] = -1
    if len(candidates) > 1:
        candidates[1, 1] = target.shape[-1]
        draft[2, -1, 3] = float("nan")
        target[3, 1, 0] = float("nan")
        target[-1] = float("nan")
    return {**step, "candidates": candidates, "target_probs": target, "draft_probs": draft, **form}


def _greedy(step: dict[str, Any]) -> dict[str, Any]:
    vocab = step["target_probs"].shape[-1]
    target = torch.nn.functional.one_hot(step["target_probs"].argmax(-1), vocab).float()
    draft = torch.nn.functional.one_hot(step["candidates"][:, 1:], vocab).float()
    return {**step, "target_probs": target, "draft_probs": draft}


def _known_draws() -> Iterator[Case]:
    same, sure, off = [0.25, 0.75], [0.0, 0.0, 1.0, 0.0], [0.5, 0.5, 0.0, 0.0]
    rising, falling = [0.1, 0.2, 0.3, 0.4], [0.4, 0.3, 0.2, 0.1]
    after = [1.0, 0.0]  # law of row 1, where a kept draft is followed by token 0
    for coin, token in ((0.0, 0), (0.2, 0), (0.25, 1), (BELOW_ONE, 1), (1.0, 1)):
        yield _one(f"equal laws, refused at u = 1, coin {coin:g}", same, same, 0, 1.0, coin, 0, token, after)
    yield _one("equal laws, kept just below u = 1", same, same, 0, BELOW_ONE, 0.9, 1, 0, after)
    for coin in (0.0, 0.5, BELOW_ONE, 1.0):
        yield _one(f"a draft of target probability 0 at u = 0, coin {coin:g}", sure, off, 1, 0.0, coin, 0, 2)
    for coin, token in ((0.0, 2), (0.24, 2), (0.26, 3), (BELOW_ONE, 3)):
        yield _one(f"opposite laws, refused, coin {coin:g}", rising, falling, 0, 0.9, coin, 0, token)
    for coin in (0.0, 0.5, 1.0):
        yield _one(f"C9.1 vector 12, coin {coin:g}", [0.5, 0.3, 0.2], [0.2, 0.5, 0.3], 1, 0.7, coin, 0, 0)
    yield _one("a NaN in the target row", [0.2, float("nan"), 0.5, 0.5], falling, 0, 0.0, 0.9, 0, 2)
    yield _one("a NaN in the draft row", [0.0, 0.0, 0.5, 0.5], [float("nan")] * 4, 3, 0.0, 0.4, 0, 2)
    yield _one("a target row of zeros", [0.0] * 4, falling, 1, 0.0, 0.5, 0, 0)
    last = [0.0, 0.0, 0.0, 1.0]
    yield _one("the last token of the vocabulary as the draft", last, [0.0, 0.0, 0.5, 0.5], 3, 0.9, 0.0, 1, 3)
    yield _one("a vocabulary of one token, and a draft outside it", [1.0], [1.0], 1, 0.0, 0.5, 0, 0)
    yield from _known_blocks()


def _known_blocks() -> Iterator[Case]:
    """Yield blocks of three drafts whose chances of being kept are 0, 1 or one half, exactly."""
    even, half = [0.25] * 4, [0.5, 0.5, 0.0, 0.0]
    same = [even, even]
    zeros, high = [0.0] * 3, [0.9] * 3
    # id 3 has probability 0 under both laws, then under the target only: nothing is kept, not even at u = 0
    yield _block("a draft that neither law has", [half, *same], [half, *same], [3, 0, 0], zeros, 0)
    one_sided = [half, [0.5, 0.0, 0.5, 0.0], even], [[0.0, 0.0, 0.0, 1.0], [1.0, 0.0, 0.0, 0.0], even]
    yield _block("a draft that the target has not, then one that the drafter has not", *one_sided, [3, 2, 0], zeros, 0)
    # a draft that only the target has is kept; equal laws keep what follows; the last one has probability 0
    ending = [half, even, half], [[0.0, 0.0, 0.5, 0.5], even, [0.0, 0.0, 0.5, 0.5]]
    yield _block("a draft that only the target has, then equal laws", *ending, [0, 0, 3], high, 2)
    # the laws behind the first draft are equal and the second draft has probability 0: nothing is over, one is kept
    yield _block("nothing over behind a kept draft", [half] * 3, [[0.0, 0.0, 0.5, 0.5], half, half], [0, 3, 0], high, 1)
    laws = [[0.25, 0.75, 0.0, 0.0], *same], [half, *same]
    for uniform, kept in ((0.5, 1), (0.5 + 2.0**-24, 0)):
        name = f"a chance of one half at u = {uniform:g}{'' if kept else ' and the next float'}"
        yield _block(name, *laws, [0, 0, 0], [uniform, 0.0, 0.0], kept, verify_lens=torch.tensor([2]))
    # the draft behind the cut is missing: the final token has the target's law, though the drafter's is there
    missing = [half, half, half], [half, [0.5, 0.0, 0.25, 0.25], half]
    cut: dict[str, Any] = {"variant": "token", "trim": "boundary", "verify_lens": torch.tensor([2])}
    yield _block("no draft right behind the cut", *missing, [0, -1, 0], zeros, 1, bonus=0, **cut)


def _block(
    name: str,
    target: list[list[float]],
    draft: list[list[float]],
    tokens: list[int],
    uniforms: list[float],
    kept: int,
    bonus: int | None = None,
    **options: Any,
) -> Case:
    inputs = {
        "candidates": torch.tensor([[0, *tokens]]), "target_probs": torch.tensor([[*target, target[-1]]]),
        "draft_probs": torch.tensor([draft]), "accept_uniforms": torch.tensor([uniforms]),
        "final_uniforms": torch.zeros(1), "variant": "block", **options,
    }  # fmt: skip
    expected = {"correct_len": torch.tensor([kept], dtype=torch.int32)}
    return Case(name, inputs, expected if bonus is None else {**expected, "bonus": torch.tensor([bonus])})


def _one(
    name: str,
    target: list[float],
    draft: list[float],
    token: int,
    uniform: float,
    coin: float,
    kept: int,
    bonus: int,
    after: list[float] | None = None,
) -> Case:
    rows = torch.tensor([[target, after or target]])
    inputs = {
        "candidates": torch.tensor([[0, token]]), "target_probs": rows, "draft_probs": torch.tensor([[draft]]),
        "accept_uniforms": torch.tensor([[uniform]]), "final_uniforms": torch.tensor([coin]),
    }  # fmt: skip
    expected = {"correct_len": torch.tensor([kept], dtype=torch.int32), "bonus": torch.tensor([bonus])}
    return Case(name, inputs, expected)
