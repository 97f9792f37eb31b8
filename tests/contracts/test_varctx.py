"""Work list of the index logits: golden rows, the rule by trial of every chunk count, coverage, infeasible contexts."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dspark_ops.contracts.varctx import varctx_schedule
from dspark_ops.errors import ContractError

IDLE = [0, 0, 1, 0]


def work(
    lens: list[int], programs: int, longest: int, next_n: int = 1, block_k: int = 256
) -> tuple[int, list[list[int]]]:
    safe, rows = varctx_schedule(torch.tensor(lens, dtype=torch.int32), block_k, programs, longest, next_n)
    assert (safe.shape, safe.dtype, rows.shape, rows.dtype) == ((1,), torch.int32, (programs, 4), torch.int32)
    return int(safe), rows.tolist()


def by_trial(lens: list[int], programs: int, longest: int, next_n: int, block_k: int) -> tuple[int, list[list[int]]]:
    """A17a as it is written: try every chunk count, then hand out slots one after the other."""
    chunks = [-(-length // block_k) for length in lens]
    for safe in range(1, max(1, -(-longest // block_k)) + 1):
        if next_n * sum(-(-count // safe) for count in chunks) <= programs:
            break
    else:
        safe = max([1, *chunks])
    rows = []
    for request, count in enumerate(chunks):
        for start in range(0, count, safe):
            rows += [[request * next_n + n, start, min(safe, count - start), lens[request]] for n in range(next_n)]
    return safe, rows + [IDLE] * (programs - len(rows))


def test_four_requests_have_their_golden_rows() -> None:
    rows = [[0, 0, 1, 1], [1, 0, 2, 600], [1, 2, 1, 600], [3, 0, 2, 1024], [3, 2, 2, 1024], IDLE]
    assert work([1, 600, 0, 1024], 6, 2048) == (2, rows)


def test_two_rows_a_request_have_their_golden_rows() -> None:
    rows = [[0, 0, 1, 300], [1, 0, 1, 300], [0, 1, 1, 300], [1, 1, 1, 300], [2, 0, 1, 5], [3, 0, 1, 5], IDLE, IDLE]
    assert work([300, 5], 8, 512, next_n=2) == (1, rows)


@settings(max_examples=200, deadline=None)
@given(
    lens=st.lists(st.integers(0, 500), max_size=12),
    spare=st.integers(0, 30),
    next_n=st.sampled_from([1, 2, 6]),
    longest=st.integers(0, 500),
    block_k=st.sampled_from([1, 16, 64]),
)
def test_the_least_chunk_count_that_fits_is_found_and_dealt_out_in_order(
    lens: list[int], spare: int, next_n: int, longest: int, block_k: int
) -> None:
    programs = max(1, len(lens) + spare) * next_n
    assert work(lens, programs, longest, next_n, block_k) == by_trial(lens, programs, longest, next_n, block_k)


@settings(max_examples=100, deadline=None)
@given(lens=st.lists(st.integers(0, 5000), min_size=1, max_size=9), spare=st.integers(0, 40))
def test_every_chunk_of_every_request_is_computed_once(lens: list[int], spare: int) -> None:
    _, rows = work(lens, len(lens) + spare, 5000)
    done = [(row, chunk) for row, start, count, tokens in rows if tokens for chunk in range(start, start + count)]
    assert done == [(request, chunk) for request, length in enumerate(lens) for chunk in range(-(-length // 256))]


def test_a_context_longer_than_the_bound_gets_one_slot_for_all_its_chunks() -> None:
    safe, rows = work([5000, 3], 2, 512)
    assert (safe, rows) == (20, [[0, 0, 20, 5000], [1, 0, 1, 3]])


def test_requests_without_context_have_no_program() -> None:
    assert work([0, 0, 0], 4, 2048) == (1, [IDLE] * 4)
    assert work([], 2, 2048) == (1, [IDLE] * 2)


@pytest.mark.parametrize(
    ("lens", "options", "text"),
    [
        ([5, 5], {"programs": 3, "next_n": 2}, "multiples of 2 and at least 4 for 2 requests of 2 rows, got 3"),
        ([5, 5], {"programs": 2, "next_n": 2}, "at least 4"),
        ([5], {"programs": 0}, "got 256, 1 and 0"),
        ([5], {"programs": 4, "block_k": 0}, "got 0, 1 and 4"),
        ([5], {"programs": 4, "next_n": 0}, "got 256, 0 and 4"),
    ],
)
def test_programs_that_cannot_hold_the_requests_are_refused(lens: list[int], options: dict, text: str) -> None:
    with pytest.raises(ContractError, match=text):
        work(lens, longest=512, **options)
