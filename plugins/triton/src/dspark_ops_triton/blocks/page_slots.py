"""The page and the slot of an entry, by a shift where the size of a page is a power of two, else by a division.

A division by a number that is known at run time takes some forty instructions, between the load of an entry and that of
its page.
"""

from __future__ import annotations

import triton
import triton.language as tl


def page_unit(page_size: int) -> tuple[int, bool]:
    """Return the run-time number and the SHIFT of the device functions here, for pages of `page_size` entries."""
    shift = page_size & (page_size - 1) == 0
    return page_size.bit_length() - 1 if shift else page_size, shift


@triton.jit
def page_and_slot(entry, unit, SHIFT: tl.constexpr):
    """Return which page of its row an entry lies in, and at which slot of it; entries are not negative."""
    if SHIFT:
        place = entry >> unit
        slot = entry - (place << unit)
    else:
        place = entry // unit
        slot = entry - place * unit
    return place, slot


@triton.jit
def slot_of_page(page, slot, unit, SHIFT: tl.constexpr):
    """Return the slot of a page's slot among those of the whole cache."""
    return (page << unit) + slot if SHIFT else page * unit + slot
