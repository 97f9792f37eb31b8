"""Plain decoding with the target alone, one row per request and step: the baseline for speed and for equal tokens."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

from dspark_ops._lazy import torch
from dspark_ops.decode.admission import check_requests, prefill
from dspark_ops.decode.batch import Batch, OnResult, OnTokens
from dspark_ops.decode.metrics import DecodeMetrics
from dspark_ops.decode.model import Model
from dspark_ops.decode.next_token import next_tokens
from dspark_ops.decode.options import DecodeOptions
from dspark_ops.decode.ranks.agree import check_same_requests
from dspark_ops.decode.request import Generation, Request
from dspark_ops.decode.v41.rows import Rows

__all__ = ["decode_plain"]


def decode_plain(
    model: Model,
    requests: Sequence[Request],
    options: DecodeOptions | None = None,
    on_tokens: OnTokens | None = None,
    on_result: OnResult | None = None,
) -> Generation:
    """Return what each request continues with, one token per forward, through the same caches and operators (C10.8).

    Args:
        model: only its target is used.
        requests: at least one.
        options: how to decode; what concerns drafts is not used.
        on_tokens: is called whenever a request emits a token.
        on_result: is called when a request has ended.

    Raises:
        ModelError: as `generate`.
    """
    options = replace(options or DecodeOptions(), forced=None)
    check_requests(model, requests, options)
    check_same_requests(model.ranks, requests, options)
    ops = model.ops(options.gamma).at(site="verify")
    batch = Batch(model, requests, options, on_tokens, on_result)
    state = model.state(batch.slots, options.cache_pages)
    total = DecodeMetrics()
    with torch.inference_mode():
        while batch:
            began = time.perf_counter()
            while admitted := batch.admit():
                _, _, first = prefill(model, ops, state, admitted)
                batch.emit_one(admitted, first)
                batch.retire()
            ready = time.perf_counter()
            total.prefill_seconds += ready - began
            if batch.running:
                rows = [(item.slot, item.start, item.tokens[-1]) for item in batch.running]
                logits = model.target.forward(ops, state, Rows.of(rows, model.torch_device)).logits
                batch.emit_one(batch.running, next_tokens(ops, logits, batch.running))
                for item in batch.running:
                    item.metrics.step(0, 1, 0, 1)
                batch.retire()
                total.forwards += 1
                total.seconds += time.perf_counter() - ready
    return batch.generation(total)
