"""Cycles that run ahead of the host: it learns what a step gave while the next one is under way (C2.8)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dspark_ops._lazy import torch
from dspark_ops.decode.batch import Batch
from dspark_ops.decode.forced import ForcedLengths
from dspark_ops.decode.running import Running
from dspark_ops.decode.runtimes.runtime_set import RuntimeSet
from dspark_ops.decode.runtimes.steps import REPORT_COLUMNS

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["FoldedSteps"]


@dataclass(frozen=True, slots=True)
class _Launched:
    """A step that has been launched and whose report the host has not read."""

    running: tuple[Running, ...]
    gamma: int
    drawn: list[int]
    report: Tensor
    copied: Any


class FoldedSteps:
    """Folded cycles of one run. Anchors, positions and budgets stay on the device from step to step.

    Args:
        runtimes: of the run, prepared.
        batch: told what was emitted.
        late: launch a step before the report of the one before is read. A request that has ended then takes part in one
            step more, as padding.
        forced: lengths of a simulated run. With one length per step, a request that enters after another has ended
            may enter one step later if `late`, and has other lengths then.
    """

    def __init__(self, runtimes: RuntimeSet, batch: Batch, late: bool, forced: ForcedLengths | None = None) -> None:
        self._runtimes, self._batch, self._late, self._forced = runtimes, batch, late, forced
        self._rows: list[Running] = []
        self._launched: _Launched | None = None

    def step(self, running: Sequence[Running]) -> None:
        """Launch a cycle over `running`, and read what the one before gave (this one, if not `late`)."""
        self._arrange(running)
        count = len(self._rows)
        runtime = self._runtimes.choose(count)
        width = self._runtimes.width(runtime, count)
        drawn = self._stage()
        runtime.draft(count)
        report = runtime.fold(count, width)[:count]
        before, self._launched = self._launched, self._copied(report, runtime.shape.gamma, drawn)
        if not self._late:
            self.drain()
        elif before is not None:
            self._read(before)

    def drain(self) -> None:
        """Read what has been launched, waiting for it."""
        launched, self._launched = self._launched, None
        if launched is not None:
            self._read(launched)

    def leave(self) -> None:
        """Forget the rows: another way of stepping takes over, and the buffers are filled anew afterwards.

        What has been launched must have been read.
        """
        self._rows = []

    def _arrange(self, running: Sequence[Running]) -> None:
        """Let the rows be those of `running`: others are taken over by the last row, new ones come behind."""
        buffers = self._runtimes.buffers
        if not self._rows:
            buffers.pad_from(0)
        for row in reversed(range(len(self._rows))):
            if self._rows[row].finish is not None:
                last = self._rows.pop()
                buffers.move(len(self._rows), row)
                if row < len(self._rows):
                    self._rows[row] = last
        known = {item.index for item in self._rows}
        for item in running:
            if item.index not in known:
                self._enter(item)

    def _enter(self, item: Running) -> None:
        buffers, row = self._runtimes.buffers, len(self._rows)
        values = (item.slot, item.tokens[-1], item.start, True, item.budget)
        tensors = (buffers.slot, buffers.anchor, buffers.start, buffers.live, buffers.budget)
        for tensor, value in zip(tensors, values, strict=True):
            tensor[row].fill_(value)  # without waiting for the device, as an assignment would
        self._rows.append(item)

    def _stage(self) -> list[int]:
        """Draw the lengths of a simulated step, and put them where the step reads them, without waiting for it."""
        if self._forced is None:
            return []
        drawn = self._forced.draw([item.index for item in self._rows])
        place = self._runtimes.buffers.forced[: len(drawn)]
        place.copy_(torch.tensor(drawn, dtype=torch.int32, pin_memory=place.is_cuda), non_blocking=True)
        return drawn

    def _copied(self, report: Tensor, gamma: int, drawn: list[int]) -> _Launched:
        if not report.is_cuda:
            return _Launched(tuple(self._rows), gamma, drawn, report, None)
        held = torch.empty(report.shape, dtype=report.dtype, pin_memory=True)
        held.copy_(report, non_blocking=True)
        copied = torch.cuda.Event()
        copied.record()
        return _Launched(tuple(self._rows), gamma, drawn, held, copied)

    def _read(self, step: _Launched) -> None:
        if step.copied is not None:
            step.copied.synchronize()
        width = step.report.shape[1] - REPORT_COLUMNS
        rows = step.report.tolist()
        going = [item.finish is None for item in step.running]
        columns = [[row[width + column] for row in rows] for column in range(REPORT_COLUMNS)]
        lens, correct, counts, endings = columns
        emitted = self._batch.emit_cut(step.running, [row[:width] for row in rows], counts, endings)
        for item, was_going, verified, accepted, kept in zip(step.running, going, lens, correct, emitted, strict=True):
            if was_going and verified:
                item.metrics.step(step.gamma, verified, accepted, len(kept))
        told = [(accepted + 1, rows) for was, accepted, rows in zip(going, correct, lens, strict=True) if was]
        lengths = [length for length, _ in told]
        self._runtimes.observe(lengths, [rows for _, rows in told], step.gamma)
        if self._forced is not None:
            self._forced.note([length for was, length in zip(going, step.drawn, strict=True) if was], lengths)
