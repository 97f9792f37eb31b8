"""Greedy accept: how many drafts the target confirms, which token follows them, and what the step emits."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from dspark_ops._lazy import torch
from dspark_ops.contracts.argmax import ARGMAX_ROWS, argmax_rows
from dspark_ops.contracts.contract import Argument, Case, Contract, Decomposition, Output, Site
from dspark_ops.contracts.exactness import bitwise
from dspark_ops.contracts.values import between

if TYPE_CHECKING:
    from torch import Tensor

    from dspark_ops.contracts.model_shapes import ModelShapes


def accept_greedy(
    candidates: Tensor, target_ids: Tensor, verify_lens: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the length of each request's confirmed prefix and the target's token after it.

    Args:
        candidates: [B, W] int64, the anchor and the W - 1 drafts. -1 stands for "no draft" and matches nothing; 0 is a
            token like any other.
        target_ids: [B, W] int64, the target's token after each candidate.
        verify_lens: [B] int32 or int64, rows verified, the anchor included: the prefix is cut at ``verify_lens - 1``
            drafts. 0 marks a padded request. None: all W rows.

    Returns:
        correct_len: [B] int32, drafts accepted; -1 for a padded request, which its consumers skip.
        bonus: [B] int64, ``target_ids`` at that row; row 0 of a padded request, never an element before it.
        cap_trim: [B] int32, drafts that matched but were cut by `verify_lens`.

    Source: N11.2, A13, C2.2.
    """
    matched = (candidates[:, 1:] == target_ids[:, :-1]) & (candidates[:, 1:] >= 0)
    run = matched.int().cumprod(-1).sum(-1, dtype=torch.int32)
    correct = run if verify_lens is None else torch.minimum(run, verify_lens.to(torch.int32) - 1)
    bonus = target_ids.gather(1, correct.clamp(0).long().unsqueeze(1)).squeeze(1)
    return correct, bonus, run - correct


