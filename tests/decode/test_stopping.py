"""Where a request's output ends: the stop token inside a run, the token budget, and both at once."""

from __future__ import annotations

import itertools

import pytest
import torch

from dspark_ops.contracts.accept import accept_finalize, accept_greedy
from dspark_ops.decode.stopping import Ending, cut_emitted

EOS = 2
STOPS = torch.tensor([EOS])


def finish(drafts: list[int], targets: list[int], budget: int) -> tuple[list[int], Ending, int]:
    """Accept, finalise and cut one request; return emitted tokens, how it ends, and emitted drafts."""
    candidates = torch.tensor([[99, *drafts]])
    accepted = accept_greedy(candidates, torch.tensor([targets]))
    commit, _, tokens = accept_finalize(*accepted, candidates[:, 1:], torch.tensor([7]))
    emitted, ending, kept = cut_emitted(tokens, commit, torch.tensor([budget]), STOPS)
    return tokens[0, : emitted[0]].tolist(), Ending(int(ending)), int(kept)


@pytest.mark.parametrize(
    ("budget", "emitted", "ending", "accepted"),
    [
        (6, [11, 12, 2], Ending.STOP, 3),
        (5, [11, 12, 2], Ending.STOP, 3),
        (3, [11, 12, 2], Ending.STOP, 3),
        (2, [11, 12], Ending.LENGTH, 2),
        (0, [], Ending.LENGTH, 0),
    ],
)
def test_a_stop_token_inside_the_accepted_run(budget: int, emitted: list[int], ending: Ending, accepted: int) -> None:
    got = finish([11, 12, 2, 14, 15], [11, 12, 2, 14, 15, 16], budget)
    assert got == (emitted, ending, accepted)


def test_a_stop_token_that_is_proposed_and_refused_ends_nothing() -> None:
    assert finish([11, 2, 13, 14, 15], [11, 12, 13, 14, 15, 16], 6) == ([11, 12], Ending.RUNNING, 1)


def test_a_stop_token_as_the_final_token_counts_no_draft() -> None:
    assert finish([11, 13, 13, 14, 15], [11, 2, 13, 14, 15, 16], 6) == ([11, 2], Ending.STOP, 1)


def test_a_budget_that_is_used_up_exactly_ends_the_request() -> None:
    assert finish([11, 13], [11, 13, 14], 3) == ([11, 13, 14], Ending.LENGTH, 2)
    assert finish([11, 13], [11, 13, 14], 4) == ([11, 13, 14], Ending.RUNNING, 2)


def test_left_over_drafts_behind_the_emitted_tokens_are_not_read() -> None:
    assert finish([11, 9, EOS, EOS], [11, 12, 0, 0, 0], 9) == ([11, 12], Ending.RUNNING, 1)


def test_a_padded_request_emits_nothing_and_does_not_end() -> None:
    tokens = torch.tensor([[EOS, EOS, EOS]])
    for budget in (0, 5):
        cut = cut_emitted(tokens, torch.tensor([0], dtype=torch.int32), torch.tensor([budget]), STOPS)
        assert [int(value) for value in cut] == [0, Ending.RUNNING, 0]


def test_without_stop_tokens_only_the_budget_ends_and_several_may_be_given() -> None:
    tokens, commit, budget = torch.tensor([[5, EOS, 7, 8]]), torch.tensor([4], dtype=torch.int32), torch.tensor([9])
    none = cut_emitted(tokens, commit, budget, torch.empty(0, dtype=torch.int64))
    two = cut_emitted(tokens, commit, budget, torch.tensor([8, 7]))
    assert [int(value) for value in none] == [4, Ending.RUNNING, 3]
    assert [int(value) for value in two] == [3, Ending.STOP, 3]
    assert [value.dtype for value in two] == [torch.int32] * 3


def one_by_one(tokens: tuple[int, ...], budget: int) -> tuple[int, Ending]:
    """Emit tokens one after the other, as a person would."""
    emitted = 0
    while emitted < budget and emitted < len(tokens):
        emitted += 1
        if tokens[emitted - 1] == EOS:
            return emitted, Ending.STOP
    return emitted, Ending.LENGTH if emitted == budget else Ending.RUNNING


def test_every_short_run_is_cut_as_if_tokens_were_emitted_one_by_one() -> None:
    for tokens in itertools.product((EOS, 5), repeat=4):
        cases = list(itertools.product(range(1, 5), range(6)))
        counts, budgets = torch.tensor(cases).unbind(1)
        emitted, ending, _ = cut_emitted(torch.tensor([tokens]).expand(len(cases), 4), counts.int(), budgets, STOPS)
        wanted = [one_by_one(tokens[:count], budget) for count, budget in cases]
        assert list(zip(emitted.tolist(), ending.tolist(), strict=True)) == wanted, tokens
