"""How a batch is decoded."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from dspark_ops.decode.calibration import Calibration
from dspark_ops.decode.forced import ForcedAcceptance
from dspark_ops.decode.policy import StaticPolicy, VerifyPolicy
from dspark_ops.errors import ModelError

__all__ = ["DecodeOptions", "Execution", "RuntimeOptions", "VerifyMode"]


class Execution(str, Enum):
    """How the steps of a cycle are run."""

    PACKED = "packed"
    """Exactly the rows to verify, in other sizes at every step; nothing is captured."""
    STATIC = "static"
    """In sizes fixed ahead, over static buffers, without graphs: what `GRAPH` is on a CPU."""
    GRAPH = "graph"
    """As `STATIC`, each step captured in a graph on a GPU; accepting is outside."""
    FOLDED = "folded"
    """As `GRAPH`, with accept and commit as the tail of the verify step wherever a step allows it (C2.9)."""

    def captures(self, device: str) -> bool:
        """Return whether steps on a device, ``cpu`` or ``cuda`` with or without an index, are captured in graphs."""
        return self in (Execution.GRAPH, Execution.FOLDED) and device.startswith("cuda")


class VerifyMode(str, Enum):
    """What becomes of drafts that the policy leaves out (C1.11.1)."""

    COMPACT = "compact"
    """They are not run."""
    CAP_ACCEPT = "cap-accept"
    """They are run and not accepted: the same output, nothing saved, and it shows what whole blocks would accept."""


@dataclass(frozen=True, slots=True)
class RuntimeOptions:
    """Which runtimes a run has, for every execution but ``packed``.

    Attributes:
        sizes: numbers of requests that are prepared; empty takes powers of two up to the batch, and the batch.
        extra_widths: verify widths below the full one that are prepared beside it (A18).
        solo_gamma: drafts per block while a single request runs; 0 for the same as with more. At most 8.
        side_streams: on a GPU, write keys and values and compress beside the query's path (`low_ratio_prepare`).

    Raises:
        ModelError: a size or width that cannot be.
    """

    sizes: tuple[int, ...] = ()
    extra_widths: tuple[int, ...] = (2, 3)
    solo_gamma: int = 0
    side_streams: bool = False

    def __post_init__(self) -> None:
        if any(size < 1 for size in self.sizes):
            raise ModelError(f"runtime sizes are {list(self.sizes)}: wanted numbers of requests from 1")
        if any(width < 2 for width in self.extra_widths):
            raise ModelError(
                f"extra verify widths are {list(self.extra_widths)}: wanted 2 or more, the anchor included"
            )
        if self.solo_gamma < 0:
            raise ModelError(f"solo gamma is {self.solo_gamma}: wanted 0 (none) or drafts per block")

    def sizes_up_to(self, requests: int) -> tuple[int, ...]:
        """Return the prepared sizes of a run with at most `requests` at once, the last one that number or more."""
        if self.sizes:
            chosen = sorted(set(self.sizes))
            if chosen[-1] < requests:
                raise ModelError(
                    f"runtime sizes end at {chosen[-1]}, and up to {requests} requests run at once: add a size or "
                    "lower max_batch"
                )
            return tuple(chosen)
        powers = [1 << bit for bit in range(requests.bit_length()) if 1 << bit < requests]
        return (*powers, requests)


@dataclass(frozen=True, slots=True)
class DecodeOptions:
    """How a batch is decoded.

    Attributes:
        gamma: drafts per block; None takes the length the model was trained with. Plain decoding has none.
        policy: how many of the drafts each request verifies. Plain decoding has none.
        verify_mode: what becomes of drafts that the policy leaves out.
        calibration: temperatures of the drafter's confidences, one per draft of a block; None leaves them as they are.
        max_batch: most requests that run at once; others wait.
        cache_pages: pages of 128 positions of compressed cache entries that all requests share. A request enters when
            there are pages for its prompt and all tokens it may emit, and waits until then. 0: every one of `max_batch`
            requests has room for the whole context.
        ignore_eos: go on after the end-of-text token.
        check_invariants: check the loop's own rules after every cycle (C10.4), and every operator call against its
            contract, at some cost.
        execution: how the steps are run. Plain decoding is always packed.
        runtimes: which sizes are prepared, for an execution with runtimes.
        forced: draw how many tokens each verify step emits, whatever the target says; the output means nothing then.
        nvtx: mark prefill, draft, verify, accept and commit for a profiler.
    """

    gamma: int | None = None
    policy: VerifyPolicy = field(default_factory=StaticPolicy)
    verify_mode: VerifyMode = VerifyMode.COMPACT
    calibration: Calibration | None = None
    max_batch: int = 8
    cache_pages: int = 0
    ignore_eos: bool = False
    check_invariants: bool = False
    execution: Execution = Execution.PACKED
    runtimes: RuntimeOptions = field(default_factory=RuntimeOptions)
    forced: ForcedAcceptance | None = None
    nvtx: bool = False
