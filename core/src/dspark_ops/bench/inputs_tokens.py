"""Inputs of measured calls: drafting, accepting, and the bookkeeping of tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from dspark_ops._lazy import torch
from dspark_ops.bench.inputs import Maker, Place

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["MAKERS"]


def _distribution(place: Place, *shape: int) -> Tensor:
    return (2 * place.normal(*shape)).softmax(-1)


def _pairs(place: Place) -> dict[str, Any]:
    from dspark_ops.contracts.vocab_parallel import argmax_vocab_parallel_local

    ranks = [argmax_vocab_parallel_local(place.normal(place.rows, 1000), rank) for rank in range(place.axis("P"))]
    return {"pairs": torch.stack(ranks)}


def _markov(place: Place) -> dict[str, Any]:
    vocab, rank = place.axis("V"), place.axis("M")
    return {
        "anchor": place.integers(0, vocab, place.rows),
        "embed": place.normal(vocab, rank, dtype="bfloat16"),
        "head": place.normal(vocab, rank, scale=rank**-0.5, dtype="bfloat16"),
    }


def _confidence(place: Place) -> dict[str, Any]:
    vocab, rank, width = place.axis("V"), place.axis("M"), place.axis("D")
    return {
        "previous": place.integers(0, vocab, place.rows, place.axis("G")),
        "embed": place.normal(vocab, rank, dtype="bfloat16"),
        "weight": place.normal(1, width + rank, scale=(width + rank) ** -0.5),
    }


def _schedule(place: Place) -> dict[str, Any]:
    count = place.axis("L")
    return {
        "survival": place.uniform(place.rows, place.axis("G")).cumprod(1),
        "steps_per_second": 1000.0 / (10 + torch.arange(count, dtype=torch.float64, device=place.device) / 16),
    }


def _draft_inputs(place: Place) -> dict[str, Any]:
    shape = (place.rows, place.axis("Q"))
    return {
        "bonus": place.integers(0, 129280, place.rows),
        "positions": place.integers(0, 8192, *shape),
        "cache_loc": place.integers(0, 1 << 20, *shape),
        "draft_ids": place.integers(0, 129280, *shape),
    }


def _verify_inputs(place: Place) -> dict[str, Any]:
    width = place.axis("W")
    return {
        "ids": place.integers(0, 129280, place.rows, width),
        "positions": place.integers(0, 8192, place.rows, width),
        "cache_loc": place.integers(0, 1 << 20, place.rows, width),
        "width": width,
    }


def _expand(place: Place) -> dict[str, Any]:
    return {
        "seq_lens": place.integers(1, 8192, place.rows, dtype="int32"),
        "request_indices": torch.arange(place.rows, dtype=torch.int32, device=place.device),
        "width": 6,
    }


def _finalize(place: Place) -> dict[str, Any]:
    gamma = place.axis("G")
    return {
        "correct_len": place.integers(0, gamma + 1, place.rows, dtype="int32"),
        "bonus": place.integers(0, 129280, place.rows),
        "cap_trim": place.full(0, place.rows),
        "drafts": place.integers(0, 129280, place.rows, gamma),
        "prefix_lens": place.integers(1, 8192, place.rows),
    }


def _greedy(place: Place) -> dict[str, Any]:
    width = place.axis("W")
    candidates = place.integers(0, 129280, place.rows, width)
    right = place.uniform(place.rows, width - 1) < 0.8
    targets = place.integers(0, 129280, place.rows, width)
    targets[:, :-1] = torch.where(right, candidates[:, 1:], targets[:, :-1])
    return {"candidates": candidates, "target_ids": targets}


def _tail(place: Place) -> dict[str, Any]:
    rows, width, vocab = place.rows, place.axis("W"), place.axis("V")
    greedy = _greedy(place)
    logits = place.normal(rows * width, vocab)
    logits.scatter_(1, greedy["target_ids"].view(-1, 1), 20.0)
    return {
        "candidates": greedy["candidates"],
        "logits": logits,
        "prefix_lens": place.integers(1, 8192, rows),
    }


def _forced(place: Place) -> dict[str, Any]:
    lengths = place.integers(1, place.axis("W") + 1, place.rows, dtype="int32")
    return {**_tail(place), "accept_lens": lengths}


def _sampled(place: Place) -> dict[str, Any]:
    rows, width, vocab = place.rows, place.axis("W"), place.axis("V")
    return {
        "candidates": place.integers(0, vocab, rows, width),
        "target_probs": _distribution(place, rows, width, vocab),
        "draft_probs": _distribution(place, rows, width - 1, vocab),
        "accept_uniforms": place.uniform(rows, width - 1),
        "final_uniforms": place.uniform(rows),
    }


MAKERS: Final[dict[str, Maker]] = {
    "argmax_vocab_parallel": _pairs,
    "markov_block": _markov,
    "confidence_survival": _confidence,
    "schedule_prefix": _schedule,
    "draft_inputs": _draft_inputs,
    "verify_inputs": _verify_inputs,
    "expand_uniform": _expand,
    "accept_greedy": _greedy,
    "accept_finalize": _finalize,
    "accept_tail": _tail,
    "accept_forced": _forced,
    "accept_sampled": _sampled,
}
