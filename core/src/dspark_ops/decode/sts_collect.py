"""Collect confidences and what became of the drafts in a run, for `fit_sts` (C1.9)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from dspark_ops._lazy import torch
from dspark_ops.decode.calibration import Calibration
from dspark_ops.decode.loop import generate
from dspark_ops.decode.model import Model
from dspark_ops.decode.options import DecodeOptions, Execution, VerifyMode
from dspark_ops.decode.policy import Scheduler
from dspark_ops.decode.request import Generation, Request
from dspark_ops.decode.sts_fit import fit_sts
from dspark_ops.errors import ModelError

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["Blocks", "fit_from_run"]

_SURE: Final = 1e-7
"""Confidences this close to 0 or 1 have no logit in float32; they count as this far away."""


class Blocks:
    """A verify policy that verifies every draft and keeps what the drafter said of it.

    It serves one run in steps that are packed, with its `emitted` told of the tokens.

    Attributes:
        logits: per block, the confidence logits of its drafts.
        accepted: per block, how many drafts were accepted.
        known: per block, the leading drafts whose outcome counts: those verified, up to an end-of-text token.
    """

    def __init__(self, eos: int) -> None:
        self.logits: list[list[float]] = []
        self.accepted: list[int] = []
        self.known: list[int] = []
        self._eos = eos
        self._asked: list[tuple[int, list[float]]] = []
        self._emitted: dict[int, tuple[int, ...]] = {}

    on_device = False  # it reads every step on the host

    def scheduler(self, ops: Any, gamma: int) -> Scheduler:
        """Return itself."""
        self._rows = gamma + 1
        return self

    def width(self, requests: int) -> int:
        """Return whole blocks."""
        return self._rows

    def verify_lens(self, confidence: Tensor, survival: Tensor, requests: Sequence[int]) -> Tensor:
        """Note the confidences; every draft is verified."""
        inside = confidence.double().clamp(_SURE, 1 - _SURE).tolist()
        logits = [[math.log(chance / (1 - chance)) for chance in row] for row in inside]
        self._asked = list(zip(requests, logits, strict=True))
        self._emitted = {}
        return torch.full((len(requests),), self._rows, dtype=torch.int32, device=survival.device)

    def emitted(self, request: int, tokens: tuple[int, ...]) -> None:
        """Note what a request has emitted in this step."""
        self._emitted[request] = tokens

    def observe(self, accept_lens: Sequence[int], verified: Sequence[int]) -> None:
        """Note what became of the drafts."""
        for (request, logits), length, rows in zip(self._asked, accept_lens, verified, strict=True):
            tokens = self._emitted.get(request, ())
            known = rows - 1
            if tokens and tokens[-1] == self._eos:
                known = min(known, len(tokens))
            self.logits.append(logits)
            self.accepted.append(length - 1)
            self.known.append(known)

    def forget(self, request: int) -> None:
        """Blocks belong to no request."""


def fit_from_run(
    model: Model, requests: Sequence[Request], options: DecodeOptions | None = None, dataset: str = ""
) -> tuple[Calibration, Generation]:
    """Return the temperatures that calibrate the drafter on these requests, and the run that they were fitted on.

    Args:
        model: target and drafter.
        requests: what to decode.
        options: how; every draft is verified, in packed steps, whatever they say.
        dataset: what the requests are, for the record.

    Raises:
        ModelError: the options have temperatures already (they would be fitted on top of each other), or no block was
            verified.

    Source: C1.9.1 to C1.9.4.
    """
    options = options or DecodeOptions()
    if options.calibration is not None:
        raise ModelError("confidence temperatures are fitted to confidences without any: leave the calibration out")
    blocks = Blocks(-1 if options.ignore_eos else model.config.eos)
    options = replace(options, policy=blocks, verify_mode=VerifyMode.COMPACT, execution=Execution.PACKED, forced=None)
    generation = generate(model, requests, options, on_tokens=blocks.emitted)
    if not blocks.logits:
        raise ModelError("no block was verified, so there is nothing to fit: ask for more than one token per request")
    return fit_sts(blocks.logits, blocks.accepted, blocks.known, dataset=dataset), generation
