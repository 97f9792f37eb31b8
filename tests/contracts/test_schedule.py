"""Verify lengths: the paper's early stop, the global search, and the allocation of a budget."""

from __future__ import annotations

import itertools
import math
from random import Random

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from dspark_ops.contracts.schedule import schedule_prefix, throughputs
from dspark_ops.errors import ContractError

SURVIVAL = torch.tensor([[0.9, 0.72, 0.36], [0.6, 0.3, 0.12]])


def rates(*values: float) -> torch.Tensor:
    return torch.tensor([0.0, *values], dtype=torch.float64)


def lens(survival: torch.Tensor, table: torch.Tensor, **options: object) -> list[int]:
    return schedule_prefix(survival, table, **options).tolist()


def budget(survival: torch.Tensor, count: int, **options: object) -> list[int]:
    return lens(survival, rates(1.0), budget=torch.tensor([count], dtype=torch.int32), mode="budget", **options)


def by_hand(survival: torch.Tensor, table: list[float], mode: str) -> list[int]:
    """Walk the sorted drafts with Python numbers, as the paper writes it."""
    rows, gamma = survival.shape
    drafts = sorted(
        ((-survival[r, j].item(), j, r) for r in range(rows) for j in range(gamma) if survival[r, j] >= 1e-6),
    )
    expected, best, kept = float(rows), rows * table[min(rows, len(table) - 1)], 0
    for count, (minus, _, _) in enumerate(drafts, 1):
        expected -= minus
        throughput = expected * table[min(rows + count, len(table) - 1)]
        if throughput > best:
            best, kept = throughput, count
        elif mode == "early_stop":
            break
    chosen = [r for _, _, r in drafts[:kept]]
    return [1 + chosen.count(r) for r in range(rows)]


def test_falling_rates_give_the_same_lengths_in_both_modes() -> None:
    table = rates(0, 1, 0.96, 0.9, 0.82, 0.73, 0.65, 0.58)
    wanted = [2.0, 2.784, 3.258, 3.4604, 3.3434, 3.172, 2.9]
    assert throughputs(SURVIVAL, table).tolist() == pytest.approx(wanted, abs=1e-6)
    assert lens(SURVIVAL, table) == [3, 2]
    assert lens(SURVIVAL, table, mode="global") == [3, 2]


def test_a_staircase_stops_the_early_search_and_not_the_global_one() -> None:
    table = rates(0, 1, 0.68, 0.68, 0.68, 0.67, 0.66, 0.5)
    wanted = [2.0, 1.972, 2.4616, 2.8696, 3.0686, 3.2208, 2.5]
    assert throughputs(SURVIVAL, table).tolist() == pytest.approx(wanted, abs=1e-6)
    assert lens(SURVIVAL, table) == [1, 1]
    assert lens(SURVIVAL, table, mode="global") == [4, 3]


@pytest.mark.parametrize(("second", "early", "whole"), [(0.9, 1, 3), (0.0, 1, 1)])
def test_only_the_global_search_lets_the_second_draft_decide_about_the_first(
    second: float, early: int, whole: int
) -> None:
    survival = torch.tensor([[0.8, 0.8 * second]])
    table = rates(1, 0.5, 0.45)
    wanted = [1.0, 0.9, 1.134] if second else [1.0, 0.9, -math.inf]  # a draft of survival 0 never takes part
    assert throughputs(survival, table).tolist() == pytest.approx(wanted, abs=1e-6)
    assert lens(survival, table) == [early]
    assert lens(survival, table, mode="global") == [whole]


def test_of_equal_throughputs_the_fewest_drafts_win() -> None:
    survival = torch.tensor([[1.0, 1.0]])
    assert lens(survival, rates(0.75, 0.375, 0.25), mode="global") == [1]
    assert lens(survival, rates(0.75, 0.5, 1 / 3), mode="global") == [2]
    assert lens(survival, rates(0.75, 0.375, 0.5)) == [1]


def test_equal_survivals_are_admitted_by_position_then_by_request() -> None:
    flat = torch.full((3, 2), 0.5)
    assert [budget(flat, count) for count in range(7)] == [
        [1, 1, 1], [2, 1, 1], [2, 2, 1], [2, 2, 2], [3, 2, 2], [3, 3, 2], [3, 3, 3],
    ]  # fmt: skip


def test_a_budget_beyond_the_drafts_admits_all_and_a_negative_one_none() -> None:
    assert budget(SURVIVAL, 1000) == [4, 4]
    assert budget(SURVIVAL, -5) == [1, 1]


