"""Sparse decode attention: against a dense softmax, the sink, lengths, holes, and rows on their own."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from dspark_ops.binding.facts import outside
from dspark_ops.contracts import get
from dspark_ops.contracts.attention import sparse_mla_decode
from dspark_ops.contracts.layouts import KV_LAYOUTS, KV_V4, OTHER_EXTRA_LAYOUT, page_layout
from dspark_ops.errors import ContractError


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def filled(pages: int, seed: int = 0, page_size: int = 8) -> tuple[torch.Tensor, torch.Tensor]:
    """Return a cache full of rows, and the rows it holds."""
    cache = torch.zeros(pages, KV_V4.page_bytes(page_size), dtype=torch.uint8)
    slots = torch.arange(pages * page_size)
    KV_V4.store(cache, slots, random(pages * page_size, 512, seed=seed), page_size)
    return cache, KV_V4.load(cache, slots, page_size).double()


CACHE, ROWS = filled(4)
EXTRA, EXTRA_ROWS = filled(4, seed=1)
QUERIES = (2 * random(3, 2, 512, seed=2)).bfloat16()
INDICES = torch.tensor([[3, 31, 0, 7], [9, 9, 10, 11], [30, 1, 2, 4]], dtype=torch.int32)


def call(**changes: Any) -> tuple[torch.Tensor, torch.Tensor]:
    return sparse_mla_decode(**{"q": QUERIES, "cache": CACHE, "indices": INDICES, "page_size": 8, **changes})


def dense(query: torch.Tensor, entries: torch.Tensor, sink: float | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    """One query head over its entries, by the definition: the sink is an entry with value 0."""
    scores = entries @ query.double() * 512**-0.5
    logits = scores if sink is None else torch.cat([scores, torch.tensor([sink], dtype=torch.float64)])
    weights = logits.softmax(0)[: len(scores)]
    return weights @ entries, scores.logsumexp(0)


def check(
    got: tuple[torch.Tensor, torch.Tensor], row: int, head: int, entries: torch.Tensor, sink: float | None
) -> None:
    out, lse = dense(QUERIES[row, head], entries, sink)
    torch.testing.assert_close(got[0][row, head].double(), out, rtol=2**-8, atol=1e-5)
    torch.testing.assert_close(got[1][row, head].double(), lse, rtol=1e-6, atol=1e-6)


def test_window_and_extra_entries_share_one_softmax_and_the_sink_joins_only_the_denominator() -> None:
    sink = torch.tensor([1.5, -2.0])
    extra_indices = torch.tensor([[1, 2], [30, 8], [5, 6]], dtype=torch.int32)
    got = call(sink=sink, extra_cache=EXTRA, extra_indices=extra_indices, extra_page_size=8)
    for row in range(3):
        entries = torch.cat([ROWS[INDICES[row].long()], EXTRA_ROWS[extra_indices[row].long()]])
        for head in range(2):
            check(got, row, head, entries, sink[head].item())


def test_only_the_first_columns_up_to_the_length_count() -> None:
    got = call(lengths=torch.tensor([1, 4, 2], dtype=torch.int32))
    for row, length in enumerate((1, 4, 2)):
        check(got, row, 1, ROWS[INDICES[row, :length].long()], None)


def test_extra_lengths_and_lengths_are_independent() -> None:
    extra_indices = torch.tensor([[1, 2], [30, 8], [5, 6]], dtype=torch.int32)
    got = call(
        lengths=torch.tensor([0, 2, 4], dtype=torch.int32), extra_cache=EXTRA, extra_indices=extra_indices,
        extra_lengths=torch.tensor([2, 1, 0], dtype=torch.int32), extra_page_size=8,
    )  # fmt: skip
    check(got, 0, 0, EXTRA_ROWS[[1, 2]], None)
    check(got, 1, 0, torch.cat([ROWS[[9, 9]], EXTRA_ROWS[[30]]]), None)
    check(got, 2, 0, ROWS[INDICES[2].long()], None)


def test_minus_one_and_slots_beyond_the_pool_add_nothing() -> None:
    indices = torch.tensor([[3, -1, 0, 32], [-1, 9, 10, -1], [400, 1, 2, 4]], dtype=torch.int32)
    got = call(indices=indices)
    for row, slots in enumerate(([3, 0], [9, 10], [1, 2, 4])):
        check(got, row, 0, ROWS[slots], None)


def test_a_row_without_a_valid_entry_gives_zero_and_plus_infinity() -> None:
    indices = INDICES.clone()
    indices[1] = -1
    for sink in (None, torch.tensor([0.0, 5.0])):
        out, lse = call(indices=indices, sink=sink)
        assert out[1].abs().max().item() == 0
        assert lse[1].tolist() == [float("inf")] * 2
        assert lse[[0, 2]].isfinite().all()
    out, lse = call(lengths=torch.zeros(3, dtype=torch.int32))
    assert out.abs().max().item() == 0 and lse.unique().tolist() == [float("inf")]


def test_log_sum_exp_leaves_the_sink_out() -> None:
    assert torch.equal(call(sink=torch.tensor([3.0, -3.0]))[1], call()[1])


def test_a_sink_of_minus_infinity_is_no_sink_and_a_huge_one_takes_all_weight() -> None:
    assert torch.equal(call(sink=torch.full((2,), -torch.inf))[0], call()[0])
    assert call(sink=torch.full((2,), 1e30))[0].abs().max().item() == 0


def test_nan_bytes_that_no_valid_column_names_are_not_read() -> None:
    cache = CACHE.clone()
    KV_V4.views(cache, 8)[0][0, 0] = 0x7F
    indices = torch.where(INDICES == 0, -1, INDICES)
    out, lse = call(cache=cache, indices=indices)
    assert torch.equal(out, call(indices=indices)[0])
    assert out.isfinite().all() and lse.isfinite().all()


def test_entries_are_code_times_scale() -> None:
    """One entry alone: the output is that entry, exactly, because every stored value is a bfloat16 value."""
    out, _ = call(indices=INDICES[:, :1].contiguous())
    for row in range(3):
        assert torch.equal(out[row, 0].double(), ROWS[INDICES[row, 0].long()])


def test_a_row_is_the_same_alone_and_in_a_batch_of_other_lengths() -> None:
    queries = (2 * random(7, 4, 512, seed=5)).bfloat16()
    indices = torch.randint(-1, 32, (7, 40), generator=torch.Generator().manual_seed(6)).int()
    lengths = torch.tensor([1, 40, 13, 0, 22, 39, 7], dtype=torch.int32)
    sink = random(4, seed=7)
    together = call(q=queries, indices=indices, lengths=lengths, sink=sink)
    for row in range(7):
        at = slice(row, row + 1)
        alone = call(q=queries[at], indices=indices[at], lengths=lengths[at], sink=sink)
        assert torch.equal(alone[0], together[0][at])
        assert torch.equal(alone[1], together[1][at])


def test_nan_bytes_that_one_row_names_do_not_reach_the_other_rows() -> None:
    cache = CACHE.clone()
    KV_V4.views(cache, 8)[0][3, 7] = 0x7F
    out, lse = call(cache=cache)
    assert out[0].isnan().all() and lse[0].isnan().all()
    assert torch.equal(out[1:], call()[0][1:])


@pytest.mark.parametrize("layout", KV_LAYOUTS[1:])
def test_entries_of_every_layout_count_as_code_times_scale(layout: str) -> None:
    pages = page_layout(layout)
    cache = torch.zeros(4, pages.page_bytes(8), dtype=torch.uint8)
    pages.store(cache, torch.arange(32), random(32, 512, seed=5), 8)
    rows = pages.load(cache, torch.arange(32), 8).double()
    out, lse = call(cache=cache, layout=layout)
    for row, columns in enumerate(INDICES.tolist()):
        for head in range(2):
            expected, total = dense(QUERIES[row, head], rows[columns])
            assert torch.equal(out[row, head], expected.float().bfloat16())
            assert lse[row, head].item() == pytest.approx(total.item(), rel=1e-6)


@pytest.mark.parametrize(("layout", "extra_layout"), OTHER_EXTRA_LAYOUT.items())
def test_window_pages_of_v41_go_with_extra_pages_in_fp4(layout: str, extra_layout: str) -> None:
    caches, rows = [], []
    for name, seed in ((layout, 5), (extra_layout, 6)):
        pages = page_layout(name)
        caches.append(torch.zeros(4, pages.page_bytes(8), dtype=torch.uint8))
        pages.store(caches[-1], torch.arange(32), random(32, 512, seed=seed), 8)
        rows.append(pages.load(caches[-1], torch.arange(32), 8).double())
    extra_indices = torch.tensor([[1, 2], [30, 8], [5, -1]], dtype=torch.int32)
    got = call(
        cache=caches[0], layout=layout, extra_cache=caches[1], extra_layout=extra_layout,
        extra_indices=extra_indices, extra_page_size=8, sink=torch.tensor([0.5, 1.0]),
    )  # fmt: skip
    for row, columns in enumerate(([1, 2], [30, 8], [5])):
        check(got, row, 0, torch.cat([rows[0][INDICES[row].long()], rows[1][columns]]), 0.5)


def test_bytes_of_both_layouts_mean_what_their_formats_say() -> None:
    """3.0 is the e4m3 byte 0x44 at scale 1, 0.75 the fp4 code 7 (6.0) at the e4m3 scale 0x20 (0.125)."""
    cache = torch.tensor([[0x44] * 512 + [127] * 16 + [0] * 496], dtype=torch.uint8)
    extra = torch.tensor([[0x77] * 256 + [0x20] * 32 + [0] * 224], dtype=torch.uint8)
    first = torch.zeros(3, 1, dtype=torch.int32)
    pair = {"layout": "kv_v41", "extra_layout": "kv_v41_fp4", "extra_cache": extra, "extra_indices": first}
    sizes = {"page_size": 1, "extra_page_size": 1}
    out, lse = call(q=torch.zeros_like(QUERIES), cache=cache, indices=first, **pair, **sizes)
    assert out.unique().tolist() == [1.875]
    assert lse.unique().tolist() == [pytest.approx(0.69314718, rel=1e-7)]


def test_a_named_extra_layout_equal_to_the_main_one_changes_nothing() -> None:
    extra = {"extra_cache": EXTRA, "extra_indices": INDICES, "extra_page_size": 8}
    assert torch.equal(call(**extra)[0], call(**extra, extra_layout="kv_v4")[0])


@pytest.mark.parametrize(
    ("layout", "extra_layout", "wanted"),
    [
        ("kv_v4", "kv_v41", "kv_v4 beside"),
        ("kv_v41", "kv_v4", "kv_v41 or kv_v41_fp4 beside"),
        ("kv_v41", "kv_v41_fp4_new", "kv_v41 or kv_v41_fp4 beside"),
        ("kv_v41_fp4", "kv_v41", "kv_v41_fp4 beside"),
        ("kv_v41_new", "kv_v41_fp4", "kv_v41_new or kv_v41_fp4_new beside"),
    ],
)
def test_layouts_that_do_not_go_together_are_refused(layout: str, extra_layout: str, wanted: str) -> None:
    with pytest.raises(ContractError, match=f"wanted extra_layout {wanted} {layout}, got {extra_layout}"):
        call(layout=layout, extra_layout=extra_layout)


def test_an_extra_cache_without_indices_is_refused() -> None:
    with pytest.raises(ContractError, match="extra_cache and extra_indices together"):
        call(extra_cache=EXTRA)


def test_queries_of_another_width_are_refused() -> None:
    with pytest.raises(ContractError, match="wanted 512 lanes for layout kv_v4, got 256"):
        call(q=QUERIES[..., :256])


def test_every_small_case_runs_and_meets_its_golden_values() -> None:
    contract = get("sparse_mla_decode")
    for case in contract.cases("small", 0):
        outputs = dict(zip(("out", "lse"), contract.reference(**case.inputs), strict=True))
        assert outputs["out"].isfinite().all(), case.name
        for key, value in case.expected.items():
            assert torch.equal(outputs[key], value), case.name


def test_a_schedule_is_given_whole_and_changes_nothing() -> None:
    meta, splits = torch.zeros(4, 8, dtype=torch.int32), torch.zeros(4, dtype=torch.int32)
    get("mla_sched_meta").reference(torch.full((3,), 4, dtype=torch.int32), meta, splits)
    for mine, wanted in zip(call(sched_meta=meta, num_splits=splits), call(), strict=True):
        assert torch.equal(mine, wanted)
    for part in ({"sched_meta": meta}, {"num_splits": splits}):
        with pytest.raises(ContractError, match="wanted sched_meta and num_splits together"):
            call(**part)


def test_a_schedule_has_the_sizes_and_values_of_one_for_these_rows() -> None:
    inputs = {"q": QUERIES, "cache": CACHE, "indices": INDICES, "page_size": 8}
    meta, splits = torch.zeros(4, 8, dtype=torch.int32), torch.zeros(4, dtype=torch.int32)
    assert outside(get("sparse_mla_decode"), {**inputs, "sched_meta": meta, "num_splits": splits}) == ""
    for wrong, text in (
        ({"sched_meta": meta[:, :7].contiguous(), "num_splits": splits}, "sched_meta: wanted 8 in dimension 1, got 7"),
        ({"sched_meta": meta, "num_splits": splits[1:]}, "argument num_splits"),
        ({"sched_meta": meta, "num_splits": splits - 1}, "num_splits: wanted values 0 or more, got -1"),
    ):
        assert text in outside(get("sparse_mla_decode"), {**inputs, **wrong})


def test_the_cases_hand_over_the_schedules_of_their_lengths() -> None:
    contract = get("sparse_mla_decode")
    scheduled = [case.inputs for case in contract.cases("small", 3) if case.inputs.get("sched_meta") is not None]
    assert len(scheduled) == 7
    for inputs in scheduled:
        rows, meta = len(inputs["q"]), torch.empty_like(inputs["sched_meta"])
        splits = torch.empty(rows + 1, dtype=torch.int32)
        lengths, extra = inputs.get("lengths"), inputs.get("extra_indices")
        own = torch.full((rows,), inputs["indices"].shape[1]).int() if lengths is None else lengths
        get("mla_sched_meta").reference(
            own, meta, splits, inputs.get("extra_lengths"), 0 if extra is None else extra.shape[1]
        )
        assert torch.equal(meta, inputs["sched_meta"]) and torch.equal(splits, inputs["num_splits"])
