"""Operators of the index that run inside a captured step: their references look at sizes, never at values."""

from __future__ import annotations

import pytest
import torch

from dspark_ops import contracts

CAPTURED = (
    "mla_sched_meta",
    "varctx_schedule",
    "index_scores",
    "paged_mqa_logits_fp4",
    "candidate_blocks",
    "candidate_lengths",
    "topk_rows",
    "filter_topk_pages",
    "finish_topk_pages",
)


def on_meta(inputs: dict) -> dict:
    return {name: value.to("meta") if isinstance(value, torch.Tensor) else value for name, value in inputs.items()}


@pytest.mark.parametrize("name", CAPTURED)
def test_nothing_is_read_back_to_the_host(name: str) -> None:
    # meta tensors have no values: reading one, or a result whose size depends on one, raises
    contract = contracts.get(name)
    cases = list(contract.cases("small", 0))
    for case in cases[len(cases) // 10 :: 1 + len(cases) // 6]:
        inputs = on_meta(case.inputs)
        returned = contract.reference(**inputs)
        made = returned if isinstance(returned, tuple) else (returned,)
        assert all(value is None or value.device.type == "meta" for value in made), case.name


def test_the_check_sees_a_reference_that_reads_a_value() -> None:
    with pytest.raises(RuntimeError):
        contracts.get("sparse_mla_decode").reference(
            **on_meta(next(contracts.get("sparse_mla_decode").cases("small", 0)).inputs)
        )
