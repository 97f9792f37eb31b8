"""Device functions of the argmax order, each alone."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from dspark_ops_triton.blocks.ordering import keep_first, last_to_arrive, pack, packed_column

NAN, INF = float("nan"), float("inf")
VALUES = [NAN, INF, 3.5, 2.0**-140, 0.0, -0.0, -(2.0**-140), -3.5, -1e30, -INF]
#: The order of the contract: a NaN first, then by value, both zeros equal.
RANKS = [8, 7, 6, 5, 4, 4, 3, 2, 1, 0]


@triton.jit
def _pack_kernel(value, column, out, unpacked, COUNT: tl.constexpr):
    lanes = tl.arange(0, COUNT)
    pair = pack(tl.load(value + lanes), tl.load(column + lanes))
    tl.store(out + lanes, pair)
    tl.store(unpacked + lanes, packed_column(pair))


@triton.jit
def _keep_kernel(best, value, out, out_column, COUNT: tl.constexpr):
    lanes = tl.arange(0, COUNT)
    first = tl.zeros((COUNT,), tl.int32)
    kept, column = keep_first(tl.load(best + lanes), first, tl.load(value + lanes), first + 1)
    tl.store(out + lanes, kept)
    tl.store(out_column + lanes, column)


@triton.jit
def _arrival_kernel(pairs, state, out, arrivals):
    program = tl.program_id(0)
    last, best = last_to_arrive(state, tl.load(pairs + program), tl.num_programs(0))
    if last:
        tl.store(out, best)
        tl.atomic_add(arrivals, 1)


def _pack(values: torch.Tensor, columns: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    count = triton.next_power_of_2(values.numel())
    pad = (0, count - values.numel())
    out, unpacked = torch.empty(count, dtype=torch.int64), torch.empty(count, dtype=torch.int64)
    pad_value, pad_column = torch.nn.functional.pad(values, pad), torch.nn.functional.pad(columns.int(), pad)
    _pack_kernel[(1,)](pad_value, pad_column, out, unpacked, COUNT=count)
    return out[: values.numel()], unpacked[: values.numel()]


def test_packed_pairs_order_by_value_then_by_lower_column() -> None:
    columns = torch.tensor([0, 1, 7, 2**31 - 2])
    values = torch.tensor(VALUES)
    grid = [(value, column) for value in range(len(VALUES)) for column in range(len(columns))]
    pairs, _ = _pack(
        values[[value for value, _ in grid]],
        columns[[column for _, column in grid]],
    )
    expected = sorted(grid, key=lambda entry: (RANKS[entry[0]], -int(columns[entry[1]])))
    by_pair = sorted(range(len(grid)), key=lambda index: int(pairs[index]))
    # Equal keys (the two zeros at one column) may come in either order.
    got = [(RANKS[grid[index][0]], int(columns[grid[index][1]])) for index in by_pair]
    assert got == [(RANKS[value], int(columns[column])) for value, column in expected]
    assert pairs.min() > 0


def test_both_zeros_pack_to_one_pair_and_every_nan_to_one_pair() -> None:
    bits = torch.tensor([0, -(2**31), 0x7FC00000, 0x7F800001, -4194304], dtype=torch.int32)
    pairs, _ = _pack(bits.view(torch.float32), torch.full((5,), 9))
    assert pairs[0] == pairs[1]
    assert pairs[2] == pairs[3] == pairs[4]


def test_random_values_pack_in_their_own_order() -> None:
    values = torch.randn(4096, generator=torch.Generator().manual_seed(0)) * 1e3
    pairs, columns = _pack(values, torch.arange(4096))
    assert torch.equal(values[pairs.argsort()], values.sort().values)
    assert torch.equal(columns, torch.arange(4096))


def test_a_later_value_replaces_only_if_it_is_better() -> None:
    pairs = [(best, value) for best in range(len(VALUES)) for value in range(len(VALUES))]
    values = torch.tensor(VALUES)
    best, value = values[[pair[0] for pair in pairs]], values[[pair[1] for pair in pairs]]
    count = 128
    pad = (0, count - len(pairs))
    out, column = torch.empty(count), torch.empty(count, dtype=torch.int32)
    _keep_kernel[(1,)](
        torch.nn.functional.pad(best, pad), torch.nn.functional.pad(value, pad), out, column, COUNT=count
    )
    expected = [int(RANKS[later] > RANKS[earlier]) for earlier, later in pairs]
    assert column[: len(pairs)].tolist() == expected
    chosen = torch.where(column[: len(pairs)] == 1, value, best)
    assert torch.equal(out[: len(pairs)].nan_to_num(77.0), chosen.nan_to_num(77.0))


def test_only_the_last_program_finishes_and_leaves_the_words_at_rest() -> None:
    state = torch.zeros(2, dtype=torch.int64)
    for seed in range(3):
        pairs = torch.randint(1, 2**62, (13,), generator=torch.Generator().manual_seed(seed))
        out, arrivals = torch.zeros(1, dtype=torch.int64), torch.zeros(1, dtype=torch.int32)
        _arrival_kernel[(13,)](pairs, state, out, arrivals)
        assert out.item() == pairs.max()
        assert arrivals.item() == 1
        assert state.tolist() == [0, 0]