def accept_finalize(
    correct_len: Tensor, bonus: Tensor, cap_trim: Tensor, drafts: Tensor, prefix_lens: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return what a verify step commits and emits, given the accepted lengths.

    Args:
        correct_len: [B] int32, accepted drafts; -1 for a padded request.
        bonus: [B] int64, token after the accepted drafts.
        cap_trim: [B] int32, drafts cut by the schedule; it takes part in reports only and changes nothing here.
        drafts: [B, G] int64; rows may be columns 1 to G of the candidates.
        prefix_lens: [B] int32 or int64, committed positions before the step.

    Returns:
        commit_lens: [B] int32, rows whose state becomes valid; also the number of tokens emitted. 0 for padding.
        new_seq_lens: [B] of `prefix_lens`' dtype, committed positions after the step.
        out_tokens: [B, G + 1] int64, the accepted drafts, then the bonus, then left-over drafts (0 in the last
            column): read the first ``commit_lens`` only. A padded request's row is 0.

    Source: N11.3, N11.4, A13, C2.5.
    """
    commit = correct_len + 1
    columns = torch.arange(drafts.shape[1] + 1, device=drafts.device)
    leftover = torch.nn.functional.pad(drafts, (0, 1))
    tokens = torch.where(columns == correct_len.unsqueeze(1), bonus.unsqueeze(1), leftover)
    tokens = torch.where((commit > 0).unsqueeze(1), tokens, 0)
    return commit, prefix_lens + commit.to(prefix_lens.dtype), tokens


def accept_tail(
    candidates: Tensor, logits: Tensor, prefix_lens: Tensor, verify_lens: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Return all that follows from the logits of a greedy verify step: argmax, accept and finalise in one.

    Args:
        candidates: [B, W] int64, see `accept_greedy`.
        logits: [B * W, V] float32; row ``b * W + i`` predicts the token after candidate i of request b.
        prefix_lens: [B] int32 or int64, committed positions before the step.
        verify_lens: [B] int32 or int64 or None, see `accept_greedy`.

    Returns:
        ``(correct_len, bonus, cap_trim, commit_lens, new_seq_lens, out_tokens)`` of `accept_greedy` and
        `accept_finalize`. The lengths obey `verify_lens`: a tail that caps only the committed rows is another operator.

    Source: N11.2 to N11.4.
    """
    target_ids = argmax_rows(logits).view(candidates.shape)
    accepted = accept_greedy(candidates, target_ids, verify_lens)
    return *accepted, *accept_finalize(*accepted, candidates[:, 1:], prefix_lens)


def _compose_tail(
    ops: Any, candidates: Tensor, logits: Tensor, prefix_lens: Tensor, verify_lens: Tensor | None = None
) -> tuple[Tensor, ...]:
    target_ids = ops.argmax_rows(logits).view(candidates.shape)
    accepted = ops.accept_greedy(candidates, target_ids, verify_lens)
    return *accepted, *ops.accept_finalize(*accepted, candidates[:, 1:], prefix_lens)


def _steps(scale: str, seed: int) -> Iterator[tuple[str, Tensor, Tensor, Tensor | None]]:
    """Yield (name, candidates, target ids, verify lengths) of whole verify steps."""
    generator = torch.Generator().manual_seed(seed)

    def draw(high: int, *shape: int) -> Tensor:
        return torch.randint(high, shape, generator=generator)

    for batch in (1, 2, 33) if scale == "small" else (1, 8, 64):
        for gamma in (1, 2, 5, 7):
            target = draw(3, batch, gamma + 1)
            candidates = torch.cat((draw(3, batch, 1), target[:, :-1]), 1)
            wrong = torch.arange(gamma) == draw(gamma + 1, batch, 1)
            candidates[:, 1:] = torch.where(wrong, candidates[:, 1:] + 1, candidates[:, 1:])
            name = f"one mismatch anywhere or none, {batch} requests, {gamma} drafts"
            yield name, candidates, target, None
            lens = draw(gamma + 2, batch)
            yield f"{name}, ragged int32", candidates, target, lens.int()
            yield f"{name}, ragged int64", candidates, target, lens
    same = torch.full((2, 6), 3)
    yield "one token everywhere", same, same, None
    yield "one token everywhere, only the anchor verified", same, same, torch.ones(2, dtype=torch.int32)
    mixed, targets, lens = _mixed_rows()
    yield "token 0, missing drafts and a padded request", mixed, targets, lens
    poisoned = torch.full((3, 6), -(2**62))
    poisoned[0] = torch.arange(6)
    yield "two padded requests of garbage", poisoned, poisoned.roll(-1, 1), torch.tensor([6, 0, 0], dtype=torch.int32)
    buffer = torch.full((3, 9), 4)
    buffer[:, :6] = torch.arange(6)
    yield "columns of a wider buffer", buffer[:, :6], torch.arange(1, 7).expand(3, 6).contiguous(), None
    yield "no requests", torch.empty(0, 6, dtype=torch.int64), torch.empty(0, 6, dtype=torch.int64), None


def _mixed_rows() -> tuple[Tensor, Tensor, Tensor]:
    anchor = 9
    candidates = torch.tensor([[1, 2, 3], [4, 5, 6], [0, 0, 0], [1, -1, -1], [-1, -1, -1]])
    targets = torch.tensor([[1, 9, 3, 7], [4, 5, 6, 8], [0, 0, 0, 0], [1, 5, 0, 0], [0, 0, 0, 0]])
    return (
        torch.nn.functional.pad(candidates, (1, 0), value=anchor),
        targets,
        torch.tensor([4, 4, 4, 4, 0], dtype=torch.int32),
    )


def _greedy_cases(scale: str, seed: int) -> Iterator[Case]:
    for name, candidates, target_ids, verify_lens in _steps(scale, seed):
        yield Case(name, {"candidates": candidates, "target_ids": target_ids, "verify_lens": verify_lens})
    expected = {"correct_len": [1, 3, 3, 1, -1], "bonus": [9, 8, 0, 5, 0], "cap_trim": [0, 0, 0, 0, 1]}
    candidates, target_ids, verify_lens = _mixed_rows()
    yield Case(
        "the same with known lengths",
        {"candidates": candidates, "target_ids": target_ids, "verify_lens": verify_lens},
        {key: torch.tensor(row, dtype=torch.int64 if key == "bonus" else torch.int32) for key, row in expected.items()},
    )


def _finalize_cases(scale: str, seed: int) -> Iterator[Case]:
    for index, (name, candidates, target_ids, verify_lens) in enumerate(_steps(scale, seed)):
        correct_len, bonus, cap_trim = accept_greedy(candidates, target_ids, verify_lens)
        prefix = torch.arange(len(bonus)) * 131 + 2
        yield Case(
            f"{name}, {'int64' if index % 2 else 'int32'} prefix",
            {
                "correct_len": correct_len, "bonus": bonus, "cap_trim": cap_trim,
                "drafts": candidates[:, 1:] if index % 3 else candidates[:, 1:].contiguous(),
                "prefix_lens": prefix if index % 2 else prefix.int(),
            },
        )  # fmt: skip
    yield Case(
        "prefixes beyond 32 bits",
        {
            "correct_len": torch.tensor([2], dtype=torch.int32), "bonus": torch.tensor([5]),
            "cap_trim": torch.tensor([0], dtype=torch.int32), "drafts": torch.tensor([[7, 8, 9]]),
            "prefix_lens": torch.tensor([2**33]),
        },
        {
            "commit_lens": torch.tensor([3], dtype=torch.int32), "new_seq_lens": torch.tensor([2**33 + 3]),
            "out_tokens": torch.tensor([[7, 8, 5, 0]]),
        },
    )  # fmt: skip


def _tail_cases(scale: str, seed: int) -> Iterator[Case]:
    generator = torch.Generator().manual_seed(seed)
    vocab = 4099 if scale == "small" else 129280
    for index, (name, candidates, target_ids, verify_lens) in enumerate(_steps("small", seed)):
        if scale == "small" and (len(candidates) > 2 and index % 4):
            continue
        logits = torch.randn(target_ids.numel(), vocab, generator=generator)
        best = target_ids.reshape(-1, 1).clamp(0, vocab - 1)
        logits.scatter_(1, best, 20.0)
        logits.scatter_(1, (best + 5).clamp(max=vocab - 1), 20.0)  # a tie, which the lower id wins
        inputs = {
            "candidates": candidates, "logits": logits,
            "prefix_lens": torch.arange(len(candidates)) + 7, "verify_lens": verify_lens,
        }  # fmt: skip
        yield Case(f"{name}, tied logits", inputs)
    nan = torch.full((4, vocab), -torch.inf)
    nan[0, [9, 3]] = torch.tensor([5.0, float("nan")])
    nan[2, vocab - 1] = 1.0
    candidates = torch.tensor([[8, 3, 0, 7]])
    yield Case(
        "a NaN, a row of -inf, the last token",
        {"candidates": candidates, "logits": nan, "prefix_lens": torch.tensor([5], dtype=torch.int32)},
        {"correct_len": torch.tensor([2], dtype=torch.int32), "bonus": torch.tensor([vocab - 1])},
    )


def _sites(shapes: ModelShapes) -> tuple[Site, ...]:
    return (Site("verify", axes={"W": shapes.rows_per_request}),)


def _finalize_sites(shapes: ModelShapes) -> tuple[Site, ...]:
    return (Site("verify", axes={"G": shapes.gamma}, strides={"drafts": "unit_last"}),)


def _tail_sites(shapes: ModelShapes) -> tuple[Site, ...]:
    return (Site("verify", axes={"W": shapes.rows_per_request, "V": shapes.vocab}),)


_CANDIDATES = Argument("candidates", ("B", "W"), ("int64",), strides="unit_last", doc="anchor, drafts; -1 = no draft")
_VERIFY_LENS = Argument(
    "verify_lens", ("B",), ("int32", "int64"), optional=True, doc="rows verified; 0 = padding", values=between(0, "W")
)
_PREFIX_LENS = Argument("prefix_lens", ("B",), ("int64", "int32"), doc="committed positions before the step")
_ACCEPTED = (
    Output("correct_len", ("B",), "int32", bitwise(), "accepted drafts; -1 = padded request"),
    Output("bonus", ("B",), "int64", bitwise(), "the token after them"),
    Output("cap_trim", ("B",), "int32", bitwise(), "matching drafts cut by verify_lens"),
)
_COMMITTED = (
    Output("commit_lens", ("B",), "int32", bitwise(), "rows committed = tokens emitted"),
    Output("new_seq_lens", ("B",), "like prefix_lens", bitwise(), "committed positions after the step"),
)

ACCEPT_GREEDY = Contract(
    name="accept_greedy",
    summary="Accepted draft count and following token of each request, by exact match.",
    source="N11.2, A13, C2.2",
    phases=("verify",),
    parameters=(
        _CANDIDATES,
        Argument("target_ids", ("B", "W"), ("int64",), doc="target's token after each candidate"),
        _VERIFY_LENS,
    ),
    outputs=_ACCEPTED,
    rows="B",
    reference=accept_greedy,
    cases=_greedy_cases,
    sites=_sites,
    small=True,
)

ACCEPT_FINALIZE = Contract(
    name="accept_finalize",
    summary="Committed lengths and emitted tokens of a verify step.",
    source="N11.3, N11.4, A13, C2.5",
    phases=("verify",),
    parameters=(
        Argument("correct_len", ("B",), ("int32",), doc="accepted drafts; -1 = padding", values=between(-1, "G")),
        Argument("bonus", ("B",), ("int64",), doc="token after them"),
        Argument("cap_trim", ("B",), ("int32",), doc="drafts cut by the schedule, for reports"),
        Argument("drafts", ("B", "G"), ("int64",), strides="unit_last", doc="the drafts, without the anchor"),
        _PREFIX_LENS,
    ),
    outputs=(*_COMMITTED, Output("out_tokens", ("B", "G+1"), "int64", bitwise(), "emitted tokens, then left-overs")),
    rows="B",
    reference=accept_finalize,
    cases=_finalize_cases,
    sites=_finalize_sites,
    small=True,
)

ACCEPT_TAIL = Contract(
    name="accept_tail",
    summary="Everything from a greedy verify step's logits to its emitted tokens.",
    source="N11.2-N11.4",
    phases=("verify",),
    parameters=(
        _CANDIDATES,
        Argument("logits", ("B*W", "V"), ("float32",), strides="unit_last", doc="target logits, request after request"),
        _PREFIX_LENS,
        _VERIFY_LENS,
    ),
    outputs=(*_ACCEPTED, *_COMMITTED, Output("out_tokens", ("B", "W"), "int64", bitwise(), "tokens, then left-overs")),
    rows="B",
    reference=accept_tail,
    cases=_tail_cases,
    sites=_tail_sites,
    semantics=ARGMAX_ROWS.semantics,
    decomposition=Decomposition(
        ("argmax_rows", "accept_greedy", "accept_finalize"), _compose_tail, rows={"argmax_rows": "B*W"}
    ),
)

CONTRACTS = (ACCEPT_GREEDY, ACCEPT_FINALIZE, ACCEPT_TAIL)
