"""Portable ``pack_topk_ids``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from dspark_ops_triton.blocks.cutting import Cut, cut_options, prepare_cut
from dspark_ops_triton.blocks.dependent_stages import begin_at
from dspark_ops_triton.blocks.expert_words import expert_word

#: A choice per thread.
CUT = Cut(items=128, warps=4)


@triton.jit(do_not_specialize=["count"], do_not_specialize_on_alignment=["ids", "weights"])
def pack_kernel(ids, weights, out, count, BLOCK: tl.constexpr, PDL: tl.constexpr):
    """Write BLOCK words."""
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = place < count
    begin_at((ids, weights, out, count), PDL)
    expert = tl.load(ids + place, mask=mask, other=0).to(tl.int32)
    tl.store(out + place, expert_word(expert, tl.load(weights + place, mask=mask, other=0.0)), mask=mask)


def pack_topk_ids(ids: Tensor, weights: Tensor) -> Tensor:
    """Return each expert id and its weight in one word: the id in the high 16 bits, the bfloat16 weight in the low.

    Args:
        ids: [M, K] int32 or int64, -32768 to 32767; not checked: one that does not fit loses its high bits.
        weights: [M, K] float32.

    Returns:
        [M, K] int32.

    Bytes moved: 12 per choice, 16 with int64 ids. Launches: 1, none for no choices.

    Source: N2, O06.
    """
    return _pack(CUT, ids, weights)


def _pack(cut: Cut, ids: Tensor, weights: Tensor) -> Tensor:
    out = torch.empty(ids.shape, dtype=torch.int32, device=ids.device)
    count = out.numel()
    if count:
        pack_kernel[(triton.cdiv(count, cut.items),)](
            ids, weights, out, count, **launch_constants(cut), **cut_options(cut)
        )
    return out


def launch_constants(cut: Cut) -> dict[str, Any]:
    """Return the compile-time arguments of a launch."""
    return {"BLOCK": cut.items, "PDL": cut.pdl}


def prepare_pack_topk_ids(device: Any, site: Any, rows: Sequence[int]) -> Callable[..., Tensor]:
    """Return `pack_topk_ids`, compiled for both dtypes of ids."""
    return prepare_cut(_pack, CUT, pack_topk_ids, _compile, device, site, rows)


def _compile(call: Callable[..., Any], site: Any, rows: Sequence[int]) -> None:
    ids = torch.zeros(1, 1, dtype=torch.int32, device="cuda")
    for typed in (ids, ids.long()):
        call(typed, torch.zeros(1, 1, device="cuda"))
