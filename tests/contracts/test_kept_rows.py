"""Rows that are written where they are kept, without a question to the host."""

from __future__ import annotations

import pytest
import torch

from dspark_ops.contracts.index_layouts import INDEX_K_SPLIT
from dspark_ops.contracts.kept_rows import kept_or_first, write_kept
from dspark_ops.contracts.layouts import KV_V4


def test_dropped_rows_give_way_to_the_first_kept_one() -> None:
    assert kept_or_first(torch.tensor([False, True, False, True])).tolist() == [1, 1, 1, 3]
    assert kept_or_first(torch.tensor([False, False])).tolist() == [0, 0]
    assert kept_or_first(torch.tensor([], dtype=torch.bool)).tolist() == []


@pytest.mark.parametrize("kept", [[True, True, True], [False, True, False], [False, False, False]])
def test_what_is_kept_is_written_and_nothing_else(kept: list[bool]) -> None:
    target, mask = torch.arange(5.0), torch.tensor(kept)
    places, rows = torch.tensor([4, 0, 2]), torch.tensor([7.0, 8.0, 9.0])
    wanted = target.clone()
    wanted[places[mask]] = rows[mask]
    written = kept_or_first(mask)
    write_kept(target, (places[written],), rows[written], mask)
    assert torch.equal(target, wanted)


def test_a_cache_without_pages_takes_rows_that_are_all_dropped() -> None:
    slots, rows = torch.tensor([3, -1]), torch.zeros(2, 512)
    KV_V4.store(torch.empty(0, KV_V4.page_bytes(4), dtype=torch.uint8), slots, rows, 4)
    INDEX_K_SPLIT.store(
        torch.empty(0, 4096, dtype=torch.uint8), torch.empty(0, 256, dtype=torch.uint8), slots, rows[:, :128]
    )


def test_garbage_in_dropped_rows_reaches_no_byte() -> None:
    cache = torch.full((2, KV_V4.page_bytes(4)), 0xAB, dtype=torch.uint8)
    rows = torch.full((3, 512), float("nan"))
    before = cache.clone()
    KV_V4.store(cache, torch.tensor([-1, 8, 2**40]), rows, 4)
    assert torch.equal(cache, before)
    rows[1] = 1.0
    KV_V4.store(cache, torch.tensor([0, 5, 1]), rows, 4, torch.tensor([False, True, False]))
    assert torch.equal(KV_V4.load(cache, torch.tensor([5]), 4), torch.ones(1, 512))
    assert torch.equal(cache[0], before[0])
