"""Paged index logits: where each code and scale byte lies, which keys a row sees, and the numbers themselves."""

from __future__ import annotations

import pytest
import torch

from dspark_ops.contracts._paged_logits_cases import logits_inputs
from dspark_ops.contracts.index_layouts import INDEX_K_SPLIT
from dspark_ops.contracts.index_scores import index_scores
from dspark_ops.contracts.paged_logits import paged_mqa_logits_fp4, query_rows
from dspark_ops.contracts.varctx import varctx_schedule
from dspark_ops.errors import ContractError

INF = float("inf")
VALUES = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0]


def step(batch: int = 2, next_n: int = 3, heads: int = 32, longest: int = 150) -> dict:
    return logits_inputs(batch, next_n, heads, longest, torch.Generator().manual_seed(7))


def kv_rows(kv: torch.Tensor, kv_scale: torch.Tensor) -> torch.Tensor:
    return INDEX_K_SPLIT.load(kv.flatten(1), kv_scale.flatten(1), torch.arange(64 * len(kv)))


def lane(byte: int, odd: int, scale: int) -> float:
    return VALUES[byte >> 4 if odd else byte & 15] * 2.0 ** (scale - 127)


def test_every_key_byte_and_scale_lies_where_the_split_layout_says() -> None:
    inputs = step(batch=1, longest=70)
    kv, scales, rows = inputs["kv"], inputs["kv_scale"], kv_rows(inputs["kv"], inputs["kv_scale"])
    for page in range(2):
        for slot in (0, 1, 15, 16, 17, 31, 47, 48, 63):
            for d in (0, 1, 31, 32, 63, 64, 100, 127):
                group, byte = d // 32, d % 32 // 2
                scale = int(scales[page, 0, group, slot % 16 * 4 + slot // 16])
                assert rows[page * 64 + slot, d] == lane(int(kv[page, 0, group, slot, byte]), d % 2, scale)


@pytest.mark.parametrize("heads", [16, 32, 64, 80])
def test_every_query_byte_and_scale_lies_where_the_packing_says(heads: int) -> None:
    inputs = step(heads=heads, longest=3)
    q, scales, rows = inputs["q"], inputs["q_scale"], query_rows(inputs["q"], inputs["q_scale"])
    assert scales.shape[-1] == (8 if heads == 80 else 4)
    for head in (0, 1, 15, heads - 1):
        for d in (0, 1, 32, 65, 127):
            scale = int(scales[1, 2, 0, d // 32, head % 16, head // 16])
            assert rows[1, 2, head, d] == lane(int(q[1, 2, head, d // 2]), d % 2, scale)


def test_a_known_row_of_bytes_has_its_values() -> None:
    data = [0, 0, 161, 34, 195, 68, 229, 102, 247, 17, 51, 85, 6, 145, 202, 237]  # A1, rounding to even
    kv = torch.zeros(1, 1, 4, 64, 16, dtype=torch.uint8)
    kv[0, 0, 0, 0] = torch.tensor(data, dtype=torch.uint8)
    row = kv_rows(kv, torch.full((1, 1, 4, 64), 127, dtype=torch.uint8))[0, :32].tolist()
    assert row == [
        0, 0, 0, 0, 0.5, -1, 1, 1, 1.5, -2, 2, 2, 3, -4, 4, 4, 6, -6, 0.5, 0.5, 1.5, 1.5, 3, 3, 4, 0, 0.5, -0.5, -1, -2,
        -3, -4,
    ]  # fmt: skip


def test_logits_are_those_of_exact_arithmetic_and_rows_see_one_key_more_each() -> None:
    inputs = step()
    inputs["context_lens"] = torch.tensor([150, 66], dtype=torch.int32)
    logits = paged_mqa_logits_fp4(**inputs, weight_scale=0.5)
    queries, keys = query_rows(inputs["q"], inputs["q_scale"]).double(), kv_rows(inputs["kv"], inputs["kv_scale"])
    for request, context in enumerate((150, 66)):
        for n in range(3):
            row = request * 3 + n
            seen = context - 3 + n + 1
            for t in range(150):
                if t >= seen:
                    assert logits[row, t] == -INF
                    continue
                slot = int(inputs["block_tables"][request, t // 64]) * 64 + t % 64
                dots = (queries[request, n] * keys[slot].double()).sum(-1).relu()
                wanted = 0.5 * float((dots * inputs["weights"][row].double()).sum())
                assert float(logits[row, t]) == pytest.approx(wanted, rel=1e-6, abs=1e-5)


@pytest.mark.parametrize("context", [0, 1, 2, 3, 63, 64, 65])
def test_the_mask_is_exact_and_rows_without_a_position_see_nothing(context: int) -> None:
    inputs = step(batch=1, longest=70)
    inputs["context_lens"] = torch.tensor([context], dtype=torch.int32)
    seen = (paged_mqa_logits_fp4(**inputs) > -INF).sum(1).tolist()
    assert seen == [max(0, context - 2), max(0, context - 1), context]


def test_a_context_beyond_the_result_is_cut_and_the_work_list_changes_nothing() -> None:
    inputs = step()
    whole = paged_mqa_logits_fp4(**inputs)
    assert torch.equal(paged_mqa_logits_fp4(**{**inputs, "max_seq_len": 77}), whole[:, :77])
    _, work = varctx_schedule(inputs["context_lens"], 64, 12, 150, 3)
    assert torch.equal(paged_mqa_logits_fp4(**inputs, cta_info=work, block_k=64), whole)


def test_the_work_list_covers_every_key_that_a_row_sees() -> None:
    inputs = step(batch=3, next_n=2)
    inputs["context_lens"] = torch.tensor([150, 0, 64], dtype=torch.int32)
    _, work = varctx_schedule(inputs["context_lens"], 64, 10, 150, 2)
    covered = torch.zeros(6, 150, dtype=torch.bool)
    for row, start, count, context in work.tolist():
        covered[row, start * 64 : min((start + count) * 64, context)] = True
    assert not ((paged_mqa_logits_fp4(**inputs) > -INF) & ~covered).any()


def test_the_split_cache_and_the_68_byte_pages_give_the_same_scores() -> None:
    inputs = step(batch=4, next_n=1, longest=192)
    pages = len(inputs["kv"])
    payload = inputs["kv"][:, 0].transpose(1, 2).reshape(pages, 64 * 64)
    by_slot = inputs["kv_scale"][:, 0][:, :, [slot % 16 * 4 + slot // 16 for slot in range(64)]]
    cache = torch.cat([payload, by_slot.transpose(1, 2).reshape(pages, 64 * 4)], 1)
    scores = index_scores(
        query_rows(inputs["q"], inputs["q_scale"])[:, 0].bfloat16(), inputs["weights"], cache,
        inputs["block_tables"][:, :3].contiguous(), inputs["context_lens"], 64, "fp32",
    )  # fmt: skip
    assert torch.equal(scores, paged_mqa_logits_fp4(**inputs))


@pytest.mark.parametrize(
    ("name", "cut", "text"),
    [
        ("q", (slice(None), slice(None), slice(None), slice(0, 32)), r"wanted q \[2, 3, 32, 64\]"),
        ("q_scale", (slice(None), slice(0, 2)), r"wanted q_scale \[2, 3, 1, 4, 16, 4\]"),
        ("kv", (slice(None), slice(None), slice(None), slice(0, 32)), r"wanted kv \[6, 1, 4, 64, 16\]"),
        ("kv_scale", (slice(0, 3),), r"wanted kv_scale \[6, 1, 4, 64\]"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(name: str, cut: tuple, text: str) -> None:
    inputs = step()
    inputs[name] = inputs[name][cut]
    with pytest.raises(ContractError, match=text):
        paged_mqa_logits_fp4(**inputs)
