"""What a caller asks for and what comes back, as plain values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from dspark_ops.decode.metrics import DecodeMetrics
from dspark_ops.decode.sampling import SamplingParams

__all__ = ["Finish", "Generation", "Request", "Result", "Timing"]


@dataclass(frozen=True, slots=True)
class Request:
    """One prompt to continue.

    Attributes:
        prompt: token ids, at least one.
        max_tokens: most tokens to emit; the model's context may end earlier.
        sampling: temperature, top-k, top-p and seed. Equal seeds give equal tokens whatever else is in the batch, as
            long as the verify lengths do not depend on the batch (static and threshold policies).
        stop: texts that end the request; its text then stops before the first of them.
    """

    prompt: tuple[int, ...]
    max_tokens: int = 128
    sampling: SamplingParams = field(default_factory=SamplingParams)
    stop: tuple[str, ...] = ()


class Finish(str, Enum):
    """Why a request ended."""

    EOS = "eos"
    STOP = "stop"
    MAX_TOKENS = "max_tokens"
    CONTEXT = "context"
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds of one request, by the host's clock.

    Attributes:
        first: from being submitted to its first token, waiting included; 0 without a token.
        rest: from its first to its last token, with whatever else the batch did meanwhile.
    """

    first: float = 0.0
    rest: float = 0.0


@dataclass(frozen=True, slots=True)
class Result:
    """What one request produced.

    Attributes:
        tokens: emitted tokens, the end-of-text token included if it was reached, and the token in which a stop string
            was completed.
        finish: why it ended.
        metrics: its own counts; times are those of the whole batch.
        text: of a request with stop strings, the text of the tokens, cut before the first stop string; else None.
        simulated: how many tokens its steps emitted was drawn, so that its tokens mean nothing.
        timing: its own times; two results may be equal and differ in them.
    """

    tokens: tuple[int, ...]
    finish: Finish
    metrics: DecodeMetrics
    text: str | None = None
    simulated: bool = False
    timing: Timing = field(default=Timing(), compare=False)


@dataclass(frozen=True, slots=True)
class Generation:
    """What a batch of requests produced.

    Attributes:
        results: in the order of the requests.
        metrics: the counts of all of them.
        simulated: of a run whose accept lengths were drawn: the law, the realised mean and histogram, and what else is
            not as in a real run (C3.5); else None.
    """

    results: tuple[Result, ...]
    metrics: DecodeMetrics = field(default_factory=DecodeMetrics)
    simulated: Mapping[str, Any] | None = None
