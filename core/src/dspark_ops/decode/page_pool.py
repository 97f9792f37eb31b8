"""The pages of the compressed caches: who owns which, and whether there are enough for one more request."""

from __future__ import annotations

from dspark_ops.errors import InvariantError

__all__ = ["PagePool"]


class PagePool:
    """A fixed number of pages, each owned by one request or by nobody.

    A request takes all pages that it can ever touch when it enters, so one that runs never waits for another to end. A
    request that finds too few waits; nothing is taken from anyone.

    Args:
        pages: how many there are.

    Raises:
        InvariantError: fewer than none.
    """

    def __init__(self, pages: int) -> None:
        if pages < 0:
            raise InvariantError(f"a pool of {pages} pages: wanted 0 or more")
        self._size = pages
        # The page that was given back last is taken first: it is the one most likely still in a cache.
        self._free = list(range(pages - 1, -1, -1))
        self._owned: dict[int, tuple[int, ...]] = {}

    def __len__(self) -> int:
        return self._size

    @property
    def free(self) -> int:
        """Pages that nobody owns."""
        return len(self._free)

    def take(self, owner: int, count: int) -> tuple[int, ...] | None:
        """Return `count` pages that now belong to `owner`, or None if there are fewer: nothing has changed then.

        Raises:
            InvariantError: the owner has pages already, or asks for less than none.
        """
        if owner in self._owned or count < 0:
            raise InvariantError(f"request {owner} asks for {count} pages and owns {len(self._owned.get(owner, ()))}")
        if count > len(self._free):
            return None
        self._owned[owner] = tuple(self._free.pop() for _ in range(count))
        return self._owned[owner]

    def release(self, owner: int) -> None:
        """Take back all pages of an owner.

        Raises:
            InvariantError: it has none to give back.
        """
        pages = self._owned.pop(owner, None)
        if pages is None:
            raise InvariantError(f"request {owner} gives back pages, and owns none")
        self._free.extend(reversed(pages))

    def check(self) -> None:
        """Return if every page has exactly one place, free or with one owner.

        Raises:
            InvariantError: a page is lost or has two places.
        """
        places = sorted([*self._free, *(page for pages in self._owned.values() for page in pages)])
        if places != list(range(self._size)):
            raise InvariantError(f"{self._size} pages have {len(places)} places, {len(set(places))} of them different")
