"""Decoding a list of requests with DSpark, from the first prompt to the last token."""

from __future__ import annotations

from collections.abc import Sequence

from dspark_ops._lazy import torch
from dspark_ops.decode.admission import check_requests
from dspark_ops.decode.batch import Batch, OnResult, OnTokens
from dspark_ops.decode.drafting import Drafter
from dspark_ops.decode.engine import Engine
from dspark_ops.decode.model import Model
from dspark_ops.decode.options import DecodeOptions
from dspark_ops.decode.ranks.agree import check_same_requests
from dspark_ops.decode.request import Generation, Request

__all__ = ["generate"]


def generate(
    model: Model,
    requests: Sequence[Request],
    options: DecodeOptions | None = None,
    drafter: Drafter | None = None,
    on_tokens: OnTokens | None = None,
    on_result: OnResult | None = None,
) -> Generation:
    """Return what each request continues with, decoded with DSpark.

    Greedy requests give exactly the tokens of `decode_plain`; sampled ones have exactly its law.

    Args:
        model: target and drafter.
        requests: at least one; those beyond ``options.max_batch`` wait until another ends.
        options: how to decode.
        drafter: proposes in place of the model's own drafter.
        on_tokens: is called whenever a request emits tokens.
        on_result: is called when a request has ended.

    Raises:
        ModelError: a prompt is empty, has unknown tokens or does not fit into the context, or an option is out of
            range.
    """
    options = options or DecodeOptions()
    check_requests(model, requests, options)
    check_same_requests(model.ranks, requests, options)
    with torch.inference_mode():
        batch = Batch(model, requests, options, on_tokens, on_result)
        greedy = all(request.sampling.greedy for request in requests)
        engine = Engine(model, batch, options, drafter, greedy=greedy)
        while batch:
            engine.advance()
        return batch.generation(engine.total, engine.simulated())
