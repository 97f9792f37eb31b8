"""Device functions for stored codes, rotations and pages, each alone against the contracts' numerics."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from dspark_ops.contracts import numerics, rope
from dspark_ops.contracts.layouts import KV_V4
from dspark_ops.contracts.rope_tail import rotate_plain
from dspark_ops_triton.blocks import codes, kv_v4, rotary, sparse_attention


@triton.jit
def _scale_kernel(x, byte, power, COUNT: tl.constexpr):
    lane = tl.arange(0, COUNT)
    value = codes.ue8m0_v4page(tl.load(x + lane))
    tl.store(byte + lane, value.to(tl.uint8))
    tl.store(power + lane, codes.power_of_two(value))


@triton.jit
def _code_kernel(x, encoded, rounded, COUNT: tl.constexpr):
    lane = tl.arange(0, COUNT)
    value = tl.load(x + lane)
    tl.store(encoded + lane, codes.e4m3_code(value))
    tl.store(rounded + lane, codes.e2m1_round(value))


@triton.jit
def _value_kernel(code, value, by_fnuz, COUNT: tl.constexpr):
    lane = tl.arange(0, COUNT)
    tl.store(value + lane, codes.e4m3_value(tl.load(code + lane)))
    tl.store(by_fnuz + lane, codes.e4m3_value_by_fnuz(tl.load(code + lane)))


@triton.jit
def _grid_kernel(x, out, GROUPS: tl.constexpr, LANES: tl.constexpr):
    place = tl.arange(0, GROUPS)[:, None] * LANES + tl.arange(0, LANES)[None, :]
    tl.store(out + place, codes.fp4_grid_e4m3_scale(tl.load(x + place), GROUPS, LANES))


@triton.jit
def _index_kernel(x, grid, fake, packed, code, GROUPS: tl.constexpr, LANES: tl.constexpr):
    group = tl.arange(0, GROUPS)
    place = group[:, None] * LANES + tl.arange(0, LANES)[None, :]
    value = tl.load(x + place)
    amax = tl.max(tl.abs(value), axis=1)
    tl.store(fake + group, codes.ue8m0_fp4_fake(amax).to(tl.uint8))
    tl.store(packed + group, codes.ue8m0_index(amax).to(tl.uint8))
    tl.store(grid + place, codes.fp4_grid_ue8m0_scale(value))
    tl.store(code + place, codes.e2m1_code_without_minus_zero(codes.e2m1_round(value)).to(tl.uint8))


@triton.jit
def _turn_kernel(x, turns, out, LANES: tl.constexpr, FORM: tl.constexpr):
    lane = tl.arange(0, LANES)[None, :]
    even, odd = rotary.split_pairs(tl.load(x + lane), 1, LANES)
    cosine, sine = rotary.split_pairs(tl.load(turns + lane), 1, LANES)
    if FORM == "forward":
        even, odd = rotary.turn(even, odd, cosine, sine)
    elif FORM == "backward":
        even, odd = rotary.turn_back(even, odd, cosine, sine)
    else:
        even, odd = rotary.turn_plain(even, odd, cosine, sine)
    tl.store(out + lane, rotary.join_pairs(even, odd, 1, LANES))


@triton.jit
def _locate_kernel(cache, slots, data, scales, page_shift, page_units, COUNT: tl.constexpr):
    lane = tl.arange(0, COUNT)
    row, scale_row = kv_v4.locate(cache, tl.load(slots + lane), page_shift, page_units)
    tl.store(data + lane, row.to(tl.int64) - cache.to(tl.int64))
    tl.store(scales + lane, scale_row.to(tl.int64) - cache.to(tl.int64))


@triton.jit
def _softmax_kernel(scores, valid, weights, largest, total, HEADS: tl.constexpr, ENTRIES: tl.constexpr):
    head, entry = tl.arange(0, HEADS), tl.arange(0, ENTRIES)
    place = head[:, None] * ENTRIES + entry[None, :]
    weight, top, whole = sparse_attention.softmax_part(tl.load(scores + place), tl.load(valid + entry) != 0)
    tl.store(weights + place, weight)
    tl.store(largest + head, top)
    tl.store(total + head, whole)


def _borders(*values: float) -> torch.Tensor:
    """Return the values, their neighbours on both sides, and all of them with the other sign."""
    exact = torch.tensor(values)
    up = torch.nextafter(exact, torch.tensor(torch.inf))
    positive = torch.cat([exact, up, torch.nextafter(exact, torch.tensor(0.0))])
    return torch.cat([positive, -positive])


def _padded(values: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.pad(values, (0, triton.next_power_of_2(values.numel()) - values.numel()))


def test_page_scales_are_the_contracts_at_every_power_of_two_and_beside_it() -> None:
    powers = _borders(*(2.0**exponent for exponent in range(-30, 40)), *(448 * 2.0**k for k in range(-20, 30)), 1e-4)
    amax = _padded(powers.abs())
    byte, power = torch.empty(amax.shape, dtype=torch.uint8), torch.empty(amax.shape)
    _scale_kernel[(1,)](amax, byte, power, COUNT=amax.numel())
    assert torch.equal(byte, numerics.ue8m0_v4page(amax))
    assert torch.equal(power, numerics.ue8m0_decode(byte))


def test_codes_are_the_contracts_at_every_middle_and_beside_it() -> None:
    values = numerics.e4m3_decode(torch.arange(0x7F, dtype=torch.uint8))
    middles = ((values[1:] + values[:-1]) / 2).tolist()
    x = _padded(_borders(*middles, *values.tolist(), 0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, 1e9))
    encoded, rounded = torch.empty(x.shape, dtype=torch.uint8), torch.empty(x.shape)
    _code_kernel[(1,)](x, encoded, rounded, COUNT=x.numel())
    assert torch.equal(encoded, numerics.e4m3_encode(x))
    wanted = numerics.e2m1_decode(numerics.e2m1_encode_ties_to_even(x))
    assert torch.equal(rounded.view(torch.int32), wanted.view(torch.int32))


def test_every_code_has_its_value_by_either_conversion() -> None:
    code = torch.arange(256, dtype=torch.int32).to(torch.uint8)
    value, by_fnuz = torch.empty(256), torch.empty(256)
    _value_kernel[(1,)](code, value, by_fnuz, COUNT=256)
    finite = (code & 0x7F) != 0x7F
    assert torch.equal(value[finite], numerics.e4m3_decode(code)[finite])
    assert torch.equal(by_fnuz[finite], value[finite])


def test_groups_are_rounded_to_the_fp4_grid_with_the_signs_of_small_values_kept() -> None:
    generator = torch.Generator().manual_seed(0)
    x = (torch.randn(64, 16, generator=generator) * torch.logspace(-6, 4, 64)[:, None]).bfloat16().float()
    x[:4] = torch.tensor([6.0, -0.1, -0.0, 0.0]).repeat(4)
    x[4] = 0.0
    out = torch.empty(64, 16)
    _grid_kernel[(1,)](x, out, GROUPS=64, LANES=16)
    wanted = numerics.fp4_fake_quant_e4m3_scale(x)
    assert torch.equal(out.view(torch.int32), wanted.view(torch.int32))


def test_index_groups_have_the_contracts_scales_codes_and_values() -> None:
    generator = torch.Generator().manual_seed(3)
    x = (torch.randn(64, 32, generator=generator) * torch.logspace(-30, 8, 64)[:, None]).bfloat16().float()
    x[0] = torch.tensor([6.0, -0.1, -0.0, 0.0, 0.25, 0.75, -0.75, 5.0]).repeat(4)
    x[1] = 0.0
    x[2:34] = torch.randn(32, 32, generator=generator) * 3
    grid, code = torch.empty(64, 32), torch.empty(64, 32, dtype=torch.uint8)
    fake, packed = torch.empty(64, dtype=torch.uint8), torch.empty(64, dtype=torch.uint8)
    _index_kernel[(1,)](x, grid, fake, packed, code, GROUPS=64, LANES=32)
    assert torch.equal(fake, numerics.ue8m0_fp4_fake(x.abs().amax(1)))
    assert torch.equal(packed, numerics.ue8m0_index(x.abs().amax(1)))
    assert torch.equal(grid.view(torch.int32), numerics.fp4_fake_quant_ue8m0_scale(x).view(torch.int32))
    assert torch.equal(code, numerics.e2m1_without_minus_zero(numerics.e2m1_encode_ties_to_even(x)))


def test_pairs_are_turned_with_the_contracts_roundings() -> None:
    generator = torch.Generator().manual_seed(1)
    x, turns = torch.randn(128, generator=generator), torch.randn(128, generator=generator)
    cosine, sine = turns[0::2], turns[1::2]
    wanted = {
        "forward": rope.rotate(x, cosine, sine),
        "backward": rope.rotate_inverse(x, cosine, sine),
        "plain": rotate_plain(x, cosine, sine),
    }
    assert not torch.equal(wanted["forward"], wanted["plain"])
    for form, expected in wanted.items():
        out = torch.empty(128)
        _turn_kernel[(1,)](x, turns, out, LANES=128, FORM=form)
        assert torch.equal(out, expected)


def test_slots_lie_where_the_layout_says_also_beyond_two_gigabytes() -> None:
    for page_size in (1, 4, 64, 256):
        slots = torch.tensor([0, 1, page_size - 1, page_size, 3 * page_size + 1, 5_000_000, 2**31 - 1, 7])
        data, scales = torch.empty(8, dtype=torch.int64), torch.empty(8, dtype=torch.int64)
        cache = torch.zeros(1, KV_V4.page_bytes(page_size), dtype=torch.uint8)
        units = kv_v4.page_units("test", cache, page_size)
        _locate_kernel[(1,)](cache, slots, data, scales, kv_v4.page_shift(page_size), units, COUNT=8)
        assert data.tolist() == [KV_V4.data_offset(slot, page_size) for slot in slots.tolist()]
        assert scales.tolist() == [KV_V4.scale_offset(slot, page_size) for slot in slots.tolist()]


def test_weights_of_no_valid_entry_are_0_and_of_others_add_up() -> None:
    scores = torch.randn(2, 16, generator=torch.Generator().manual_seed(2)) * 9
    weights, largest, total = torch.empty(2, 16), torch.empty(2), torch.empty(2)
    for valid in (torch.zeros(16), torch.ones(16), (torch.arange(16) % 3 == 0).float()):
        _softmax_kernel[(1,)](scores, valid.int(), weights, largest, total, HEADS=2, ENTRIES=16)
        kept = scores.masked_fill(valid == 0, -torch.inf)
        assert torch.equal(largest, kept.amax(1))
        assert torch.equal(weights == 0, (valid == 0).expand(2, 16))
        if valid.any():
            assert torch.allclose(largest + total.log2(), (kept.double().exp2().sum(1)).log2().float(), atol=1e-5)
        else:
            assert total.tolist() == [0.0, 0.0]
