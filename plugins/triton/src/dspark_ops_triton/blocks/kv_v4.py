"""Device functions and host checks for pages of latent KV in the layout ``kv_v4`` (N7.1).

A page holds `page_size` data rows of 448 e4m3 codes and 64 bfloat16 lanes, then as many scale rows of 7 bytes and a
padding byte that is never touched, and is padded to a multiple of 576 bytes: kernels get its size in that unit. A
row is handled as 8 groups of 64 lanes, of which the last is the rotated one.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from dspark_ops_triton.blocks.codes import e4m3_code, fp4_grid_e4m3_scale, power_of_two, ue8m0_v4page
from dspark_ops_triton.blocks.rotary import join_pairs, load_turns, split_pairs, turn

WIDTH = 512
ROPE = 64
DATA_BYTES = tl.constexpr(576)
SCALE_BYTES = tl.constexpr(8)
PLAIN = tl.constexpr(448)
GROUPS = tl.constexpr(8)
GROUP = tl.constexpr(64)
LANES = tl.constexpr(512)


def page_units(operator: str, cache: torch.Tensor, page_size: int) -> int:
    """Return the size of a page of `cache` in units of 576 bytes.

    Raises:
        ValueError: the page size is no power of two, or the cache's rows are not pages of that size.
    """
    if page_size < 1 or page_size & (page_size - 1):
        raise ValueError(f"{operator}: wanted a page size that is a power of two, got {page_size}")
    units = -(-page_size * 584 // 576)
    if cache.shape[1] != units * 576 or not cache.is_contiguous():
        raise ValueError(
            f"{operator}: wanted a contiguous cache [pages, {units * 576}] for kv_v4 pages of {page_size} slots, got "
            f"{list(cache.shape)} with strides {list(cache.stride())}"
        )
    return units


def page_shift(page_size: int) -> int:
    """Return the binary logarithm of a page size."""
    return page_size.bit_length() - 1


@triton.jit
def locate(cache, slot, page_shift, page_units):
    """Return pointers to the data row and the scale row of int64 slots."""
    page = slot >> page_shift
    inside = slot - (page << page_shift)
    first = page * page_units
    scales = (first + (tl.full([], 1, tl.int64) << page_shift)) * DATA_BYTES + inside * SCALE_BYTES
    return cache + (first + inside) * DATA_BYTES, cache + scales


@triton.jit
def load_groups(row):
    """Return the 512 lanes at `row` as groups [8, 64]."""
    return tl.load(row + tl.arange(0, GROUPS)[:, None] * GROUP + tl.arange(0, GROUP)[None, :])


@triton.jit
def store_groups(row, groups):
    """Write groups [8, 64] to the 512 lanes at `row`."""
    tl.store(row + tl.arange(0, GROUPS)[:, None] * GROUP + tl.arange(0, GROUP)[None, :], groups)


@triton.jit
def normalise_groups(row, weight, eps):
    """Return (x * inverse) * weight in float32 for groups [8, 64] of one row; inverse is 1 / root of mean square + eps.

    A square of a bfloat16 is exact in float32. Divisions and root are the correctly rounded ones.
    """
    value = row.to(tl.float32)
    mean = tl.sum(tl.sum(value * value, axis=1), axis=0) / LANES
    inverse = tl.div_rn(tl.full([], 1.0, tl.float32), tl.sqrt_rn(mean + eps))
    return value * inverse * weight.to(tl.float32)


@triton.jit
def load_last_turns(turns, wanted):
    """Return the cosines and the sines, [8, 32] each, that turn the last group by the table row at `turns`.

    Nothing is read unless `wanted`; those of the other groups are 0.
    """
    group, lane = tl.arange(0, GROUPS)[:, None], tl.arange(0, GROUP)[None, :]
    # as numbers: Triton's interpreter makes no mask of two scalars and a block
    mask = wanted.to(tl.int32) > tl.where(group == GROUPS - 1, 0, 1) + 0 * lane
    return load_turns(turns + lane + 0 * group, mask, GROUPS, GROUP)


@triton.jit
def turn_last_group(groups, cosines, sines):
    """Return float32 groups [8, 64] with the last one rotated forward by `load_last_turns`, not rounded (N7.2).

    All groups are turned and one is kept: that costs less than taking it out of the tile.
    """
    even, odd = split_pairs(groups, GROUPS, GROUP)
    new_even, new_odd = turn(even, odd, cosines, sines)
    last = tl.arange(0, GROUPS)[:, None] == GROUPS - 1
    return join_pairs(tl.where(last, new_even, even), tl.where(last, new_odd, odd), GROUPS, GROUP)


@triton.jit
def quantise_groups(groups):
    """Return the codes, uint8, of float32 groups [8, 64], and the scale bytes, int32, of each group (N7.2).

    Scales are powers of two, so multiplying by the reciprocal is the division of the contract.
    """
    byte = ue8m0_v4page(tl.max(tl.abs(groups), axis=1))
    return e4m3_code(groups * power_of_two(254 - byte)[:, None]), byte


@triton.jit
def store_entry(cache, slot, groups, page_shift, page_units):
    """Quantise float32 groups [8, 64] and write them to one int64 slot: 448 codes, 64 bfloat16 lanes, 7 scales."""
    data, scales = locate(cache, slot, page_shift, page_units)
    group = tl.arange(0, GROUPS)
    lane = tl.arange(0, GROUP)[None, :]
    code, byte = quantise_groups(groups)
    plain = group < GROUPS - 1
    tl.store(data + group[:, None] * GROUP + lane, code, mask=plain[:, None])
    store_scales(scales, byte, plain)
    turned = (data + PLAIN).to(tl.pointer_type(tl.bfloat16)) + 0 * group[:, None] + lane
    tl.store(turned, groups.to(tl.bfloat16), mask=(group == GROUPS - 1)[:, None])


@triton.jit
def store_kept_entry(cache, slot, groups, page_shift, page_units, kept):
    """Do what `store_entry` does where `kept` is true, and write nothing where it is not; without a branch."""
    data, scales = locate(cache, slot, page_shift, page_units)
    group = tl.arange(0, GROUPS)
    lane = tl.arange(0, GROUP)[None, :]
    code, byte = quantise_groups(groups)
    # as numbers: Triton's interpreter makes no mask of a scalar and a block
    plain = kept.to(tl.int32) > tl.where(group < GROUPS - 1, 0, 1)
    last = kept.to(tl.int32) > tl.where(group < GROUPS - 1, 1, 0)
    tl.store(data + group[:, None] * GROUP + lane, code, mask=plain[:, None])
    turned = (data + PLAIN).to(tl.pointer_type(tl.bfloat16)) + 0 * group[:, None] + lane
    tl.store(turned, groups.to(tl.bfloat16), mask=last[:, None])
    store_scales(scales, byte, plain)


@triton.jit
def store_scales(scales, byte, wanted):
    """Write the scale bytes [8] of groups, where `wanted` [8], to the scale row at `scales`.

    A thread of the 16 that four warps have for a group stores its byte. A block of bytes alone would be laid out anew:
    threads would exchange them in shared memory.
    """
    group, thread = tl.arange(0, GROUPS)[:, None], tl.arange(0, 16)[None, :]
    # The others point behind the byte, so that neighbours are threads of one group.
    value = (byte[:, None] + 0 * thread).to(tl.uint8)
    tl.store(scales + group + thread, value, mask=wanted[:, None] & (thread == 0))


@triton.jit
def store_compressed_entry(cache, slot, latent, cosines, sines, page_shift, page_units):
    """Write the compressed entry of a bfloat16 latent, as groups [8, 64], to one int64 slot (N8.1).

    Cosines and sines are those of `load_last_turns`: a caller loads them before it computes what they are to turn.
    Rotated lanes are rounded to bfloat16, all lanes to the fp4 grid of their 16, and then as `store_entry` does.
    """
    groups = turn_last_group(latent.to(tl.float32), cosines, sines).to(tl.bfloat16).to(tl.float32)
    grid = fp4_grid_e4m3_scale(tl.reshape(groups, (LANES // 16, 16)), LANES // 16, 16)
    store_entry(cache, slot, tl.reshape(grid, (GROUPS, GROUP)), page_shift, page_units)
