"""Inputs of the draft and verify forwards: known values, fresh memory, and what they refuse."""

from __future__ import annotations

import pytest
import torch

from dspark_ops.conformance.numbers import check_numbers
from dspark_ops.contracts import get
from dspark_ops.contracts.inputs import draft_inputs, expand_uniform, verify_inputs
from dspark_ops.errors import ContractError

NOISE = 128799


@pytest.mark.parametrize("name", ["draft_inputs", "verify_inputs", "expand_uniform"])
def test_the_reference_gives_every_case_its_known_values(name: str) -> None:
    assert check_numbers(get(name), get(name).reference) == []


def test_the_anchor_goes_into_column_zero_and_the_noise_stays() -> None:
    draft_ids = torch.full((2, 3), NOISE)
    table = torch.arange(20).view(2, 10)
    positions, slots = draft_inputs(torch.tensor([[7, 1], [0, 1]])[:, 0], table[:, 2:6], table[:, 5:], draft_ids)
    assert draft_ids.tolist() == [[7, NOISE, NOISE], [0, NOISE, NOISE]]
    assert positions.tolist() == [2, 3, 4, 12, 13, 14]
    assert slots.tolist() == [5, 6, 7, 15, 16, 17]


def test_what_is_returned_shares_no_memory_with_the_arguments() -> None:
    grid = torch.arange(6).view(2, 3)
    results = [
        *draft_inputs(torch.zeros(2).long(), grid, grid, torch.zeros(2, 3).long()),
        *verify_inputs(grid, grid, grid, 3),
    ]
    for result in results:
        result += 100
    assert grid.tolist() == [[0, 1, 2], [3, 4, 5]]


@pytest.mark.parametrize("width", [1, 2, 6])
@pytest.mark.parametrize("rows", [0, 1, 32])
def test_narrow_verify_inputs_are_the_first_columns(rows: int, width: int) -> None:
    grids = [torch.arange(rows * 6).view(rows, 6) + 1000 * which for which in range(3)]
    for grid, flat in zip(grids, verify_inputs(*grids, width), strict=True):
        assert flat.tolist() == [value for row in grid.tolist() for value in row[:width]]


def test_uniform_expansion_by_hand() -> None:
    lens, owners = expand_uniform(torch.tensor([10, 3]), torch.tensor([5, 2], dtype=torch.int32), 3, 8)
    assert lens.tolist() == [8, 9, 10, 1, 2, 3, 1, 1] and lens.dtype == torch.int32
    assert owners.tolist() == [5, 5, 5, 2, 2, 2, 2, 2] and owners.dtype == torch.int32


@pytest.mark.parametrize("rows", [1, 2, 8, 32, 33, 257])
@pytest.mark.parametrize("width", [1, 2, 3, 6, 8])
@pytest.mark.parametrize("padding", [0, 1, 30])
def test_uniform_expansion_equals_the_ragged_rule_with_equal_lengths(rows: int, width: int, padding: int) -> None:
    generator = torch.Generator().manual_seed(rows + width)
    seq_lens = torch.randint(width, 5000, (rows,), generator=generator)
    requests = torch.randperm(rows, generator=generator)
    extend = [width] * rows
    starts = [sum(extend[:row]) for row in range(rows)]
    wanted_lens, wanted_owners = [], []
    for row in range(rows):
        for place in range(starts[row], starts[row] + extend[row]):
            wanted_lens.append(int(seq_lens[row]) - extend[row] + 1 + place - starts[row])
            wanted_owners.append(int(requests[row]))
    total = rows * width + padding
    for dtype in (torch.int32, torch.int64):
        lens, owners = expand_uniform(seq_lens.to(dtype), requests.to(dtype), width, total)
        assert lens.tolist() == wanted_lens + [1] * padding
        assert owners.tolist() == wanted_owners + [int(requests[-1])] * padding
        assert owners.dtype == dtype and lens.dtype == torch.int32


def test_no_request_gives_nothing_even_where_padding_is_asked_for() -> None:
    none = torch.empty(0, dtype=torch.int64)
    lens, owners = expand_uniform(none, none, 6, 64)
    assert lens.shape == owners.shape == (0,)


def grid(rows: int, columns: int) -> object:
    return torch.zeros(rows, columns, dtype=torch.int64)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (
            lambda: draft_inputs(grid(2, 1)[:, 0], grid(2, 4), grid(2, 5), grid(2, 5)),
            "positions has 4, cache_loc has 5",
        ),
        (lambda: draft_inputs(grid(2, 1)[:, 0], grid(2, 5), grid(2, 4), grid(2, 5)), "cache_loc has 4 columns"),
        (lambda: draft_inputs(grid(2, 1)[:, 0], grid(2, 5), grid(2, 5), grid(2, 0)), "and one or more"),
        (lambda: verify_inputs(grid(2, 6), grid(2, 6), grid(2, 5), 3), "shapes .* wanted equal ones"),
        (lambda: verify_inputs(grid(2, 6), grid(2, 6), grid(2, 6), 7), "width is 7: wanted 1 to 6"),
        (lambda: verify_inputs(grid(2, 6), grid(2, 6), grid(2, 6), 0), "width is 0"),
        (lambda: expand_uniform(grid(2, 1)[:, 0], grid(2, 1)[:, 0], 0), "width 0"),
        (lambda: expand_uniform(grid(2, 1)[:, 0], grid(2, 1)[:, 0], 6, 11), "padded_rows 11: .* of 0 or at least 2 "),
        (lambda: expand_uniform(grid(2, 1)[:, 0], grid(2, 1)[:, 0], 6, -1), "padded_rows -1"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(call: object, text: str) -> None:
    with pytest.raises(ContractError, match=text):
        call()


def test_a_refused_call_has_written_nothing() -> None:
    draft_ids = torch.full((2, 5), NOISE)
    with pytest.raises(ContractError):
        draft_inputs(torch.zeros(2).long(), grid(2, 4), grid(2, 5), draft_ids)
    assert (draft_ids == NOISE).all()
