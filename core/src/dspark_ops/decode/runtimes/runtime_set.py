"""The runtimes of a run, and which one a step takes."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from dspark_ops._lazy import torch
from dspark_ops.decode.calibration import Calibration
from dspark_ops.decode.lanes import lanes_for
from dspark_ops.decode.model import Model
from dspark_ops.decode.options import DecodeOptions, VerifyMode
from dspark_ops.decode.policy import Scheduler
from dspark_ops.decode.ranks.ops import same_lengths
from dspark_ops.decode.runtimes.buffers import StepBuffers
from dspark_ops.decode.runtimes.runtime import Runtime, RuntimeShape
from dspark_ops.decode.v41.config import MAX_GAMMA
from dspark_ops.decode.v41.state import DecodeState
from dspark_ops.errors import ModelError

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["RuntimeSet", "solo_gamma"]

NARROW_FROM: Final = 8
"""Least requests of a step that the narrow runtime takes (A18)."""
NARROW_GAMMA: Final = 2
"""Drafts per block of the narrow runtime."""
NARROW_BELOW: Final = 2.3
"""It takes steps while the mean accept length of late is below this."""
NARROW_STEPS: Final = 8
"""So many steps are "of late"."""


class RuntimeSet:
    """Primary, solo and narrow runtimes over one set of buffers.

    The primary one has the run's own block length and, beside the full verify width, the extra ones. Where the options
    name a solo block length, a step of one request takes a runtime of its own. A step of eight requests or more takes
    a runtime of two drafts while fewer than 2.3 tokens per request and step have come out of the last eight steps.

    Args:
        model: target and drafter.
        state: caches of the run.
        options: of the run.
        requests: most requests that run at once.
        stop_ids: [E] int64, tokens that end a request.

    Attributes:
        buffers: shared by all runtimes, sized for the longest block and the most requests.
        primary: the runtime of the run's own block length.

    Raises:
        ModelError: a size or block length that cannot be.
        CaptureError: see `Runtime`.
    """

    def __init__(
        self, model: Model, state: DecodeState, options: DecodeOptions, requests: int, stop_ids: Tensor
    ) -> None:
        gamma = model.config.gamma if options.gamma is None else options.gamma
        sizes = options.runtimes.sizes_up_to(requests)
        shapes = [RuntimeShape(gamma, _widths(options, gamma), sizes)]
        solo = solo_gamma(options, gamma)
        if solo:
            shapes.append(RuntimeShape(solo, (solo + 1,), (1,)))
        if sizes[-1] >= NARROW_FROM and gamma > NARROW_GAMMA and not options.calibration:
            captured = tuple(size for size in sizes if size >= NARROW_FROM)
            shapes.append(RuntimeShape(NARROW_GAMMA, (NARROW_GAMMA + 1,), captured))
        self.buffers = StepBuffers.empty(sizes[-1], max(shape.gamma for shape in shapes), model.torch_device)
        self._captured = options.execution.captures(model.torch_device)
        pool = torch.cuda.graph_pool_handle() if self._captured else None
        lanes = lanes_for(model.torch_device, options.runtimes.side_streams)
        self._whole = options.verify_mode is VerifyMode.CAP_ACCEPT
        simulated = options.forced is not None
        self._schedulers: dict[int, Scheduler] = {}
        self._runtimes: dict[int, Runtime] = {}
        for shape in shapes:
            ops = model.ops(shape.gamma, simulated=simulated)
            scheduler = same_lengths(ops, options.policy.scheduler(ops.at(site="draft"), shape.gamma))
            self._schedulers[shape.gamma] = scheduler
            self._runtimes[shape.gamma] = Runtime(
                model, state, self.buffers, shape, scheduler,
                _temperatures(options.calibration, shape.gamma, model.torch_device), stop_ids, self._captured, pool,
                options.check_invariants, lanes, simulated,
            )  # fmt: skip
        self.primary = self._runtimes[gamma]
        self._solo, self._narrow = solo, NARROW_GAMMA if len(self._runtimes) > 1 + bool(solo) else 0
        self._late: deque[float] = deque(maxlen=NARROW_STEPS)

    @property
    def captured(self) -> bool:
        """Whether the steps are graphs."""
        return self._captured

    @property
    def rows(self) -> int:
        """Most rows of a step of any runtime, for sizing what the operators need."""
        return max(runtime.shape.rows for runtime in self._runtimes.values())

    def prepare(self, *, sampled: bool, unfolded: bool, folded: bool) -> None:
        """Capture what will be used; see `Runtime.prepare`. The buffers must hold padding only."""
        for runtime in self._runtimes.values():
            runtime.prepare(sampled=sampled, unfolded=unfolded, folded=folded)

    def choose(self, requests: int) -> Runtime:
        """Return the runtime of a step of `requests` requests; it follows from them and from what was observed."""
        if requests == 1 and self._solo:
            return self._runtimes[self._solo]
        low = len(self._late) == NARROW_STEPS and sum(self._late) / NARROW_STEPS < NARROW_BELOW
        if self._narrow and requests >= NARROW_FROM and low:
            return self._runtimes[self._narrow]
        return self.primary

    def observe(self, accept_lens: Sequence[int], verified: Sequence[int] = (), gamma: int = 0) -> None:
        """Note what came out of a step; a step that gave nothing is not one.

        Args:
            accept_lens: one per request, the final token included.
            verified: rows that each request verified.
            gamma: block length of the step, whose scheduler is told; 0 tells none.
        """
        if accept_lens:
            self._late.append(sum(accept_lens) / len(accept_lens))
            if gamma:
                self._schedulers[gamma].observe(accept_lens, verified)

    def scheduler(self, runtime: Runtime) -> Scheduler:
        """Return the scheduler of a runtime."""
        return self._schedulers[runtime.shape.gamma]

    def width(self, runtime: Runtime, requests: int) -> int:
        """Return the verify width of a step: the narrowest prepared one that the scheduler's answer fits in."""
        wanted = self.scheduler(runtime).width(requests)
        if self._whole:
            return runtime.shape.widths[-1]
        return next(width for width in runtime.shape.widths if width >= min(wanted, runtime.shape.widths[-1]))

    def forget(self, request: int) -> None:
        """Drop what the schedulers remember of a request that has ended."""
        for scheduler in self._schedulers.values():
            scheduler.forget(request)


def solo_gamma(options: DecodeOptions, gamma: int) -> int:
    """Return the block length of the solo runtime, or 0 if there is none.

    Raises:
        ModelError: it is too long, or the confidences are calibrated for another length.
    """
    solo = options.runtimes.solo_gamma
    if solo > MAX_GAMMA:
        raise ModelError(f"solo gamma is {solo}: wanted at most {MAX_GAMMA} drafts per block")
    if solo and solo != gamma and options.calibration:
        raise ModelError(
            f"solo gamma is {solo}, and the confidences are calibrated for blocks of {gamma}: drop one of the two"
        )
    return 0 if solo == gamma else solo


def _widths(options: DecodeOptions, gamma: int) -> tuple[int, ...]:
    return (*sorted({width for width in options.runtimes.extra_widths if width <= gamma}), gamma + 1)


def _temperatures(calibration: Calibration | None, gamma: int, device: str) -> Any:
    if calibration is None or len(calibration.temperatures) != gamma:
        return None
    return torch.tensor(calibration.temperatures, device=device)
