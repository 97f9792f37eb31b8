"""The requests of a run: those that wait, those that hold a slot, and the results of those that have ended."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from dspark_ops._lazy import torch
from dspark_ops.decode.admission import pages_needed
from dspark_ops.decode.metrics import DecodeMetrics
from dspark_ops.decode.model import Model
from dspark_ops.decode.options import DecodeOptions
from dspark_ops.decode.page_pool import PagePool
from dspark_ops.decode.request import Finish, Generation, Request, Result
from dspark_ops.decode.running import Running, append_emitted, emit_step
from dspark_ops.decode.stop_text import GrowingText

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["Batch", "OnResult", "OnTokens"]

OnTokens = Callable[[int, tuple[int, ...]], None]
"""Called with a request's number and the tokens it has just emitted."""
OnResult = Callable[[int, Result], None]
"""Called with a request's number and its result when it has ended."""


class Batch:
    """Book-keeping that plain and speculative decoding share.

    Requests enter in the order in which they came. One that finds no slot, or too few pages, waits, and those behind it
    wait with it, so that nobody waits for ever.

    Args:
        model: whose requests they are.
        requests: numbered from 0; with none, `submit` brings them.
        options: of the run.
        on_tokens: is called whenever a request emits tokens.
        on_result: is called when a request has ended.

    Attributes:
        slots: most requests that run at once.
        running: requests that hold a slot, in the order of their rows.
        stop_ids: [E] int64, tokens that end a request.
        pool: shared pages of the caches; without any, every slot has room for the whole context.
        results: of the requests that have ended, by number.
    """

    def __init__(
        self,
        model: Model,
        requests: Sequence[Request],
        options: DecodeOptions,
        on_tokens: OnTokens | None,
        on_result: OnResult | None = None,
    ) -> None:
        self.slots = min(options.max_batch, len(requests) or options.max_batch)
        self.running: list[Running] = []
        self._context = model.config.max_positions
        stops = [] if options.ignore_eos else [model.config.eos]
        self.stop_ids = torch.tensor(stops, dtype=torch.int64, device=model.torch_device)
        self.pool = PagePool(options.cache_pages) if options.cache_pages else None
        self.results: dict[int, Result] = {}
        self._model, self._options = model, options
        self._simulated = options.forced is not None
        self._on_tokens, self._on_result = on_tokens, on_result
        now = time.perf_counter()
        self._queue = deque((index, request, now) for index, request in enumerate(requests))
        self._free = list(range(self.slots))

    def __bool__(self) -> bool:
        return bool(self._queue or self.running)

    @property
    def waiting(self) -> int:
        """Requests that hold no slot yet."""
        return len(self._queue)

    @property
    def short_of_pages(self) -> int:
        """Shared pages that the first waiting request lacks; 0 if it waits for a slot, or nobody waits."""
        if not self._queue or not self._free or self.pool is None:
            return 0
        return max(pages_needed(self._model, self._queue[0][1], self._options) - self.pool.free, 0)

    def submit(self, index: int, request: Request) -> None:
        """Let a request wait for its turn; its number must be a new one."""
        self._queue.append((index, request, time.perf_counter()))

    def cancel(self, index: int) -> bool:
        """End a request that waits or runs, with what it has emitted so far; return whether there was one.

        One that runs keeps its slot until `retire`.
        """
        for item in self.running:
            if item.index == index and item.finish is None:
                item.finish = Finish.CANCELLED
                return True
        for entry in self._queue:
            if entry[0] == index:
                self._queue.remove(entry)
                text = "" if entry[1].stop else None
                self._end(index, Result((), Finish.CANCELLED, DecodeMetrics(), text, self._simulated))
                return True
        return False

    def admit(self) -> list[Running]:
        """Return waiting requests that find a slot and pages, each with them; they run from now on."""
        admitted = []
        while self._queue and self._free:
            index, request, submitted = self._queue[0]
            pages = self._pages(index, request)
            if pages is None:
                break
            self._queue.popleft()
            text = GrowingText(self._model.text(), request.stop) if request.stop else None
            item = Running(index, request, self._free.pop(0), self._context, text=text, pages=pages)
            item.simulated, item.submitted = self._simulated, submitted
            admitted.append(item)
        self.running += admitted
        return admitted

    def _pages(self, index: int, request: Request) -> tuple[int, ...] | None:
        if self.pool is None:
            return ()
        return self.pool.take(index, pages_needed(self._model, request, self._options))

    def emit_one(self, running: Sequence[Running], tokens: Tensor) -> None:
        """Emit one token [R] for each request."""
        self.emit(running, tokens.unsqueeze(1), torch.ones_like(tokens, dtype=torch.int32))

    def emit(self, running: Sequence[Running], tokens: Tensor, commit_lens: Tensor) -> list[tuple[int, ...]]:
        """Return what each request emits of a step's tokens [R, W]; they are appended and reported."""
        return self._reported(running, emit_step(running, tokens, commit_lens, self.stop_ids))

    def emit_cut(
        self,
        running: Sequence[Running],
        tokens: Sequence[Sequence[int]],
        counts: Sequence[int],
        endings: Sequence[int],
    ) -> list[tuple[int, ...]]:
        """Return what each request emits of a step that the device has cut already; see `append_emitted`."""
        return self._reported(running, append_emitted(running, tokens, counts, endings))

    def _reported(self, running: Sequence[Running], emitted: list[tuple[int, ...]]) -> list[tuple[int, ...]]:
        now = time.perf_counter()
        for item, kept in zip(running, emitted, strict=True):
            if kept:
                item.note_time(now)
                if self._on_tokens:
                    self._on_tokens(item.index, kept)
        return emitted

    def retire(self) -> list[Running]:
        """Return the requests that have ended; their slots and pages are free again."""
        ended = [item for item in self.running if item.finish]
        self.running = [item for item in self.running if not item.finish]
        for item in ended:
            self._free.append(item.slot)
            if self.pool is not None:
                self.pool.release(item.index)
            self._end(item.index, item.result())
        return ended

    def _end(self, index: int, result: Result) -> None:
        self.results[index] = result
        if self._on_result:
            self._on_result(index, result)

    def leaks(self) -> list[str]:
        """Return what is held by nobody who runs: slots and pages, one text each.

        Raises:
            InvariantError: a page is lost or has two owners.
        """
        used = sorted([*self._free, *(item.slot for item in self.running)])
        found = [] if used == list(range(self.slots)) else [f"of {self.slots} slots these are accounted for: {used}"]
        if self.pool is not None:
            self.pool.check()
            held = sum(len(item.pages) for item in self.running)
            if len(self.pool) - self.pool.free != held:
                found.append(f"{len(self.pool) - self.pool.free} pages are taken, and those who run hold {held}")
        return found

    def generation(self, total: DecodeMetrics, simulated: Mapping[str, Any] | None = None) -> Generation:
        """Return all results in the order of the requests.

        Args:
            total: what no request owns: times and forwards.
            simulated: see `Generation`.
        """
        results = tuple(self.results[index] for index in sorted(self.results))
        for result in results:
            total = total.merged(result.metrics)
        return Generation(results, total, simulated)
