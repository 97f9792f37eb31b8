"""What other packages' functions are handed, with modules in their place that compute the references."""

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
from dspark_ops_nvidia_sm10x.flash_mla import FORMATS, FlashMla
from dspark_ops_nvidia_sm10x.flashinfer_mxfp8 import FlashInferMxfp8
from dspark_ops_nvidia_sm10x.kernels_adapters import KERNELS

DECODE = contracts.get("sparse_mla_decode")
PARTS = 12


@dataclass
class SchedMeta:
    """FlashMLA's holder of a schedule."""

    tile_scheduler_metadata: torch.Tensor | None = None
    num_splits: torch.Tensor | None = None


class Recorder:
    """Stands for FlashMLA's function: asserts what its kernels ask for, and answers with the reference."""

    def __init__(self) -> None:
        self.layouts: list[tuple[str, str | None]] = []
        self.schedules: list[Any] = []

    def __call__(
        self, q: Any, k_cache: Any, block_table: Any, cache_seqlens: Any, head_dim_v: int, schedule: Any, *,
        softmax_scale: float, is_fp8_kvcache: bool, indices: Any, attn_sink: Any, extra_k_cache: Any,
        extra_indices_in_kvcache: Any, topk_length: Any, extra_topk_length: Any, use_legacy: bool,
    ) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
        assert q.shape[1:] == (1, 64, 512) and q.is_contiguous()
        assert (block_table, cache_seqlens, head_dim_v, is_fp8_kvcache) == (None, None, 512, True)
        arguments: dict[str, Any] = {"lengths": topk_length, "sink": attn_sink, "scale": softmax_scale}
        names = {}
        for prefix, pages, slots in (("", k_cache, indices), ("extra_", extra_k_cache, extra_indices_in_kvcache)):
            if pages is None:
                assert slots is None
                continue
            token = pages.shape[3]
            names[prefix] = next(name for name, (size, _) in FORMATS.items() if size == token)
            assert pages.shape[2] == 1 and pages.stride()[1:] == (token, token, 1)
            assert slots.shape[1] == 1 and slots.shape[2] % 128 == 0
            assert (slots >= -1).all() and (slots < pages.shape[0] * pages.shape[1]).all(), "it checks no bounds"
            cache = pages.as_strided((pages.shape[0], pages.stride(0)), (pages.stride(0), 1))
            arguments |= {
                f"{prefix}cache": cache,
                f"{prefix}indices": slots[:, 0],
                f"{prefix}page_size": pages.shape[1],
            }
        assert use_legacy == FORMATS[names[""]][1]
        arguments |= {"extra_lengths": extra_topk_length, "layout": names[""], "extra_layout": names.get("extra_")}
        self.schedules.append(schedule)
        self.layouts.append((names[""], names.get("extra_")))
        meta, splits = torch.empty(PARTS, 8, dtype=torch.int32), torch.empty(q.shape[0] + 1, dtype=torch.int32)
        extra = {} if extra_k_cache is None else {"extra_lengths": extra_topk_length, "extra_topk": PARTS}
        contracts.get("mla_sched_meta").reference(topk_length, meta, splits, **extra)
        assert torch.equal(schedule.tile_scheduler_metadata, meta) and torch.equal(schedule.num_splits, splits)
        # Heads of padding hold whatever the memory held: the reference gets numbers in their place.
        out, lse = DECODE.reference(torch.nan_to_num(q[:, 0], 0.0, 0.0, 0.0), **arguments)
        return out[:, None], lse[:, :, None]


@pytest.fixture
def flashmla(monkeypatch: pytest.MonkeyPatch) -> Iterator[Recorder]:
    module, interface, recorder = ModuleType("flash_mla"), ModuleType("flash_mla.flash_mla_interface"), Recorder()
    module.flash_mla_with_kvcache = recorder
    interface.FlashMLASchedMeta = SchedMeta
    monkeypatch.setitem(sys.modules, "flash_mla", module)
    monkeypatch.setitem(sys.modules, "flash_mla.flash_mla_interface", interface)
    yield recorder


def inside(inputs: dict[str, Any]) -> dict[str, Any] | None:
    facts = facts_of(DECODE, inputs)
    region = next(kernel.region for kernel in KERNELS if kernel.op == DECODE.name)
    return None if any(constraint.check(facts) for constraint in region) else inputs


def test_every_case_reaches_flashmla_padded_masked_and_with_its_schedule(flashmla: Recorder) -> None:
    assert check_numbers(DECODE, FlashMla(PARTS), adapt=inside) == []
    assert set(flashmla.layouts) >= {("kv_v4", None), ("kv_v4", "kv_v4"), ("kv_v41_new", "kv_v41_fp4_new")}


def test_flashmla_is_passed_the_schedule_that_is_handed_over_unless_it_has_other_parts(flashmla: Recorder) -> None:
    case = next(case for case in DECODE.cases("small", 0) if "schedule of 12 parts" in case.name).inputs
    FlashMla(PARTS)(**case)
    assert flashmla.schedules[0].tile_scheduler_metadata is case["sched_meta"]
    assert flashmla.schedules[0].num_splits is case["num_splits"]
    FlashMla(PARTS)(**{**case, "sched_meta": torch.nn.functional.pad(case["sched_meta"], (0, 0, 0, 1))})
    assert flashmla.schedules[1].num_splits is not case["num_splits"]


@pytest.mark.usefixtures("flashmla")
def test_flashmla_refuses_what_it_cannot_do() -> None:
    case = next(iter(DECODE.cases("small", 0))).inputs
    bound = FlashMla(PARTS)
    with pytest.raises(ValueError, match="at most 64 heads"):
        bound(**{**case, "q": torch.zeros(1, 65, 512, dtype=torch.bfloat16)})
    with pytest.raises(ValueError, match="kv_v41_fp4_new"):
        bound(**{**case, "extra_layout": "kv_v41_fp4_new"})
    with pytest.raises(ValueError, match="sched_meta and num_splits together"):
        bound(**{**case, "num_splits": torch.zeros(2, dtype=torch.int32)})


def test_flashinfer_is_called_for_both_layouts_and_not_for_no_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    contract, module, swizzled = contracts.get("mxfp8_quantize"), ModuleType("flashinfer"), []

    def mxfp8_quantize(
        x: torch.Tensor, *, is_sf_swizzled_layout: bool, alignment: int, enable_pdl: bool, backend: str
    ) -> tuple[torch.Tensor, torch.Tensor]:
        assert (alignment, backend) == (32, "cuda") and x.shape[0]
        swizzled.append(is_sf_swizzled_layout)
        return contract.reference(x, "sf_128x4" if is_sf_swizzled_layout else "sf_linear")

    module.mxfp8_quantize = mxfp8_quantize
    monkeypatch.setitem(sys.modules, "flashinfer", module)
    assert check_numbers(contract, FlashInferMxfp8()) == []
    assert set(swizzled) == {True, False}
