"""Accept with drawn lengths: the verify tail of a benchmark that fixes how many drafts are accepted."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from dspark_ops._lazy import torch
from dspark_ops.contracts.accept import ACCEPT_TAIL, accept_finalize, accept_greedy
from dspark_ops.contracts.argmax import argmax_rows
from dspark_ops.contracts.contract import Argument, Case, Contract, Decomposition, Site

if TYPE_CHECKING:
    from torch import Tensor

    from dspark_ops.contracts.model_shapes import ModelShapes


def accept_forced(
    candidates: Tensor,
    logits: Tensor,
    prefix_lens: Tensor,
    accept_lens: Tensor,
    verify_lens: Tensor | None = None,
    bonus: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Return what `accept_tail` returns, as if each request had accepted the length that was drawn for it.

    It stands where the real tail stands and does its work: the argmax and the real accept still run, and the bonus is
    theirs. So the tokens mean nothing: the bonus follows the prefix that was really accepted, not the one that is kept.

    Args:
        candidates: [B, W] int64, anchor and drafts.
        logits: [B * W, V] float32; not read if `bonus` is given.
        prefix_lens: [B] int32 or int64, committed positions before the step.
        accept_lens: [B] int32, any stride (0 for one length of the whole step); tokens that each request is to emit,
            the final one included. A value outside 1 to W counts as the nearer end, since refusing it would mean to
            read the device. A missing draft (-1) is not accepted either: the prefix ends before it.
        verify_lens: [B] int32 or int64 or None, as in `accept_greedy`: the prefix is cut at ``verify_lens - 1`` drafts,
            and 0 marks a padded request.
        bonus: [B] int64 or None; a final token to use instead, such as that of a sampled accept.

    Returns:
        ``(correct_len, bonus, cap_trim, commit_lens, new_seq_lens, out_tokens)``, as `accept_tail`.

    Source: C3.1, C3.5, N11.7.
    """
    if bonus is None:
        bonus = accept_greedy(candidates, argmax_rows(logits).view(candidates.shape), verify_lens)[1]
    correct, trim = _forced(candidates, accept_lens, verify_lens)
    return correct, bonus, trim, *accept_finalize(correct, bonus, trim, candidates[:, 1:], prefix_lens)


def _forced(candidates: Tensor, accept_lens: Tensor, verify_lens: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return the drafts that are accepted, and those that the schedule cut."""
    present = (candidates[:, 1:] >= 0).int().cumprod(-1).sum(-1, dtype=torch.int32)
    run = torch.minimum(accept_lens.int().clamp(1, candidates.shape[1]) - 1, present)
    correct = run if verify_lens is None else torch.minimum(run, verify_lens.to(torch.int32) - 1)
    return correct, run - correct


def _compose(
    ops: Any,
    candidates: Tensor,
    logits: Tensor,
    prefix_lens: Tensor,
    accept_lens: Tensor,
    verify_lens: Tensor | None = None,
    bonus: Tensor | None = None,
) -> tuple[Tensor, ...]:
    if bonus is None:
        target_ids = ops.argmax_rows(logits).view(candidates.shape)
        bonus = ops.accept_greedy(candidates, target_ids, verify_lens)[1]
    correct, trim = _forced(candidates, accept_lens, verify_lens)
    return correct, bonus, trim, *ops.accept_finalize(correct, bonus, trim, candidates[:, 1:], prefix_lens)


def _cases(scale: str, seed: int) -> Iterator[Case]:
    generator = torch.Generator().manual_seed(seed)
    for index, case in enumerate(ACCEPT_TAIL.cases(scale, seed)):
        batch, width = case.inputs["candidates"].shape
        drawn = torch.randint(1, width + 1, (batch,), generator=generator, dtype=torch.int32)
        if index % 3 == 1:
            drawn = drawn[:1].expand(batch) if batch else drawn
        form = ("a length per request", "a length per step", "another bonus")[index % 3]
        bonus = torch.randint(1000, (batch,), generator=generator) if index % 3 == 2 else None
        yield Case(f"{case.name}, {form}", {**case.inputs, "accept_lens": drawn, "bonus": bonus})
    wild = torch.tensor([-(2**31), 0, 1, 6, 7, 2**31 - 1], dtype=torch.int32)
    candidates = torch.arange(36).view(6, 6)
    logits = torch.nn.functional.one_hot(torch.arange(1, 37), 64).float()
    inputs = {"candidates": candidates, "logits": logits, "prefix_lens": torch.arange(6), "accept_lens": wild}
    yield Case("lengths outside", inputs, {"correct_len": torch.tensor([0, 0, 0, 5, 5, 5], dtype=torch.int32)})
    holes = candidates.clone()
    holes[torch.arange(5), torch.arange(1, 6)] = -1
    every = torch.full((6,), 6, dtype=torch.int32)
    expected = {"correct_len": torch.tensor([0, 1, 2, 3, 4, 5], dtype=torch.int32)}
    yield Case("a missing draft in other places", {**inputs, "candidates": holes, "accept_lens": every}, expected)
    yield Case(
        "the vector of C3.1",
        {
            "candidates": torch.tensor([[9, 1, 2, 3]]), "logits": torch.eye(9)[[1, 2, 7, 8]],
            "prefix_lens": torch.tensor([20]), "accept_lens": torch.tensor([2], dtype=torch.int32),
        },
        {
            "correct_len": torch.tensor([1], dtype=torch.int32), "bonus": torch.tensor([7]),
            "cap_trim": torch.tensor([0], dtype=torch.int32), "commit_lens": torch.tensor([2], dtype=torch.int32),
            "new_seq_lens": torch.tensor([22]), "out_tokens": torch.tensor([[1, 7, 3, 0]]),
        },
    )  # fmt: skip


def _sites(shapes: ModelShapes) -> tuple[Site, ...]:
    places = ACCEPT_TAIL.sites(shapes)
    return tuple(replace(site, strides={**site.strides, "accept_lens": "any"}) for site in places)


_CANDIDATES, _LOGITS, _PREFIX_LENS, _VERIFY_LENS = ACCEPT_TAIL.parameters

ACCEPT_FORCED = Contract(
    name="accept_forced",
    summary="A verify step's tail with drawn accepted lengths, for benchmarks.",
    source="C3.1, C3.5, N11.7",
    phases=("verify",),
    parameters=(
        _CANDIDATES,
        _LOGITS,
        _PREFIX_LENS,
        Argument("accept_lens", ("B",), ("int32",), strides="any", doc="tokens to emit, the final one included"),
        _VERIFY_LENS,
        Argument("bonus", ("B",), ("int64",), optional=True, doc="final token to use instead of the real one"),
    ),
    outputs=ACCEPT_TAIL.outputs,
    rows="B",
    reference=accept_forced,
    cases=_cases,
    sites=_sites,
    semantics=ACCEPT_TAIL.semantics,
    decomposition=Decomposition(
        ("argmax_rows", "accept_greedy", "accept_finalize"), _compose, rows={"argmax_rows": "B*W"}
    ),
)

CONTRACTS = (ACCEPT_FORCED,)
