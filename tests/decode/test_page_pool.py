"""Shared pages: every page has one place, whoever comes and goes."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import pytest

from dspark_ops.decode import DecodeOptions, Finish, Request
from dspark_ops.decode.admission import pages_needed
from dspark_ops.decode.batch import Batch
from dspark_ops.decode.options import RuntimeOptions
from dspark_ops.decode.page_pool import PagePool
from dspark_ops.decode.v41.synthetic import small_config
from dspark_ops.errors import InvariantError

CONFIG = small_config(max_position_embeddings=512, index_topk=512)
#: What book-keeping asks of a model.
MODEL: Any = SimpleNamespace(config=CONFIG, torch_device="cpu", tokenizer=None)


def test_no_page_is_lost_or_shared_after_ten_thousand_random_joins_and_leaves() -> None:
    rng = random.Random(5)
    pool, owned, refused = PagePool(61), {}, 0
    for number in range(10_000):
        if owned and rng.random() < 0.48:
            owner = rng.choice(list(owned))
            pool.release(owner)
            del owned[owner]
        else:
            count = rng.randrange(9)
            pages = pool.take(number, count)
            assert (pages is None) == (count > 61 - sum(map(len, owned.values())))
            if pages is None:
                refused += 1
            else:
                assert len(pages) == count
                owned[number] = pages
        taken = [page for pages in owned.values() for page in pages]
        assert len(taken) == len(set(taken)) == 61 - pool.free
        pool.check()
    assert refused > 100
    for owner in owned:
        pool.release(owner)
    assert pool.free == len(pool) == 61


def test_ten_thousand_requests_that_come_wait_are_cancelled_and_end_leave_no_slot_and_no_page_behind() -> None:
    rng = random.Random(7)
    batch = Batch(MODEL, (), DecodeOptions(max_batch=6, cache_pages=9), None)
    come = waited = 0
    while len(batch.results) < 10_000:
        for _ in range(min(rng.randrange(4), 10_000 - come)):
            batch.submit(come, Request((5,) * rng.randint(1, 300), rng.randint(1, 200)))
            come += 1
        batch.admit()
        held = [page for item in batch.running for page in item.pages]
        assert len(held) == len(set(held)) and len({item.slot for item in batch.running}) == len(batch.running) <= 6
        waited += batch.short_of_pages > 0
        assert batch.waiting == 0 or batch.short_of_pages > 0 or len(batch.running) == 6
        for item in batch.running:
            if rng.random() < 0.3:
                item.finish = Finish.EOS
        if come and rng.random() < 0.3:
            batch.cancel(rng.randrange(max(come - 12, 0), come))
        batch.retire()
        assert batch.leaks() == []
    assert waited > 100 and not batch
    assert batch.pool is not None and batch.pool.free == 9
    assert {result.finish for result in batch.results.values()} == {Finish.EOS, Finish.CANCELLED}


def test_pages_are_counted_for_the_longest_block_that_a_request_can_meet() -> None:
    request = Request((5,) * 100, 22)  # 122 tokens; with six drafts behind them they fill a page of 128
    assert pages_needed(MODEL, request, DecodeOptions(6)) == 1
    assert pages_needed(MODEL, request, DecodeOptions(7)) == 2
    assert pages_needed(MODEL, request, DecodeOptions(5, runtimes=RuntimeOptions(solo_gamma=7))) == 2


def test_a_pool_without_enough_pages_gives_none_and_stays_as_it_is() -> None:
    pool = PagePool(3)
    assert pool.take(1, 2) is not None
    assert pool.take(2, 2) is None
    assert pool.free == 1
    assert pool.take(2, 1) is not None


@pytest.mark.parametrize("misuse", [lambda pool: pool.take(1, 1), lambda pool: pool.release(2)])
def test_taking_twice_and_giving_back_what_is_not_owned_are_errors(misuse: object) -> None:
    pool = PagePool(4)
    pool.take(1, 1)
    with pytest.raises(InvariantError):
        misuse(pool)  # type: ignore[operator]
    pool.check()


def test_a_lost_page_is_found() -> None:
    pool = PagePool(4)
    pool._free.pop()
    with pytest.raises(InvariantError, match="4 pages have 3 places"):
        pool.check()
