"""Accept with drawn lengths: the published vector, and that all but the length is the real tail's."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from dspark_ops.conformance.numbers import check_numbers
from dspark_ops.contracts import get
from dspark_ops.contracts.accept import accept_finalize, accept_greedy, accept_tail
from dspark_ops.contracts.argmax import argmax_rows
from dspark_ops.contracts.forced import ACCEPT_FORCED, accept_forced

NAN = float("nan")
ANCHOR = 9


def logits_of(targets: list[list[int]], vocab: int = 16) -> object:
    return torch.nn.functional.one_hot(torch.tensor(targets).flatten(), vocab).float()


def forced(
    drafts: list[list[int]], targets: list[list[int]], lengths: list[int], verify: list[int] | None = None
) -> list:
    candidates = torch.nn.functional.pad(torch.tensor(drafts), (1, 0), value=ANCHOR)
    prefix = torch.full((len(drafts),), 100)
    lens = None if verify is None else torch.tensor(verify)
    drawn = torch.tensor(lengths, dtype=torch.int32)
    outputs = accept_forced(candidates, logits_of(targets), prefix, drawn, lens)
    return [value.tolist() for value in outputs]


def test_the_reference_gives_every_case_its_known_values() -> None:
    assert check_numbers(ACCEPT_FORCED, accept_forced) == []


def test_the_published_vector_keeps_the_bonus_of_the_real_length() -> None:
    # really two drafts match and 7 follows them; forced is one draft
    correct, bonus, trim, commit, lens, tokens = forced([[1, 2, 3]], [[1, 2, 7, 8]], [2])
    assert (correct, bonus, trim, commit, lens) == ([1], [7], [0], [2], [102])
    assert tokens == [[1, 7, 3, 0]]


@pytest.mark.parametrize("length", [1, 2, 3, 4])
def test_the_length_is_the_drawn_one_whatever_the_drafts_say(length: int) -> None:
    for drafts in ([[1, 2, 3]], [[5, 5, 5]]):
        correct, _, trim, commit, lens, _ = forced(drafts, [[1, 2, 3, 8]], [length])
        assert (correct, trim, commit, lens) == ([length - 1], [0], [length], [100 + length])


def test_forcing_the_real_length_gives_exactly_the_real_tail() -> None:
    generator = torch.Generator().manual_seed(3)
    targets = torch.randint(4, (40, 6), generator=generator)
    candidates = torch.cat((torch.full((40, 1), ANCHOR), targets[:, :5]), 1)
    candidates[:, 1:] += torch.rand(40, 5, generator=generator) < 0.2
    verify, prefix = torch.randint(7, (40,), generator=generator), torch.arange(40, dtype=torch.int32)
    logits = logits_of(targets.tolist())
    for lens in (None, verify):
        real = accept_tail(candidates, logits, prefix, lens)
        drawn = accept_tail(candidates, logits, prefix)[3]
        for got, wanted in zip(accept_forced(candidates, logits, prefix, drawn, lens), real, strict=True):
            assert torch.equal(got, wanted) and got.dtype == wanted.dtype


def test_a_schedule_cuts_the_drawn_length_and_marks_padding() -> None:
    rows = [[1, 2, 3]] * 3
    correct, _, trim, commit, lens, tokens = forced(rows, [[1, 2, 3, 4]] * 3, [4, 2, 3], [2, 4, 0])
    assert (correct, trim, commit) == ([1, 1, -1], [2, 0, 3], [2, 2, 0])
    assert lens == [102, 102, 100]
    assert tokens[2] == [0, 0, 0, 0]


def test_a_missing_draft_is_not_emitted() -> None:
    correct, _, trim, commit, _, tokens = forced([[1, -1, -1]], [[5, 6, 7, 8]], [4])
    assert (correct, trim, commit) == ([1], [0], [2])
    assert tokens[0][:2] == [1, 5]


@pytest.mark.parametrize(("drawn", "accepted"), [(-(2**31), 0), (0, 0), (5, 3), (2**31 - 1, 3)])
def test_a_length_outside_counts_as_the_nearer_end(drawn: int, accepted: int) -> None:
    assert forced([[1, 2, 3]], [[1, 2, 3, 4]], [drawn])[0] == [accepted]


def test_one_element_may_stand_for_the_whole_step() -> None:
    candidates = torch.tensor([[9, 1, 2], [9, 3, 4]])
    one = torch.tensor([2], dtype=torch.int32).expand(2)
    assert one.stride() == (0,)
    outputs = accept_forced(candidates, torch.zeros(6, 8), torch.zeros(2).long(), one)
    assert outputs[3].tolist() == [2, 2]


def test_with_a_bonus_of_the_caller_the_logits_are_not_read() -> None:
    candidates = torch.tensor([[9, 1, 2]])
    drawn, bonus = torch.tensor([2], dtype=torch.int32), torch.tensor([7])
    with_nan = accept_forced(candidates, torch.full((3, 8), NAN), torch.tensor([5]), drawn, bonus=bonus)
    assert with_nan[1].tolist() == [7] and with_nan[5].tolist() == [[1, 7, 0]]
    ops = SimpleNamespace(accept_finalize=accept_finalize)  # neither argmax nor greedy accept is there to be called
    apart = ACCEPT_FORCED.decomposition.compose(
        ops, candidates, torch.full((3, 8), NAN), torch.tensor([5]), drawn, None, bonus
    )
    for got, wanted in zip(apart, with_nan, strict=True):
        assert torch.equal(got, wanted)


def test_the_whole_equals_its_parts_on_every_case() -> None:
    ops = SimpleNamespace(argmax_rows=argmax_rows, accept_greedy=accept_greedy, accept_finalize=accept_finalize)

    def composed(*arguments: object) -> tuple:
        return ACCEPT_FORCED.decomposition.compose(ops, *arguments)

    assert check_numbers(ACCEPT_FORCED, composed) == []


def test_it_has_the_outputs_and_the_place_of_the_real_tail() -> None:
    real = get("accept_tail")
    assert ACCEPT_FORCED.outputs == real.outputs and ACCEPT_FORCED.rows == real.rows
    assert {argument.name for argument in real.arguments} <= {argument.name for argument in ACCEPT_FORCED.arguments}
