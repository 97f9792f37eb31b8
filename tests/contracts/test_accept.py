"""Greedy accept: the prefix rule, the cut, padding, and what a step emits."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import pytest
import torch

from dspark_ops.contracts import get
from dspark_ops.contracts.accept import accept_finalize, accept_greedy, accept_tail

ANCHOR = 99


def step(drafts: list[list[int]], targets: list[list[int]], lens: list[int] | None = None) -> list[list[int]]:
    """Return (accepted, bonus, trimmed, committed) and the emitted tokens of each request."""
    candidates = torch.nn.functional.pad(torch.tensor(drafts), (1, 0), value=ANCHOR)
    verify = None if lens is None else torch.tensor(lens)
    correct, bonus, trim = accept_greedy(candidates, torch.tensor(targets), verify)
    commit, _, tokens = accept_finalize(correct, bonus, trim, candidates[:, 1:], torch.zeros(len(drafts)).long())
    facts = torch.stack((correct, bonus, trim, commit), 1).tolist()
    return [(*row, tokens[i, : commit[i]].tolist()) for i, row in enumerate(facts)]


def test_the_worked_vector_and_its_cut() -> None:
    assert step([[7, 8, 9]], [[7, 8, 5, 6]]) == [(2, 5, 0, 3, [7, 8, 5])]
    assert step([[7, 8, 9]], [[7, 8, 5, 6]], [2]) == [(1, 8, 1, 2, [7, 8])]
    assert step([[1, 8, 9]], [[2, 8, 5, 6]]) == [(0, 2, 0, 1, [2])]


def test_the_last_column_of_the_emitted_row_is_zero_and_left_over_drafts_stay() -> None:
    tokens = accept_finalize(
        torch.tensor([1], dtype=torch.int32),
        torch.tensor([50]),
        torch.tensor([0], dtype=torch.int32),
        torch.tensor([[7, 8, 9]]),
        torch.tensor([4]),
    )[2]
    assert tokens.tolist() == [[7, 50, 9, 0]]


def test_prefix_rule_token_zero_missing_drafts_and_padding() -> None:
    drafts = [[1, 2, 3], [4, 5, 6], [0, 0, 0], [1, -1, -1], [-1, -1, -1]]
    targets = [[1, 9, 3, 7], [4, 5, 6, 8], [0, 0, 0, 0], [1, 5, 0, 0], [0, 0, 0, 0]]
    rows = step(drafts, targets, [4, 4, 4, 4, 0])
    assert [row[4] for row in rows] == [[1, 9], [4, 5, 6, 8], [0, 0, 0, 0], [1, 5], []]
    assert [max(row[0], 0) for row in rows] == [1, 3, 3, 1, 0]


def test_a_missing_draft_never_matches_even_a_target_of_minus_one() -> None:
    assert step([[-1, -1]], [[-1, -1, 3]])[0][0] == 0


def test_a_padded_request_commits_nothing_and_reads_no_element_before_its_row() -> None:
    candidates = torch.tensor([[1, 2, 3], [2**62, -(2**62), 7]])
    targets = torch.tensor([[2, 3, 4], [-77, 11, 12]])
    verify = torch.tensor([3, 0])
    correct, bonus, trim = accept_greedy(candidates, targets, verify)
    assert (correct.tolist(), bonus.tolist(), trim.tolist()) == ([2, -1], [4, -77], [0, 1])
    prefix = torch.tensor([10, 20], dtype=torch.int32)
    commit, lens, tokens = accept_finalize(correct, bonus, trim, candidates[:, 1:], prefix)
    assert (commit.tolist(), lens.tolist(), tokens[1].tolist()) == ([3, 0], [13, 20], [0, 0, 0])
    assert lens.dtype == torch.int32


@pytest.mark.parametrize("gamma", [1, 2, 5, 7])
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_every_length_and_cut_equals_a_loop_over_the_request(gamma: int, dtype: torch.dtype) -> None:
    rows = list(itertools.product(range(gamma + 1), range(1, gamma + 2)))
    candidates = torch.randint(1000, (len(rows), gamma + 1), generator=torch.Generator().manual_seed(gamma))
    targets = torch.cat((candidates[:, 1:], torch.full((len(rows), 1), 1234)), 1)
    for row, (mismatch, _) in enumerate(rows):
        if mismatch < gamma:
            targets[row, mismatch] += 1
    verify = torch.tensor([length for _, length in rows], dtype=dtype)
    correct, bonus, trim = accept_greedy(candidates, targets, verify)
    for row, (mismatch, length) in enumerate(rows):
        kept = min(mismatch, length - 1)
        assert (correct[row], bonus[row], trim[row]) == (kept, targets[row, kept], mismatch - kept)


def test_the_tail_obeys_the_cut_in_all_its_outputs_and_resolves_ties_to_the_lowest_token() -> None:
    logits = torch.zeros(3, 12)
    logits[0, [4, 7]] = 1.0
    logits[1, [5, 6]] = 1.0
    candidates, prefix = torch.tensor([[ANCHOR, 4, 5]]), torch.tensor([40])
    whole = [value.tolist() for value in accept_tail(candidates, logits, prefix)]
    assert whole == [[2], [0], [0], [3], [43], [[4, 5, 0]]]
    cut = [value.tolist() for value in accept_tail(candidates, logits, prefix, torch.tensor([1]))]
    assert cut == [[0], [4], [2], [1], [41], [[4, 5, 0]]]


def test_the_parts_of_the_tail_give_what_the_tail_gives() -> None:
    contract = get("accept_tail")
    assert contract.decomposition is not None
    ops = SimpleNamespace(**{name: get(name).reference for name in contract.decomposition.parts})
    for case in contract.cases("small", 7):
        whole = contract.reference(**case.inputs)
        parts = contract.decomposition.compose(ops, **case.inputs)
        assert all(torch.equal(x, y) and x.dtype == y.dtype for x, y in zip(whole, parts, strict=True)), case.name
