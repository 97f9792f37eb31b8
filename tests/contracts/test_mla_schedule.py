"""Attention schedule: golden records, the walk done by hand, every block covered once, idle parts, degenerate sizes."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dspark_ops.contracts.mla_schedule import covered_blocks, mla_sched_meta, num_sm_parts
from dspark_ops.errors import ContractError


def schedule(lengths: list[int], parts: int, **options: object) -> tuple[list[list[int]], list[int]]:
    meta = torch.full((parts, 8), -7, dtype=torch.int32)
    num_splits = torch.full((len(lengths) + 1,), -7, dtype=torch.int32)
    assert mla_sched_meta(torch.tensor(lengths, dtype=torch.int32), meta, num_splits, **options) is None
    return meta.tolist(), num_splits.tolist()


def walk(lengths: list[int], parts: int, overhead: int = 5) -> tuple[list[list[int]], list[int]]:
    """The walk of N4.3, one block at a time as it is written there, over lengths after N4.2."""
    batch = len(lengths)
    blocks = [max(length - 1, 0) // 64 + 1 for length in lengths]
    share = -(-sum(count + overhead for count in blocks) // parts) + overhead
    request = block = split = total = 0
    records, num_splits = [], [0]
    for _ in range(parts):
        begin, begin_block, begin_split, left = request, block, split, share
        while request < batch:
            rest = blocks[request] - block
            if left < rest + overhead:
                if left - overhead > 0:
                    block, split, left = block + left - overhead, split + 1, 0
                break
            total += split + 1
            num_splits.append(total)
            left -= rest + overhead
            request, block, split = request + 1, 0, 0
        end = request if block else request - 1
        whole = blocks[end] if lengths[end] else 0
        stop = block or whole
        first, last = int(begin_block != 0), int(stop != blocks[end] and lengths[end] != 0)
        if begin == end:
            first = last = first | last
        records.append([begin, end, begin_block, stop, begin_split, first, last, 0])
    assert (request, block, split) == (batch, 0, 0)
    return records, num_splits


EIGHT = [[0, 0, part, part + 1, part, 1, 1, 0] for part in range(8)]


@pytest.mark.parametrize("parts", [152, 25])
def test_one_request_of_512_gives_eight_parts_one_block_each_and_idle_ones(parts: int) -> None:
    assert schedule([512], parts) == (EIGHT + [[1, 0, 0, 8, 0, 0, 0, 0]] * (parts - 8), [0, 8])


@pytest.mark.parametrize(
    ("lengths", "parts", "active", "idle", "splits"),
    [
        ([2048], 25, [[0, 0, 2 * p, 2 * p + 2, p, 1, 1, 0] for p in range(16)], [1, 0, 0, 32, 0, 0, 0, 0], [0, 16]),
        (
            [0, 512], 25,
            [[0, 0, 0, 1, 0, 0, 0, 0], *([1, 1, p, p + 1, p, 1, 1, 0] for p in range(8))],
            [2, 1, 0, 8, 0, 0, 0, 0], [0, 1, 9],
        ),
        (
            [130, 64, 1], 4,
            [[0, 0, 0, 3, 0, 0, 0, 0], [1, 1, 0, 1, 0, 0, 0, 0], [2, 2, 0, 1, 0, 0, 0, 0]],
            [3, 2, 0, 1, 0, 0, 0, 0], [0, 1, 2, 3],
        ),
    ],
)  # fmt: skip
def test_the_golden_schedules_have_their_records(
    lengths: list[int], parts: int, active: list[list[int]], idle: list[int], splits: list[int]
) -> None:
    assert schedule(lengths, parts) == (active + [idle] * (parts - len(active)), splits)


@pytest.mark.parametrize(("main", "extra", "splits"), [(100, 300, 7), (128, 512, 10)])
def test_extra_entries_follow_the_main_ones_rounded_up_to_whole_blocks(main: int, extra: int, splits: int) -> None:
    meta, num_splits = schedule([main], 25, extra_lengths=torch.tensor([extra], dtype=torch.int32), extra_topk=512)
    assert num_splits == [0, splits] and meta[-1] == [1, 0, 0, splits, 0, 0, 0, 0]
    assert (meta, num_splits) == walk([128 + extra], 25)


def test_without_extra_lengths_every_request_has_all_extra_columns() -> None:
    assert schedule([5, 0], 7, extra_topk=300) == walk([364, 364], 7)


@settings(max_examples=150, deadline=None)
@given(
    lengths=st.lists(st.one_of(st.integers(0, 2048), st.sampled_from([0, 1, 63, 64, 65, 128])), min_size=1, max_size=9),
    parts=st.integers(1, 40),
    overhead=st.sampled_from([1, 3, 5]),
    form=st.sampled_from(["sparse", "dense"]),
)
def test_every_block_of_every_request_is_covered_once_and_in_order(
    lengths: list[int], parts: int, overhead: int, form: str
) -> None:
    meta, num_splits = schedule(lengths, parts, overhead=overhead, form=form)
    seen = [max(length, 1) if form == "sparse" else length for length in lengths]
    assert (meta, num_splits) == walk(seen, parts, overhead)

    covered = covered_blocks(meta, seen)
    wanted = [(request, block) for request, length in enumerate(seen) for block in range(-(-length // 64))]
    assert [(request, block) for request, block, _ in covered] == wanted

    assert len(num_splits) == len(lengths) + 1 and num_splits[0] == 0
    for request, (low, high) in enumerate(pairwise(num_splits)):
        used = sorted({split for owner, _, split in covered if owner == request})
        assert used == list(range(high - low)) if seen[request] else high - low == 1
    assert num_splits[-1] <= len(lengths) + parts  # the consumer's buffers hold B + P partial results


@pytest.mark.parametrize(("lengths", "parts"), [([0, 64, 0, 128], 3), ([0] * 32, 152), ([1], 152), ([512] * 7, 2)])
@pytest.mark.parametrize("form", ["sparse", "dense"])
def test_nothing_to_do_and_more_work_than_parts_are_partitions_too(lengths: list[int], parts: int, form: str) -> None:
    # without its guards a length array would be read one element too far by an idle part
    guarded = torch.tensor([2**30, *lengths, 2**30], dtype=torch.int32)
    meta = torch.full((parts, 8), -7, dtype=torch.int32)
    num_splits = torch.zeros(len(lengths) + 1, dtype=torch.int32)
    mla_sched_meta(guarded[1:-1], meta, num_splits, form=form)
    seen = [max(length, 1) for length in lengths] if form == "sparse" else lengths
    assert [(request, block) for request, block, _ in covered_blocks(meta.tolist(), seen)] == [
        (request, block) for request, length in enumerate(seen) for block in range(-(-length // 64))
    ]
    assert all(low < high for low, high in pairwise(num_splits.tolist()))


def test_a_dense_schedule_of_empty_requests_names_no_block() -> None:
    meta, _ = schedule([0] * 32, 152, form="dense")
    assert covered_blocks(meta, [0] * 32) == []
    meta, _ = schedule([0, 64, 0, 128], 3, form="dense")
    assert [pair[:2] for pair in covered_blocks(meta, [0, 64, 0, 128])] == [(1, 0), (3, 0), (3, 1)]


def test_one_entry_keeps_one_part_busy_and_leaves_151_idle() -> None:
    meta, num_splits = schedule([1], 152)
    assert meta[0] == [0, 0, 0, 1, 0, 0, 0, 0] and num_splits == [0, 1]
    assert meta[1:] == [[1, 0, 0, 1, 0, 0, 0, 0]] * 151


def test_the_end_of_an_idle_part_is_zero_after_an_empty_dense_request() -> None:
    assert schedule([64, 0], 5, form="dense")[0][-1] == [2, 1, 0, 0, 0, 0, 0, 0]
    assert schedule([64, 0], 5)[0][-1] == [2, 1, 0, 1, 0, 0, 0, 0]


@pytest.mark.parametrize(
    ("arguments", "wanted"),
    [
        (("sm_10x", 152, 1, 64), (152, 5)),
        (("sm_10x", 152, 6, 64), (25, 5)),
        (("sm_10x", 148, 6, 128), (12, 3)),
        (("sm_10x", 148, 6, 128, 576), (24, 5)),
        (("sm_9x", 132, 1, 64), (132, 5)),
        (("sm_9x", 132, 1, 128), (66, 5)),
        (("sm_9x", 132, 6, 64), (22, 5)),
        (("sm_9x", 132, 6, 128), (11, 5)),
        (("sm_10x", 4, 6, 64), (1, 5)),
    ],
)
def test_the_number_of_parts_follows_the_architecture_and_is_never_zero(arguments: tuple, wanted: tuple) -> None:
    assert num_sm_parts(*arguments) == wanted


@pytest.mark.parametrize(("family", "heads"), [("gfx95x", 64), ("sm_12x", 64), ("sm_10x", 16), ("sm_9x", 0)])
def test_parts_of_an_architecture_without_such_a_kernel_are_refused(family: str, heads: int) -> None:
    with pytest.raises(ContractError, match="wanted family sm_9x"):
        num_sm_parts(family, 132, 1, heads)


@pytest.mark.parametrize(
    ("batch", "parts", "splits", "options", "text"),
    [
        (0, 3, 1, {}, "at least one request and one part, got 0 and 3"),
        (2, 0, 3, {}, "got 2 and 0"),
        (2, 3, 2, {}, r"num_splits \[3\] for 2 requests"),
        (2, 3, 3, {"form": "ragged"}, "form is 'ragged'"),
        (2, 3, 3, {"form": "dense", "extra_topk": 512}, "extra_topk is 512"),
        (2, 3, 3, {"extra_lengths": torch.ones(2, dtype=torch.int32)}, "wanted extra_topk"),
    ],
)
def test_a_wrong_call_is_refused_and_writes_nothing(
    batch: int, parts: int, splits: int, options: dict, text: str
) -> None:
    meta, num_splits = torch.full((parts, 8), -7), torch.full((splits,), -7)
    with pytest.raises(ContractError, match=text):
        mla_sched_meta(torch.ones(batch, dtype=torch.int32), meta, num_splits, **options)
    assert (meta == -7).all() and (num_splits == -7).all()
