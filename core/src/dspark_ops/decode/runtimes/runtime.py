"""A runtime: the captured draft and verify steps of one block length."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dspark_ops._lazy import torch
from dspark_ops.decode.drafting import Proposal
from dspark_ops.decode.lanes import Lanes, SerialLanes
from dspark_ops.decode.model import Model
from dspark_ops.decode.policy import Scheduler
from dspark_ops.decode.runtimes.buffers import StepBuffers
from dspark_ops.decode.runtimes.replay import CaptureOps, Replay
from dspark_ops.decode.runtimes.steps import Verified, draft_step, fold_step, verify_step
from dspark_ops.decode.v41.geometry import MAX_STEP_ROWS
from dspark_ops.decode.v41.state import DecodeState
from dspark_ops.errors import CaptureError

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["Runtime", "RuntimeShape"]


@dataclass(frozen=True, slots=True)
class RuntimeShape:
    """What a runtime is made for.

    Attributes:
        gamma: drafts per block.
        widths: rows per request that a verify step may have, rising; the last one is ``gamma + 1``.
        sizes: numbers of requests that are captured, rising. A step of fewer is padded to the next one.
    """

    gamma: int
    widths: tuple[int, ...]
    sizes: tuple[int, ...]

    @property
    def rows(self) -> int:
        """Most rows of a verify step."""
        return self.sizes[-1] * self.widths[-1]

    def size_of(self, requests: int) -> int:
        """Return the captured number of requests that a step of `requests` is padded to.

        Raises:
            CaptureError: none is large enough.
        """
        for size in self.sizes:
            if size >= requests:
                return size
        raise CaptureError(
            f"a step of {requests} requests is not prepared with {self.gamma} drafts: prepared are "
            f"{', '.join(map(str, self.sizes))}; make the runtimes for more requests"
        )


class Runtime:
    """The steps of one block length over shared buffers and caches.

    Args:
        model: target and drafter.
        state: caches of the run.
        buffers: of the run, for as many requests and drafts as the shape has or more.
        shape: see there.
        scheduler: how many rows each request verifies; a folded step asks it on the device.
        temperatures: of the drafter's confidences, [gamma] float32, or None.
        stop_ids: [E] int64, tokens that end a request.
        captured: capture the steps in graphs; else they run as they are, through the same code.
        pool: memory pool of the graphs.
        check: hold every operator call against its contract; not inside graphs.
        lanes: run what comes before attention in each layer of a verify step.
        simulated: folded steps accept the lengths that were drawn.

    Raises:
        CaptureError: the buffers or a step's rows are too small for the shape.
    """

    def __init__(
        self,
        model: Model,
        state: DecodeState,
        buffers: StepBuffers,
        shape: RuntimeShape,
        scheduler: Scheduler,
        temperatures: Tensor | None,
        stop_ids: Tensor,
        captured: bool,
        pool: Any = None,
        check: bool = False,
        lanes: Lanes | None = None,
        simulated: bool = False,
    ) -> None:
        _check(shape, buffers)
        ops = model.ops(shape.gamma, check=check and not captured, simulated=simulated)
        guard: Callable[[Any], Any] = CaptureOps if captured else lambda view: view
        self.shape = shape
        self._model, self._state, self._buffers = model, state, buffers
        self._draft_ops, self._verify_ops = guard(ops.at(site="draft")), guard(ops.at(site="verify"))
        self._commit_ops = guard(ops.at(site="commit"))
        self._scheduler = scheduler
        self._temperatures, self._stop_ids = temperatures, stop_ids
        self._captured, self._pool = captured, pool
        self._simulated = simulated
        self._lanes = lanes or SerialLanes()
        self._drafts = {
            (size, sampled): self._replay(f"draft of {size}", lambda s=size, d=sampled: self._draft(s, d))
            for size in shape.sizes
            for sampled in (False, True)
        }
        places = [(size, width) for size in shape.sizes for width in shape.widths]
        self._verifies = {
            (size, width): self._replay(f"verify of {size} x {width}", lambda s=size, w=width: self._verify(s, w))
            for size, width in places
        }
        self._folds = {
            (size, width): self._replay(f"folded verify of {size} x {width}", lambda s=size, w=width: self._fold(s, w))
            for size, width in places
        }

    def prepare(self, sampled: bool = True, unfolded: bool = True, folded: bool = True) -> None:
        """Capture the steps that will be used.

        Args:
            sampled: drafts that are drawn.
            unfolded: verify steps whose accepting is done outside.
            folded: verify steps with accept and commit behind them, over greedy requests.

        Raises:
            CaptureError: a step cannot be captured.
        """
        for (_, drawn), replay in self._drafts.items():
            if sampled or not drawn:
                replay.prepare()
        for replays, wanted in ((self._verifies, unfolded), (self._folds, folded)):
            for step in replays.values() if wanted else ():
                step.prepare()

    def draft(self, requests: int, sampled: bool = False) -> Proposal:
        """Draft for the first `requests` rows of the buffers, and return what was proposed for them."""
        whole = self._drafts[self.shape.size_of(requests), sampled]()
        probs = None if whole.probs is None else whole.probs[:requests]
        return Proposal(whole.drafts[:requests], probs, whole.confidence[:requests], whole.survival[:requests])

    def verify(self, requests: int, width: int) -> Verified:
        """Run the target over `width` rows of the first `requests` rows of the buffers, padding included."""
        found: Verified = self._verifies[self.shape.size_of(requests), self._width(width)]()
        return found

    def fold(self, requests: int, width: int) -> Tensor:
        """Verify, accept and commit for the first `requests` rows; the buffers move on.

        Returns:
            The report of `fold_step`, [size, width + 4] int64, padding included.
        """
        report: Tensor = self._folds[self.shape.size_of(requests), self._width(width)]()
        return report

    def _width(self, width: int) -> int:
        if width not in self.shape.widths:
            raise CaptureError(
                f"a verify step of {width} rows per request is not prepared: prepared are "
                f"{', '.join(map(str, self.shape.widths))}"
            )
        return width

    def _replay(self, name: str, function: Any) -> Replay[Any]:
        return Replay(f"the {name} requests", function, self._captured, self._pool)

    def _draft(self, size: int, sampled: bool) -> Proposal:
        buffers = self._buffers.first(size)
        return draft_step(
            self._model, self._draft_ops, self._state, buffers, self.shape.gamma, sampled, self._temperatures
        )

    def _verify(self, size: int, width: int) -> Verified:
        return verify_step(self._model, self._verify_ops, self._state, self._buffers.first(size), width, self._lanes)

    def _fold(self, size: int, width: int) -> Tensor:
        buffers, gamma = self._buffers.first(size), self.shape.gamma
        confidence, survival = buffers.confidence[:, :gamma], buffers.survival[:, :gamma]
        lens = self._scheduler.verify_lens(confidence, survival, range(size))
        room = self._model.config.max_positions - buffers.start
        lens = torch.minimum(lens.clamp(max=width), room.to(lens.dtype))
        buffers.lens.copy_(torch.where(buffers.live, lens, 0))
        verified = self._verify(size, width)
        return fold_step(
            self._model, self._verify_ops, self._commit_ops, self._state, buffers, verified, self._stop_ids,
            self._simulated,
        )  # fmt: skip


def _check(shape: RuntimeShape, buffers: StepBuffers) -> None:
    held, drafts = buffers.drafts.shape
    if shape.sizes[-1] > held or shape.gamma > drafts:
        raise CaptureError(
            f"buffers hold {held} requests of {drafts} drafts, a runtime needs {shape.sizes[-1]} of {shape.gamma}: "
            "size them for the longest block of all runtimes"
        )
    if list(shape.widths) != sorted(set(shape.widths)) or shape.widths[-1] != shape.gamma + 1 or shape.widths[0] < 2:
        raise CaptureError(
            f"widths {list(shape.widths)} of a block of {shape.gamma}: wanted rising ones from 2 that end in "
            f"{shape.gamma + 1}"
        )
    if shape.sizes[-1] > MAX_STEP_ROWS:
        raise CaptureError(f"{shape.sizes[-1]} requests in one step: wanted at most {MAX_STEP_ROWS}")
