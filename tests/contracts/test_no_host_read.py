"""References that may run inside a captured graph: they never ask the device for a value."""

from __future__ import annotations

from itertools import islice

import pytest
import torch

from dspark_ops.contracts import get

NAMES = [
    "accept_forced", "argmax_vocab_parallel", "argmax_vocab_parallel_local", "compress_c1", "compress_c2",
    "draft_inputs", "engram_gather", "expand_uniform", "fill_padded_topk", "index_k_store", "index_q_rope_fp4_pack",
    "index_scores", "k_norm_rope_store", "moe_gate_hash", "moe_gate_topk_packed", "moe_local_reduce", "moe_sort",
    "pack_topk_ids", "paged_mqa_logits_fp4", "q_rope_store", "rope_tail_fp4_fake_quant", "verify_inputs",
]  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_the_reference_runs_on_tensors_that_hold_no_values(name: str) -> None:
    # a tensor of the meta device has a shape and nothing to read: a hidden read raises
    contract = get(name)
    for case in islice(contract.cases("small", 0), 24):
        inputs = {
            key: value.to("meta") if isinstance(value, torch.Tensor) else value for key, value in case.inputs.items()
        }
        returned, wanted = contract.reference(**inputs), contract.reference(**_copies(case.inputs))
        pairs = zip(_as_tuple(returned), _as_tuple(wanted), strict=True)
        assert all(got.shape == value.shape and got.dtype == value.dtype for got, value in pairs), case.name


def test_reading_a_value_would_be_noticed() -> None:
    with pytest.raises((RuntimeError, NotImplementedError)):
        int(torch.zeros(1, device="meta"))


def _copies(inputs: dict) -> dict:
    return {key: value.clone() if isinstance(value, torch.Tensor) else value for key, value in inputs.items()}


def _as_tuple(value: object) -> tuple:
    values = value if isinstance(value, tuple) else (value,)
    return tuple(item for item in values if item is not None)  # an output that was not asked for is None
