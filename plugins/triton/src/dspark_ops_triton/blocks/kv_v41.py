"""Device functions and host checks for pages of latent KV in the four layouts of V4.1 (N7.1, N7.3).

An entry is 512 e4m3 codes with a power-of-two scale per 32, or 512 e2m1 codes, two to a byte, with an e4m3 scale per
16. Its scale row follows its data row at once (``_new``), or all data rows of the page, which is then padded.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from dspark_ops_triton.blocks.codes import (
    e2m1_code,
    e2m1_round,
    e4m3_code,
    e4m3_value,
    power_of_two,
    ue8m0_v41page,
)
from dspark_ops_triton.blocks.rotary import split_pairs

#: Pages and rows begin at multiples of 16 bytes in every layout; kernels get the size of a page in this unit.
UNIT = tl.constexpr(16)
WIDTH = tl.constexpr(512)


@dataclass(frozen=True, slots=True)
class PageForm:
    """How the entries of a layout lie in its pages.

    Attributes:
        data: bytes of a data row.
        scales: bytes of a scale row.
        multiple: what the bytes of a page are rounded up to.
        interleaved: each data row is followed by its scale row.
    """

    data: int
    scales: int
    multiple: int
    interleaved: bool

    def page_bytes(self, page_size: int) -> int:
        """Return the bytes of a page of `page_size` slots."""
        return -(-page_size * (self.data + self.scales) // self.multiple) * self.multiple


FORMS = {
    "kv_v41": PageForm(512, 16, 512, interleaved=False),
    "kv_v41_fp4": PageForm(256, 32, 256, interleaved=False),
    "kv_v41_new": PageForm(512, 16, 1, interleaved=True),
    "kv_v41_fp4_new": PageForm(256, 32, 1, interleaved=True),
}


def page_units(operator: str, layout: str, cache: torch.Tensor, page_size: int) -> int:
    """Return the size of a page of `cache` in units of 16 bytes.

    Raises:
        ValueError: the layout is none of `FORMS`, the page size is no power of two, or the cache's rows are not pages
            of that size.
    """
    if layout not in FORMS:
        raise ValueError(f"{operator}: wanted layout kv_v4 or one of {', '.join(FORMS)}, got {layout!r}")
    if page_size < 1 or page_size & (page_size - 1):
        raise ValueError(f"{operator}: wanted a page size that is a power of two, got {page_size}")
    size = FORMS[layout].page_bytes(page_size)
    if cache.shape[1] != size or not cache.is_contiguous():
        raise ValueError(
            f"{operator}: wanted a contiguous cache [pages, {size}] for {layout} pages of {page_size} slots, got "
            f"{list(cache.shape)} with strides {list(cache.stride())}"
        )
    return size // UNIT.value


@triton.jit
def locate_v41(
    cache, slot, page_shift, page_units, DATA: tl.constexpr, SCALES: tl.constexpr, INTERLEAVED: tl.constexpr
):  # fmt: skip
    """Return pointers to the data row and the scale row of int64 slots."""
    page = slot >> page_shift
    inside = slot - (page << page_shift)
    first = page * page_units * UNIT
    if INTERLEAVED:
        data = first + inside * (DATA + SCALES)
        scales = data + DATA
    else:
        data = first + inside * DATA
        scales = first + (tl.full([], DATA, tl.int64) << page_shift) + inside * SCALES
    return cache + data, cache + scales


@triton.jit
def store_entry_e4m3(data, scales, row):
    """Quantise a float32 row of 512, given as a block of any shape, to e4m3 and write it with its 16 scale bytes."""
    groups = tl.reshape(row, (WIDTH // 32, 32))
    group, lane = tl.arange(0, WIDTH // 32), tl.arange(0, 32)
    byte = ue8m0_v41page(tl.max(tl.abs(groups), axis=1))
    tl.store(data + group[:, None] * 32 + lane[None, :], e4m3_code(groups * power_of_two(254 - byte)[:, None]))
    tl.store(scales + group, byte.to(tl.uint8))


@triton.jit
def store_entry_e2m1(data, scales, row):
    """Quantise a float32 row of 512, given as a block of any shape, to e2m1 and write it with its 32 scale codes."""
    groups = tl.reshape(row, (WIDTH // 16, 16))
    group, byte = tl.arange(0, WIDTH // 16), tl.arange(0, 8)
    amax = tl.max(tl.abs(groups), axis=1)
    sixth = tl.div_rn(amax, tl.full(amax.shape, 6.0, tl.float32))
    scale = e4m3_code(tl.minimum(tl.maximum(sixth, 0.001953125), 448.0))
    divisor = tl.broadcast_to(e4m3_value(scale)[:, None], (WIDTH // 16, 16))
    low, high = split_pairs(e2m1_code(e2m1_round(tl.div_rn(groups, divisor))), WIDTH // 16, 16)
    tl.store(data + group[:, None] * 8 + byte[None, :], (low | (high << 4)).to(tl.uint8))
    tl.store(scales + group, scale)
