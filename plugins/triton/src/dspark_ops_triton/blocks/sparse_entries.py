"""Device functions that gather cache entries of any page layout and decode them to bfloat16, which holds them exactly.

Entries come as 8 groups of 64 lanes. All codes are loaded before the first one is decoded: the loads overlap.
"""

from __future__ import annotations

import triton
import triton.language as tl

from dspark_ops_triton.blocks.codes import e2m1_value, e4m3_value, e4m3_value_by_fnuz, power_of_two
from dspark_ops_triton.blocks.kv_v4 import GROUP, locate
from dspark_ops_triton.blocks.kv_v41 import locate_v41
from dspark_ops_triton.blocks.rotary import join_pairs
from dspark_ops_triton.blocks.sparse_attention import decode, load_codes, load_rotated


@triton.jit
def load_entries(cache, slot, valid, page_shift, page_units, LAYOUT: tl.constexpr, FNUZ: tl.constexpr):
    """Return the entries at int64 slots [ENTRIES] as 8 blocks [ENTRIES, 64]; 0 where not `valid`.

    `page_units` counts what the layout's pages are made of: 576 bytes for ``kv_v4``, else 16. FNUZ: the device converts
    e4m3fnuz, not e4m3.
    """
    slot = tl.where(valid, slot, 0)
    if LAYOUT == "kv_v4":
        data, scales = locate(cache, slot, page_shift, page_units)
        c0, c1 = load_codes(data, 0, valid), load_codes(data, 1, valid)
        c2, c3 = load_codes(data, 2, valid), load_codes(data, 3, valid)
        c4, c5 = load_codes(data, 4, valid), load_codes(data, 5, valid)
        c6, k7 = load_codes(data, 6, valid), load_rotated(data, valid)
        k0, k1 = decode(c0, scales, 0, valid, FNUZ), decode(c1, scales, 1, valid, FNUZ)
        k2, k3 = decode(c2, scales, 2, valid, FNUZ), decode(c3, scales, 3, valid, FNUZ)
        k4, k5 = decode(c4, scales, 4, valid, FNUZ), decode(c5, scales, 5, valid, FNUZ)
        k6 = decode(c6, scales, 6, valid, FNUZ)
    elif LAYOUT == "kv_v41" or LAYOUT == "kv_v41_new":
        data, scales = locate_v41(cache, slot, page_shift, page_units, 512, 16, LAYOUT == "kv_v41_new")
        c0, c1 = load_codes(data, 0, valid), load_codes(data, 1, valid)
        c2, c3 = load_codes(data, 2, valid), load_codes(data, 3, valid)
        c4, c5 = load_codes(data, 4, valid), load_codes(data, 5, valid)
        c6, c7 = load_codes(data, 6, valid), load_codes(data, 7, valid)
        k0, k1 = decode_e4m3(c0, scales, 0, valid, FNUZ), decode_e4m3(c1, scales, 1, valid, FNUZ)
        k2, k3 = decode_e4m3(c2, scales, 2, valid, FNUZ), decode_e4m3(c3, scales, 3, valid, FNUZ)
        k4, k5 = decode_e4m3(c4, scales, 4, valid, FNUZ), decode_e4m3(c5, scales, 5, valid, FNUZ)
        k6, k7 = decode_e4m3(c6, scales, 6, valid, FNUZ), decode_e4m3(c7, scales, 7, valid, FNUZ)
    else:
        data, scales = locate_v41(cache, slot, page_shift, page_units, 256, 32, LAYOUT == "kv_v41_fp4_new")
        c0, c1 = load_pairs(data, 0, valid), load_pairs(data, 1, valid)
        c2, c3 = load_pairs(data, 2, valid), load_pairs(data, 3, valid)
        c4, c5 = load_pairs(data, 4, valid), load_pairs(data, 5, valid)
        c6, c7 = load_pairs(data, 6, valid), load_pairs(data, 7, valid)
        k0, k1 = decode_e2m1(c0, scales, 0, valid, FNUZ), decode_e2m1(c1, scales, 1, valid, FNUZ)
        k2, k3 = decode_e2m1(c2, scales, 2, valid, FNUZ), decode_e2m1(c3, scales, 3, valid, FNUZ)
        k4, k5 = decode_e2m1(c4, scales, 4, valid, FNUZ), decode_e2m1(c5, scales, 5, valid, FNUZ)
        k6, k7 = decode_e2m1(c6, scales, 6, valid, FNUZ), decode_e2m1(c7, scales, 7, valid, FNUZ)
    return k0, k1, k2, k3, k4, k5, k6, k7


@triton.jit
def load_pairs(data, group, valid):
    """Return the 32 bytes, two codes each, of one group of the entries whose data rows begin at `data` [ENTRIES]."""
    place = data[:, None] + (group * (GROUP // 2) + tl.arange(0, GROUP // 2)[None, :])
    return tl.load(place, mask=valid[:, None], other=0)


@triton.jit
def decode_e4m3(codes, scales, group, valid, FNUZ: tl.constexpr):
    """Return the bfloat16 values of one group's codes [ENTRIES, 64] with a power-of-two scale per 32 lanes."""
    ENTRIES: tl.constexpr = codes.shape[0]
    place = scales[:, None] + (group * 2 + tl.arange(0, 2)[None, :])
    scale = power_of_two(tl.load(place, mask=valid[:, None], other=127).to(tl.int32))
    value = tl.reshape(e4m3_value_by_fnuz(codes) if FNUZ else e4m3_value(codes), (ENTRIES, 2, GROUP // 2))
    return tl.reshape(value * scale[:, :, None], (ENTRIES, GROUP)).to(tl.bfloat16)


@triton.jit
def decode_e2m1(pairs, scales, group, valid, FNUZ: tl.constexpr):
    """Return the bfloat16 values of one group's bytes [ENTRIES, 32] with an e4m3 scale per 16 lanes.

    A product of a code and its scale has six significant bits at most.
    """
    ENTRIES: tl.constexpr = pairs.shape[0]
    place = scales[:, None] + (group * 4 + tl.arange(0, 4)[None, :])
    code = tl.load(place, mask=valid[:, None], other=0)
    scale = e4m3_value_by_fnuz(code) if FNUZ else e4m3_value(code)
    both = pairs.to(tl.int32)
    even = tl.reshape(e2m1_value(both & 15), (ENTRIES, 4, 8)) * scale[:, :, None]
    odd = tl.reshape(e2m1_value(both >> 4), (ENTRIES, 4, 8)) * scale[:, :, None]
    even, odd = tl.reshape(even, (ENTRIES, GROUP // 2)), tl.reshape(odd, (ENTRIES, GROUP // 2))
    return join_pairs(even.to(tl.bfloat16), odd.to(tl.bfloat16), ENTRIES, GROUP)
