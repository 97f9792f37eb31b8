"""Requests on their way in: what is refused, and the prefill of those that get a slot."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from dspark_ops._lazy import torch
from dspark_ops.decode.model import Model
from dspark_ops.decode.next_token import next_tokens
from dspark_ops.decode.options import DecodeOptions, VerifyMode
from dspark_ops.decode.request import Request
from dspark_ops.decode.running import Running
from dspark_ops.decode.uniform_policy import UniformPolicy
from dspark_ops.decode.v41.geometry import MAX_STEP_ROWS, pages_for
from dspark_ops.decode.v41.rows import Rows
from dspark_ops.decode.v41.state import DecodeState
from dspark_ops.decode.verify_width import WidthConditions
from dspark_ops.errors import ModelError

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["check_options", "check_requests", "pages_needed", "prefill"]


def check_requests(model: Model, requests: Sequence[Request], options: DecodeOptions) -> None:
    """Return if every request and option can be served.

    Raises:
        ModelError: names the first request or option that cannot, with what was wanted and got.
    """
    if not requests:
        raise ModelError("no requests: wanted at least one prompt")
    check_options(model, options)
    for number, request in enumerate(requests):
        fault = _fault(model, request, options)
        if fault:
            raise ModelError(f"prompt {number + 1} of {len(requests)} {fault}")


def check_options(model: Model, options: DecodeOptions) -> None:
    """Return if every option can be served.

    Raises:
        ModelError: names the first that cannot, with what was wanted and got.
        ConfigError: widths or simulated lengths that blocks of this length do not have.
    """
    gamma = model.config.gamma if options.gamma is None else options.gamma
    if not 1 <= options.max_batch <= MAX_STEP_ROWS:
        raise ModelError(f"max_batch is {options.max_batch}: wanted 1 to {MAX_STEP_ROWS} requests at once")
    if isinstance(options.policy, UniformPolicy):
        mode = "static" if options.verify_mode is VerifyMode.COMPACT else options.verify_mode.value
        for reason in WidthConditions(verify_mode=mode, simulated_acceptance=options.forced is not None).refusals():
            raise ModelError(f"one verify width per step cannot be chosen: {reason}")
        options.policy.scheduler(None, gamma)
    if options.forced is not None:
        options.forced.start(gamma)
    if options.cache_pages < 0:
        raise ModelError(f"cache_pages is {options.cache_pages}: wanted a number of pages, or 0 for whole contexts")
    positions = gamma if options.calibration is None else len(options.calibration.temperatures)
    if positions != gamma:
        raise ModelError(f"calibration has {positions} temperatures: wanted {gamma}, one per draft of a block")


def pages_needed(model: Model, request: Request, options: DecodeOptions) -> int:
    """Return the shared pages that a request can touch: its prompt, what it may emit, and drafts behind that."""
    gamma = model.config.gamma if options.gamma is None else options.gamma
    drafts = max(gamma, options.runtimes.solo_gamma)
    return pages_for(min(len(request.prompt) + request.max_tokens + drafts, model.config.max_positions))


def _fault(model: Model, request: Request, options: DecodeOptions) -> str:
    config, length = model.config, len(request.prompt)
    unknown = [token for token in request.prompt if not 0 <= token < config.vocab]
    if not request.prompt:
        return "is empty: wanted at least one token"
    if length >= config.max_positions:
        return (
            f"has {length} tokens: wanted at most {config.max_positions - 1}, since the model's context "
            f"(max_position_embeddings) holds {config.max_positions} with the generated ones"
        )
    if unknown:
        return f"holds the tokens {unknown[:4]}: wanted ids from 0 to {config.vocab - 1}"
    if request.max_tokens < 1:
        return f"asks for {request.max_tokens} tokens: wanted 1 or more"
    if not all(request.stop):
        return "has an empty stop string: wanted at least one character"
    if request.stop and model.tokenizer is None:
        return "has stop strings, and the model has no tokenizer to find them with"
    needed = pages_needed(model, request, options)
    if options.cache_pages and needed > options.cache_pages:
        return (
            f"needs {needed} pages of the caches for {length} tokens and up to {request.max_tokens} more, and there "
            f"are {options.cache_pages}: raise cache_pages or ask for fewer tokens"
        )
    return ""


def prefill(model: Model, ops: Any, state: DecodeState, running: Sequence[Running]) -> tuple[Rows, Tensor, Tensor]:
    """Return the prompt rows of requests, run through the target, their features, and the tokens that follow (C10.2).

    Args:
        model: the model.
        ops: operators of the verify site.
        state: caches, written.
        running: requests that hold a slot and have emitted nothing.

    Returns:
        rows of all prompts, request by request; features [T, taps * hidden] bfloat16 of each row; first tokens, [R]
        int64.
    """
    prompts = [(item.slot, item.request.prompt) for item in running]
    for item in running:
        state.own(item.slot, item.pages)
    triples = [(slot, position, token) for slot, prompt in prompts for position, token in enumerate(prompt)]
    rows = Rows.of(triples, model.torch_device)
    last = torch.tensor([len(prompt) for _, prompt in prompts], device=model.torch_device).cumsum(0) - 1
    output = model.target.forward(ops, state, rows, logits_of=last)
    for item in running:
        item.metrics.prefill(len(item.request.prompt))
    return rows, output.features, next_tokens(ops, output.logits, running)
