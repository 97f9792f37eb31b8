"""Shared pages: every page has one place, whoever comes and goes."""

from __future__ import annotations

import random

import pytest

from dspark_ops.decode.page_pool import PagePool
from dspark_ops.errors import InvariantError


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
