"""How a batch is decoded."""

from __future__ import annotations

from dataclasses import dataclass, field

from dspark_ops.decode.policy import StaticPolicy, VerifyPolicy

__all__ = ["DecodeOptions"]


@dataclass(frozen=True, slots=True)
class DecodeOptions:
    """How a batch is decoded.

    Attributes:
        gamma: drafts per block; None takes the length the model was trained with. Plain decoding has none.
        policy: how many of the drafts each request verifies. Plain decoding has none.
        max_batch: most requests that run at once; others wait.
        ignore_eos: go on after the end-of-text token.
        check_invariants: check the loop's own rules after every cycle (C10.4), at some cost.
    """

    gamma: int | None = None
    policy: VerifyPolicy = field(default_factory=StaticPolicy)
    max_batch: int = 8
    ignore_eos: bool = False
    check_invariants: bool = False
