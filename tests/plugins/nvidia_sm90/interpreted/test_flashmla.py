"""The decode through FlashMLA's interface: what that is handed, with a module in its place that gives the reference."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import pytest
import torch

from dspark_ops import contracts
from dspark_ops.binding.facts import facts_of
from dspark_ops.conformance.numbers import check_numbers
from dspark_ops_nvidia_sm90.flashmla import FlashMla
from dspark_ops_nvidia_sm90.plugin import KERNELS

CONTRACT = contracts.get("sparse_mla_decode")
PARTS = 12


@dataclass
class SchedMeta:
    """FlashMLA's holder of a schedule."""

    tile_scheduler_metadata: torch.Tensor | None = None
    num_splits: torch.Tensor | None = None


class Recorder:
    """Stands for FlashMLA's function: asserts what its kernel asks for, and answers with the reference."""

    def __init__(self) -> None:
        self.calls = 0
        self.schedules: list[Any] = []
        self.lengths: list[Any] = []

    def __call__(
        self, q: Any, k_cache: Any, block_table: Any, cache_seqlens: Any, head_dim_v: int, schedule: Any, *,
        softmax_scale: float, is_fp8_kvcache: bool, indices: Any, attn_sink: Any, extra_k_cache: Any,
        extra_indices_in_kvcache: Any, topk_length: Any, extra_topk_length: Any, use_legacy: bool,
    ) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
        self.calls += 1
        self.schedules.append(schedule)
        self.lengths.append((topk_length, extra_topk_length))
        rows = q.shape[0]
        assert q.shape[1:] == (1, 64, 512) and q.is_contiguous()
        assert (block_table, cache_seqlens, head_dim_v, is_fp8_kvcache, use_legacy) == (None, None, 512, True, True)
        arguments: dict[str, Any] = {"lengths": topk_length, "sink": attn_sink, "scale": softmax_scale}
        for prefix, pages, slots in (("", k_cache, indices), ("extra_", extra_k_cache, extra_indices_in_kvcache)):
            if pages is None:
                assert slots is None
                continue
            assert pages.shape[2:] == (1, 584) and pages.stride()[1:] == (584, 584, 1) and pages.stride(0) % 576 == 0
            assert slots.shape[1] == 1 and slots.shape[2] % 128 == 0
            assert (slots >= -1).all() and (slots < pages.shape[0] * pages.shape[1]).all(), "it checks no bounds"
            cache = pages.as_strided((pages.shape[0], pages.stride(0)), (pages.stride(0), 1))
            arguments |= {
                f"{prefix}cache": cache,
                f"{prefix}indices": slots[:, 0],
                f"{prefix}page_size": pages.shape[1],
            }
        arguments["extra_lengths"] = extra_topk_length
        meta, splits = torch.empty(PARTS, 8, dtype=torch.int32), torch.empty(rows + 1, dtype=torch.int32)
        topk = 0 if extra_k_cache is None else extra_indices_in_kvcache.shape[2]
        own = torch.full((rows,), indices.shape[2], dtype=torch.int32) if topk_length is None else topk_length
        contracts.get("mla_sched_meta").reference(own, meta, splits, extra_topk_length, topk)
        assert torch.equal(schedule.tile_scheduler_metadata, meta) and torch.equal(schedule.num_splits, splits)
        out, lse = CONTRACT.reference(q[:, 0], **arguments)
        return out[:, None], lse[:, :, None]


@pytest.fixture
def flashmla(monkeypatch: pytest.MonkeyPatch) -> Iterator[Recorder]:
    module, interface, recorder = ModuleType("flash_mla"), ModuleType("flash_mla.flash_mla_interface"), Recorder()
    module.flash_mla_with_kvcache = recorder
    interface.FlashMLASchedMeta = SchedMeta
    monkeypatch.setitem(sys.modules, "flash_mla", module)
    monkeypatch.setitem(sys.modules, "flash_mla.flash_mla_interface", interface)
    yield recorder


