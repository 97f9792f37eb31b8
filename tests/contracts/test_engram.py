"""Engram gather: values by hand, ranks that add up, and ids that must not become addresses."""

from __future__ import annotations

import pytest
import torch

from dspark_ops.conformance.numbers import check_numbers
from dspark_ops.contracts import model_shapes
from dspark_ops.contracts.engram import ENGRAM_GATHER, engram_gather
from dspark_ops.errors import ContractError


def table(rows: int, columns: int = 64, seed: int = 0) -> tuple:
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(rows, columns, generator=generator).to(torch.float8_e4m3fn)
    scales = torch.randint(110, 140, (rows, columns // 32), generator=generator).to(torch.uint8)
    return values, scales


def test_the_reference_gives_every_case_its_known_values() -> None:
    assert check_numbers(ENGRAM_GATHER, engram_gather) == []


def test_a_row_is_its_values_times_the_scale_of_their_group() -> None:
    values = torch.ones(2, 64)
    values[1, :32], values[1, 32:] = -1.5, 448.0
    scales = torch.tensor([[127, 128], [126, 130]], dtype=torch.uint8)
    out = engram_gather(values.to(torch.float8_e4m3fn), scales, torch.tensor([[11], [10], [9]]), 10, 12)
    assert out.dtype == torch.bfloat16 and out.shape == (3, 64)
    assert (out[0, :32] == -0.75).all() and (out[0, 32:] == 3584).all()
    assert (out[1, :32] == 1).all() and (out[1, 32:] == 2).all()
    assert (out[2] == 0).all()


def test_rows_of_the_output_follow_the_ids_row_by_row() -> None:
    values, scales = table(6)
    ids = torch.tensor([[0, 1, 2], [3, 4, 5]])
    whole = engram_gather(values, scales, ids, 0, 6)
    for view, order in ((ids, range(6)), (ids.T, (0, 3, 1, 4, 2, 5)), (ids[:, 1:], (1, 2, 4, 5))):
        assert torch.equal(engram_gather(values, scales, view, 0, 6), whole[list(order)])
    assert torch.equal(engram_gather(values, scales, ids.view(-1)[:, None], 0, 6), whole)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_the_sum_over_the_ranks_is_the_whole_gather(ranks: int, dtype: torch.dtype) -> None:
    values, scales = table(40)
    ids = torch.randint(40, (24, 24), generator=torch.Generator().manual_seed(1)).to(dtype)
    whole = engram_gather(values, scales, ids, 0, 40)
    each = 40 // ranks
    total = torch.zeros_like(whole)
    for rank in range(ranks):
        lo, hi = rank * each, (rank + 1) * each
        total += engram_gather(values[lo:hi], scales[lo:hi], ids, lo, hi)
    assert torch.equal(total, whole)


def test_an_id_of_another_rank_gives_zeros_even_where_the_table_is_nan() -> None:
    values = torch.full((2, 32), float("nan")).to(torch.float8_e4m3fn)
    scales = torch.full((2, 1), 127, dtype=torch.uint8)
    ids = torch.tensor([[4, 7, -1, 2**31 - 1, 2**62, -(2**62)]])
    assert (engram_gather(values, scales, ids, 5, 7) == 0).all()
    assert engram_gather(values, scales, torch.tensor([[5, 6]]), 5, 7).isnan().all()


def test_a_negative_zero_stays_one() -> None:
    values = torch.tensor([[-0.0, 0.0] * 16]).to(torch.float8_e4m3fn)
    out = engram_gather(values, torch.tensor([[100]], dtype=torch.uint8), torch.tensor([[0]]), 0, 1)
    assert out.signbit().tolist() == [[True, False] * 16]


def test_the_smallest_scale_is_not_flushed_on_the_cpu() -> None:
    ones = torch.ones(1, 32).to(torch.float8_e4m3fn)
    out = engram_gather(ones, torch.tensor([[0]], dtype=torch.uint8), torch.tensor([[0]]), 0, 1)
    assert out[0, 0].item() == 2.0**-127


def test_no_ids_give_no_rows() -> None:
    values, scales = table(3)
    assert engram_gather(values, scales, torch.empty(0, 24, dtype=torch.int64), 0, 3).shape == (0, 64)
    assert engram_gather(values[:0], scales[:0], torch.zeros(1, 2).long(), 0, 0).tolist() == [[0.0] * 64] * 2


@pytest.mark.parametrize(
    ("columns", "scale_columns", "bounds", "text"),
    [
        (48, 1, (0, 3), r"table \[3, 48\]"),
        (16, 1, (0, 3), r"at least 32 columns"),
        (64, 3, (0, 3), r"scales \[3, 3\]"),
        (64, 2, (0, 4), "lo 0, hi 4: wanted 0 <= lo <= hi <= lo . 3"),
        (64, 2, (2, 1), "lo 2, hi 1"),
        (64, 2, (-1, 1), "lo -1"),
    ],
)
def test_a_table_that_does_not_fit_is_refused(columns: int, scale_columns: int, bounds: tuple, text: str) -> None:
    values = torch.zeros(3, columns).to(torch.float8_e4m3fn)
    scales = torch.zeros(3, scale_columns, dtype=torch.uint8)
    with pytest.raises(ContractError, match=text):
        engram_gather(values, scales, torch.zeros(1, 1).long(), *bounds)


def test_the_place_has_24_ids_of_256_columns() -> None:
    (site,) = ENGRAM_GATHER.sites(model_shapes("deepseek-v4.1-flash/tp4"))
    assert site.axes == {"I": 24, "D": 256}
