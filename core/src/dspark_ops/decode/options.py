"""How a batch is decoded."""

from __future__ import annotations

from dataclasses import dataclass, field

from dspark_ops.decode.calibration import Calibration
from dspark_ops.decode.policy import StaticPolicy, VerifyPolicy

__all__ = ["DecodeOptions"]


@dataclass(frozen=True, slots=True)
class DecodeOptions:
    """How a batch is decoded.

    Attributes:
        gamma: drafts per block; None takes the length the model was trained with. Plain decoding has none.
        policy: how many of the drafts each request verifies. Plain decoding has none.
        calibration: temperatures of the drafter's confidences, one per draft of a block; None leaves them as they are.
        max_batch: most requests that run at once; others wait.
        ignore_eos: go on after the end-of-text token.
        check_invariants: check the loop's own rules after every cycle (C10.4), and every operator call against its
            contract, at some cost.
    """

    gamma: int | None = None
    policy: VerifyPolicy = field(default_factory=StaticPolicy)
    calibration: Calibration | None = None
    max_batch: int = 8
    ignore_eos: bool = False
    check_invariants: bool = False
