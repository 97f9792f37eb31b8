"""``accept_tail`` for SM100 and SM103: from logits to tokens in one launch, rows cut as for `argmax_rows`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor

from dspark_ops_nvidia_sm10x.argmax import TILES
from dspark_ops_triton.blocks.dependent import has_pdl
from dspark_ops_triton.blocks.verify_tail import AcceptTail, prepare_tail, tail_once


def accept_tail(
    candidates: Tensor, logits: Tensor, prefix_lens: Tensor, verify_lens: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Return all that follows from the logits of a greedy verify step, see `AcceptTail`.

    Without `prepare_accept_tail`, a launch that zeroes 32 bytes per row comes before the kernel.

    Source: N11.2 to N11.4.
    """
    return tail_once(TILES, logits.device)(candidates, logits, prefix_lens, verify_lens)


def prepare_accept_tail(device: Any, site: Any, rows: Sequence[int]) -> AcceptTail:
    """Return `accept_tail` as one launch, set up early, compiled for the site's sizes, with its memory allocated."""
    return prepare_tail(replace(TILES, pdl=has_pdl(device)), device, site, rows)
