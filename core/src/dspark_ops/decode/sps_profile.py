"""Measure how many steps per second this model makes here, by the number of tokens of a step."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from dspark_ops._lazy import torch
from dspark_ops.decode.admission import check_options
from dspark_ops.decode.batch import Batch
from dspark_ops.decode.engine import Engine
from dspark_ops.decode.model import Model
from dspark_ops.decode.options import DecodeOptions, VerifyMode
from dspark_ops.decode.policy import StaticPolicy
from dspark_ops.decode.request import Request
from dspark_ops.decode.runtimes.runtime_set import NARROW_STEPS
from dspark_ops.decode.sps import MeasuredRates
from dspark_ops.errors import ConfigError, ModelError

__all__ = ["measure_rates", "write_rates"]

ROUNDS: Final = 3
"""The rate of a size is the median of so many rounds, each over requests of its own."""
WARM_STEPS: Final = 2
"""Steps of a round that are not timed; the first one prepares and compiles."""
MOST_STEPS: Final = NARROW_STEPS - WARM_STEPS
"""Steps of a round that are timed: later ones might be taken by the narrow runtime, with other rows."""


def measure_rates(
    model: Model,
    options: DecodeOptions | None = None,
    *,
    steps: int = MOST_STEPS,
    prompt: int = 32,
    on_point: Callable[[int, float], None] | None = None,
) -> MeasuredRates:
    """Return the rates of whole cycles: draft, verify, accept and commit, prefill left out.

    One request is measured at every number of rows, then more requests at whole blocks, in powers of two up to the
    batch. A round times `steps` cycles together, with the device waited for before and after them.

    Args:
        model: the model, on the device to measure.
        options: how steps are run; the policy, the verify mode and a solo block length are not used.
        steps: cycles that a round times, 1 to 6; fewer if the context is short.
        prompt: tokens of each prompt, drawn at random with a fixed seed.
        on_point: is called with each number of tokens and its rate.

    Raises:
        ModelError: an option cannot be served, the context has no room for three steps behind the prompt, or another
            number of steps.
    """
    options = options or DecodeOptions()
    # A block length of its own for one request would put other sizes into the table than the rows say.
    runtimes = replace(options.runtimes, solo_gamma=0)
    options = replace(
        options, verify_mode=VerifyMode.COMPACT, ignore_eos=True, cache_pages=0, forced=None, runtimes=runtimes
    )
    check_options(model, replace(options, policy=StaticPolicy()))
    width = (model.config.gamma if options.gamma is None else options.gamma) + 1
    fitting = (model.config.max_positions - prompt - 1) // width - WARM_STEPS
    if fitting < 1 or not 1 <= steps <= MOST_STEPS:
        raise ModelError(
            f"step rates with {prompt} prompt tokens and {steps} steps: wanted 1 to {MOST_STEPS} steps, and the "
            f"context of {model.config.max_positions} leaves room for {max(fitting, 0)}"
        )
    points = [(1, rows) for rows in range(1, width + 1)]
    sizes = options.runtimes.sizes_up_to(options.max_batch)
    points += [(requests, width) for requests in sizes if 1 < requests <= options.max_batch]
    rates = {}
    for requests, rows in points:
        one = replace(options, policy=StaticPolicy(rows), max_batch=requests)
        rounds = [_rate(model, one, requests, min(steps, fitting), prompt, seed) for seed in range(ROUNDS)]
        rates[requests * rows] = statistics.median(rounds)
        if on_point:
            on_point(requests * rows, rates[requests * rows])
    return MeasuredRates(tuple(sorted(rates)), tuple(rates[tokens] for tokens in sorted(rates)))


def write_rates(path: str | Path, rates: MeasuredRates, origin: dict[str, Any]) -> None:
    """Write measured rates in the form that `read_rates` and SGLang read, with what they were measured on.

    Args:
        path: the file; an existing one is replaced.
        rates: the rates.
        origin: machine, versions and method, kept under ``origin``, a key that is not part of the form.

    Raises:
        ConfigError: the file cannot be written.

    Source: C1.10.9a.
    """
    data = {
        "sample_batch_tokens": list(rates.tokens),
        "sample_steps_per_sec": list(rates.steps_per_second),
        "max_batch_tokens": rates.tokens[-1],
        "origin": origin,
    }
    try:
        Path(path).write_text(json.dumps(data, indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot write step rates to {path}: {error}") from error


def _rate(model: Model, options: DecodeOptions, requests: int, steps: int, prompt: int, seed: int) -> float:
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(0, model.config.vocab, (requests, prompt), generator=generator).tolist()
    batch = Batch(model, [Request(tuple(row), model.config.max_positions) for row in tokens], options, None)
    with torch.inference_mode():
        engine = Engine(model, batch, options, None, greedy=True)
        for _ in range(WARM_STEPS):
            engine.advance()
        _wait(model)
        began = time.perf_counter()
        for _ in range(steps):
            engine.advance()
        _wait(model)
        return steps / (time.perf_counter() - began)


def _wait(model: Model) -> None:
    if model.torch_device.startswith("cuda"):
        torch.cuda.synchronize()