def _inside(inputs: dict[str, Any]) -> dict[str, Any] | None:
    facts = facts_of(CONTRACT, inputs)
    # It is right for few rows, too, if not the best choice.
    region = [constraint for constraint in KERNELS[0].region if "T" not in constraint.subjects()]
    return None if any(constraint.check(facts) for constraint in region) else inputs


def test_every_case_reaches_it_padded_masked_and_with_its_schedule(flashmla: Recorder) -> None:
    assert check_numbers(CONTRACT, FlashMla(PARTS), adapt=_inside) == []
    assert flashmla.calls > 20


def test_64_heads_are_passed_on_as_they_are(flashmla: Recorder) -> None:
    case = next(iter(CONTRACT.cases("small", 0))).inputs
    q = torch.randn(1, 64, 512, generator=torch.Generator().manual_seed(0)).bfloat16()
    got = FlashMla(PARTS)(**{**case, "q": q})
    for mine, wanted in zip(got, CONTRACT.reference(**{**case, "q": q}), strict=True):
        assert torch.equal(mine, wanted)


def test_a_schedule_that_is_handed_over_is_passed_on_and_one_of_other_parts_left_aside(flashmla: Recorder) -> None:
    case = next(case for case in CONTRACT.cases("small", 0) if "schedule of 12 parts" in case.name).inputs
    FlashMla(PARTS)(**case)
    assert flashmla.schedules[0].tile_scheduler_metadata is case["sched_meta"]
    assert flashmla.schedules[0].num_splits is case["num_splits"]
    FlashMla(PARTS)(**{**case, "sched_meta": torch.nn.functional.pad(case["sched_meta"], (0, 0, 0, 1))})
    assert flashmla.schedules[1].num_splits is not case["num_splits"]


def test_lengths_that_are_not_given_are_not_made_beside_a_schedule_where_no_column_is_added(flashmla: Recorder) -> None:
    case = next(case for case in CONTRACT.cases("small", 0) if "schedule of 12 parts, one cache" in case.name).inputs
    wide = case["indices"].repeat(1, 256 // case["indices"].shape[1])
    full = torch.full((len(wide),), 256, dtype=torch.int32)
    contracts.get("mla_sched_meta").reference(full, case["sched_meta"], case["num_splits"])
    FlashMla(PARTS)(**{**case, "indices": wide, "lengths": None})
    assert flashmla.lengths[-1] == (None, None)
    FlashMla(PARTS)(**{**case, "indices": wide, "lengths": None, "sched_meta": None, "num_splits": None})
    assert torch.equal(flashmla.lengths[-1][0], full)


def test_indices_wider_than_one_program_copies_are_all_copied(flashmla: Recorder) -> None:
    case = next(iter(CONTRACT.cases("small", 0))).inputs
    wide = torch.arange(1300, dtype=torch.int32)[None].remainder(40) - 4
    for given in ({}, {"extra_cache": case["cache"], "extra_indices": wide[:, :700], "extra_page_size": 16}):
        inputs = {**case, "indices": wide, **given}
        for mine, wanted in zip(FlashMla(PARTS)(**inputs), CONTRACT.reference(**inputs), strict=True):
            assert torch.allclose(mine.float(), wanted.float(), atol=1e-5)


@pytest.mark.usefixtures("flashmla")
def test_what_it_cannot_do_is_refused() -> None:
    case = next(iter(CONTRACT.cases("small", 0))).inputs
    bound = FlashMla(PARTS)
    with pytest.raises(ValueError, match="at most 64 heads"):
        bound(**{**case, "q": torch.zeros(1, 65, 512, dtype=torch.bfloat16)})
    with pytest.raises(ValueError, match="extra_cache and extra_indices together"):
        bound(**{**case, "extra_cache": case["cache"]})
    with pytest.raises(ValueError, match="sched_meta and num_splits together"):
        bound(**{**case, "num_splits": torch.zeros(2, dtype=torch.int32)})