def test_drafts_below_the_floor_and_nan_are_never_verified() -> None:
    survival = torch.tensor([[1.0, 1e-6, 9.9e-7], [0.9, float("nan"), float("nan")], [0.0, 0.0, 0.0]])
    assert budget(survival, 99) == [3, 2, 1]
    assert lens(survival, rates(1.0), mode="global") == [3, 2, 1]
    assert lens(survival, rates(1.0)) == [3, 2, 1]


def test_lengths_are_clamped_and_a_budget_spent_on_the_last_column_is_lost() -> None:
    flat = torch.full((2, 3), 0.5)
    assert budget(flat, 6, max_verify=3) == [3, 3]
    assert budget(flat, 0, min_verify=2) == [2, 2]
    assert budget(flat, 0, min_verify=0) == [1, 1]
    assert budget(flat, 1, min_verify=0) == [1, 1]
    # columns 0 to 2 take part although only two drafts fit into 3 rows: request 0's third draft costs request 1 a row
    uneven = torch.tensor([[0.9, 0.9, 0.9], [0.8, 0.1, 0.1]])
    assert budget(uneven, 3, max_verify=3) == [3, 1]
    assert budget(uneven, 3) == [4, 1]


@pytest.mark.parametrize("mode", ["early_stop", "global"])
def test_the_vector_form_equals_a_walk_over_the_sorted_drafts(mode: str) -> None:
    generator = torch.Generator().manual_seed(5)
    for rows, gamma, trial in itertools.product((1, 2, 5), (1, 3, 5), range(12)):
        survival = torch.rand(rows, gamma, generator=generator).cumprod(-1)
        if trial % 3 == 0:
            survival = (survival * 4).round() / 4
        steps = torch.rand(rows * (gamma + 1), generator=generator).double().sort(descending=True).values
        table = [0.0, *steps.tolist()]
        assert lens(survival, torch.tensor(table).double(), mode=mode) == by_hand(survival, table, mode)


@settings(max_examples=60, deadline=None)
@given(
    rows=st.integers(1, 7), gamma=st.integers(1, 6), seed=st.integers(0, 2**31), order=st.randoms(use_true_random=False)
)
def test_permuting_requests_permutes_their_lengths_where_no_survivals_are_equal(
    rows: int, gamma: int, seed: int, order: Random
) -> None:
    survival = torch.rand(rows, gamma, generator=torch.Generator().manual_seed(seed)).cumprod(-1)
    assume(survival.unique().numel() == survival.numel())
    table = rates(*(1 / (10 + b) for b in range(rows * (gamma + 1))))
    places = order.sample(range(rows), rows)
    some = {"mode": "budget", "budget": torch.tensor([rows], dtype=torch.int32)}
    for options in ({"mode": "early_stop"}, {"mode": "global"}, some):
        plain = torch.tensor(lens(survival, table, **options))
        assert lens(survival[places], table, **options) == plain[places].tolist()


def test_what_is_tested_by_early_stop_and_budget_never_depends_on_later_confidences() -> None:
    generator = torch.Generator().manual_seed(2)
    table = rates(*(1 / (6 + b) for b in range(30)))
    for _ in range(40):
        confidence = torch.rand(3, 5, generator=generator)
        position = int(torch.randint(5, (), generator=generator))
        other = confidence.clone()
        other[0, position:] = torch.rand(5 - position, generator=generator)
        for choose in (lambda a: lens(a, table), lambda a: budget(a, 7)):
            before, after = choose(confidence.cumprod(-1))[0], choose(other.cumprod(-1))[0]
            # draft k (1-based) is tested iff the length is above k; drafts up to `position` saw the same confidences
            assert [before > k for k in range(1, position + 1)] == [after > k for k in range(1, position + 1)]


def test_a_step_beyond_the_table_has_the_last_rate() -> None:
    survival = torch.tensor([[0.9, 0.5, 0.4]])
    assert lens(survival, rates(1.0, 0.9)) == lens(survival, rates(1.0, 0.9, 0.9, 0.9)) == [4]


def test_wrong_options_are_refused_with_what_was_wanted() -> None:
    with pytest.raises(ContractError, match="wanted 'early_stop', 'global' or 'budget'"):
        schedule_prefix(SURVIVAL, rates(1.0), mode="greedy")
    with pytest.raises(ContractError, match=r"budget is None: mode 'budget' wants a \[1\] int32 tensor"):
        schedule_prefix(SURVIVAL, rates(1.0), mode="budget")
    with pytest.raises(ContractError, match="max_verify is -1"):
        schedule_prefix(SURVIVAL, rates(1.0), max_verify=-1)
    with pytest.raises(ContractError, match="mode 'global' wants None"):
        schedule_prefix(SURVIVAL, rates(1.0), torch.tensor([1]), mode="global")
