"""MoE sort: known vectors, a loop over experts as the oracle, and what the free tails may hold."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dspark_ops.conformance.numbers import check_numbers
from dspark_ops.contracts import get, model_shapes
from dspark_ops.contracts.moe_sort import MOE_SORT, moe_sort
from dspark_ops.errors import ContractError


def sort(ids: list, mask: list | None, block: int = 4, weights: list | None = None, **options: object) -> tuple:
    """Return the defined part: entries in hexadecimal, weights, block experts, counts, and the buffer."""
    top_k = len(ids[0]) if ids else 2
    chosen = torch.tensor(ids, dtype=torch.int32).view(len(ids), top_k)
    shares = torch.ones(chosen.shape) if weights is None else torch.tensor(weights)
    held = None if mask is None else torch.tensor(mask, dtype=torch.int32)
    experts = options.pop("experts", None) or len(mask)
    entries, sorted_weights, owners, counts, buffer = moe_sort(
        chosen, shares, experts, 8, block, expert_mask=held, **options
    )
    assert len(entries) == len(sorted_weights) == chosen.numel() + experts * block - top_k
    assert len(owners) == -(-len(entries) // block)
    count = int(counts[0])
    defined = [f"{entry:08x}" for entry in entries[:count].tolist()]
    return defined, sorted_weights[:count].tolist(), owners[: count // block].tolist(), counts.tolist(), buffer


def loops(ids: list, mask: list, block: int, live: int, dedupe: bool) -> tuple[list, list]:
    """Return entries (slot, row) with None for a sentinel, and the local expert of each block."""
    entries: list = []
    owners: list = []
    local = 0
    for expert, held in enumerate(mask):
        if not held:
            continue
        found = [(slot, row) for row in range(live) for slot, chosen in enumerate(ids[row]) if chosen == expert]
        if dedupe:
            found = [(slot, row) for slot, row in found if expert not in ids[row][slot + 1 :]]
        blocks = -(-len(found) // block)
        entries += found + [None] * (blocks * block - len(found))
        owners += [local] * blocks
        local += 1
    return entries, owners


def test_the_reference_gives_every_case_its_known_values() -> None:
    assert check_numbers(MOE_SORT, moe_sort) == []


def test_the_vector_of_a4() -> None:
    entries, weights, owners, counts, _ = sort(
        [[0, 3], [3, 1], [2, 3]], [1, 0, 1, 1], weights=[[0.5, 0.25], [0.75, 0.125], [0.3, 0.6]]
    )
    assert entries == [
        "00000000", *["02000003"] * 3, "00000002", *["02000003"] * 3, "01000000", "00000001", "01000002", "02000003"
    ]  # fmt: skip
    assert weights == pytest.approx([0.5, 0, 0, 0, 0.3, 0, 0, 0, 0.25, 0.75, 0.6, 0])
    assert (owners, counts) == ([0, 1, 2], [12, 3])


def test_o17_two_local_experts() -> None:
    entries, _, owners, counts, _ = sort([[0, 2], [2, 0], [2, 3]], [1, 0, 1, 0])
    assert entries == [
        "00000000", "01000001", "02000003", "02000003", "01000000", "00000001", "00000002", "02000003"
    ]  # fmt: skip
    assert (owners, counts) == ([0, 1], [8, 3])


def test_o17_an_expert_that_nobody_chose_gives_no_entries_and_a_zero_buffer() -> None:
    _, _, _, counts, buffer = sort([[0, 2], [2, 0], [2, 3]], [0, 1, 0, 0])
    assert counts == [0, 3]
    assert buffer.shape == (3, 8) and buffer.dtype == torch.bfloat16 and (buffer == 0).all()


def test_o17_every_row_on_one_expert() -> None:
    entries, _, owners, counts, _ = sort([[2, 0], [2, 1], [2, 3], [2, 0], [2, 1]], [0, 0, 1, 0])
    assert entries == [f"{row:08x}" for row in range(5)] + ["02000005"] * 3
    assert (owners, counts) == ([0, 0], [8, 5])


@pytest.mark.parametrize("mask", [[1, 0, 1, 0], [0, 0, 0, 0], [1, 1, 1, 1]])
def test_o17_no_rows_give_no_entries(mask: list[int]) -> None:
    *_, counts, buffer = sort([], mask)
    assert counts == [0, 0] and buffer.shape == (0, 8)


@pytest.mark.parametrize(("rows", "blocks"), [(1, 1), (32, 1), (33, 2), (128, 4)])
def test_full_blocks_of_one_expert(rows: int, blocks: int) -> None:
    entries, _, owners, counts, _ = sort([[1]] * rows, [0, 1], block=32)
    assert counts == [blocks * 32, rows] and owners == [0] * blocks
    assert entries == [f"{row:08x}" for row in range(rows)] + [f"{(1 << 24) | rows:08x}"] * (blocks * 32 - rows)


@pytest.mark.parametrize(
    ("mask", "accumulate", "shape"), [(None, False, (0, 0)), (None, True, (3, 8)), ([1, 1, 1, 1], False, (3, 8))]
)
def test_the_buffer_exists_where_something_is_left_out_or_added(
    mask: list | None, accumulate: bool, shape: tuple
) -> None:
    ids = [[0, 3], [3, 1], [2, 3]]
    buffer = sort(ids, mask, experts=4, accumulate=accumulate, buffer_dtype="float32")[4]
    assert buffer.shape == shape and buffer.dtype == torch.float32 and not buffer.any()


def test_rows_behind_the_live_ones_have_no_entries_and_the_sentinel_still_counts_them() -> None:
    ids = [[0, 3], [3, 1], [0, 3], [2**31 - 1, -1]]
    entries, _, owners, counts, _ = sort(ids, [1, 0, 1, 1], num_valid=torch.tensor([2], dtype=torch.int32))
    assert entries == ["00000000", *["02000004"] * 3, "01000000", "00000001", *["02000004"] * 2]
    assert (owners, counts) == ([0, 2], [8, 2])


def test_a_padded_row_that_repeats_an_expert_is_kept_whole_or_by_its_highest_slot() -> None:
    ids = [[1, 0, 2], [0, 0, 0], [2, 0, 2]]
    assert sort(ids, [1, 1, 1])[0] == [
        "01000000", "00000001", "01000001", "02000001", "01000002", *["03000003"] * 3,
        "00000000", *["03000003"] * 3,
        "02000000", "00000002", "02000002", "03000003",
    ]  # fmt: skip
    assert sort(ids, [1, 1, 1], dedupe=True)[0] == [
        "01000000", "02000001", "01000002", "03000003",
        "00000000", *["03000003"] * 3,
        "02000000", "02000002", *["03000003"] * 2,
    ]  # fmt: skip


def test_padding_ids_of_minus_one_take_no_part() -> None:
    entries, _, _, counts, _ = sort([[1, 0], [-1, -1]], [1, 1])
    assert entries == ["01000000", *["02000002"] * 3, "00000000", *["02000002"] * 3]
    assert counts == [8, 2]


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_the_sort_is_what_a_loop_over_experts_finds(data: st.DataObject) -> None:
    experts = data.draw(st.integers(1, 9))
    top_k = data.draw(st.integers(1, experts))
    rows, block = data.draw(st.integers(0, 12)), data.draw(st.integers(1, 5))
    row = st.lists(st.integers(-1, experts), min_size=top_k, max_size=top_k)
    ids = data.draw(st.lists(row, min_size=rows, max_size=rows))
    mask = data.draw(st.lists(st.integers(0, 2), min_size=experts, max_size=experts))
    live = data.draw(st.integers(0, rows))
    dedupe = data.draw(st.booleans())
    weights = [[row + slot / 16 for slot in range(top_k)] for row in range(rows)]
    chosen = torch.tensor(ids, dtype=torch.int32).view(rows, top_k)
    shares = torch.tensor(weights, dtype=torch.float32).view(rows, top_k)
    count = torch.tensor([live], dtype=torch.int32)
    held = torch.tensor(mask, dtype=torch.int32)
    entries, found, owners, counts, _ = moe_sort(
        chosen, shares, experts, 8, block, expert_mask=held, num_valid=count, dedupe=dedupe
    )
    wanted, wanted_owners = loops(ids, mask, block, live, dedupe)
    assert counts.tolist() == [len(wanted), live]
    assert owners[: len(wanted_owners)].tolist() == wanted_owners
    sentinel = (top_k << 24) | rows
    assert entries[: len(wanted)].tolist() == [
        sentinel if pair is None else (pair[0] << 24) | pair[1] for pair in wanted
    ]
    assert found[: len(wanted)].tolist() == [0.0 if pair is None else weights[pair[1]][pair[0]] for pair in wanted]


def _spoiled(*arguments: object, entry: int, output: int, value: object) -> tuple:
    outputs = list(moe_sort(*arguments))
    place = int(outputs[3][0]) + entry
    if output == 2:
        place //= int(arguments[4])
    if 0 <= place < len(outputs[output]):
        outputs[output] = outputs[output].clone()
        outputs[output][place] = value
    return tuple(outputs)


@pytest.mark.parametrize(("output", "value"), [(0, -1), (1, float("nan")), (2, 99)])
def test_what_lies_behind_the_count_is_free(output: int, value: object) -> None:
    assert check_numbers(MOE_SORT, lambda *a: _spoiled(*a, entry=0, output=output, value=value)) == []


@pytest.mark.parametrize(("output", "value"), [(0, -1), (1, 0.125), (2, 99)])
def test_what_lies_before_the_count_is_not(output: int, value: object) -> None:
    failures = check_numbers(MOE_SORT, lambda *a: _spoiled(*a, entry=-1, output=output, value=value))
    assert any(MOE_SORT.outputs[output].name in str(failure) for failure in failures)


@pytest.mark.parametrize(
    ("sizes", "options", "text"),
    [
        ((2, 3), {"experts": 2}, "3 slots, 2 experts"),
        ((2, 256), {"experts": 300}, "256 slots"),
        ((2, 2), {"block_size": 0}, "block_size 0"),
        ((2, 2), {"model_dim": 12}, "has 24 bytes: wanted a multiple of 16"),
        ((2, 2), {"model_dim": 0}, "has 0 bytes"),
        ((2, 2), {"buffer_dtype": "float64"}, "buffer_dtype is 'float64'"),
        ((2, 2), {"expert_mask": torch.ones(5, dtype=torch.int32)}, "expert_mask has 5 entries: wanted 4"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(sizes: tuple, options: dict, text: str) -> None:
    ids = torch.zeros(sizes, dtype=torch.int32)
    with pytest.raises(ContractError, match=text):
        moe_sort(ids, torch.zeros(sizes), **{"experts": 4, "model_dim": 8, **options})


def test_slots_from_128_on_use_the_sign_bit_of_the_word() -> None:
    ids = torch.arange(200, dtype=torch.int32).view(1, 200)
    mask = torch.zeros(200, dtype=torch.int32)
    mask[[3, 180]] = 1
    entries, *_ = moe_sort(ids, torch.ones(1, 200), 200, 8, 2, expert_mask=mask)
    assert [entry & 0xFFFFFFFF for entry in entries[:4].tolist()] == [0x03000000, 0xC8000001, 0xB4000000, 0xC8000001]


def test_too_many_rows_are_refused() -> None:
    ids = torch.zeros(1, dtype=torch.int32).expand(2**24, 1)
    with pytest.raises(ContractError, match="16777216 rows"):
        moe_sort(ids, ids.float(), 4, 8)


def test_both_places_are_stated_with_their_experts() -> None:
    shapes = model_shapes("deepseek-v4.1-flash/tp4")
    sites = {site.name: (site.axes["E"], site.axes["K"], site.options["model_dim"]) for site in MOE_SORT.sites(shapes)}
    assert sites == {"verify": (384, 6, 5120), "draft": (128, 3, 5120)}
    assert get("moe_sort") is MOE_SORT
