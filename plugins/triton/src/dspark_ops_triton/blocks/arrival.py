"""The memory at which the programs of one launch meet, so that the last one can finish the work of all."""

from __future__ import annotations

import torch

#: int64 words per row. Two are used; four make one 32-byte sector, so that rows do not share one.
WORDS = 4
#: Captured calls for which words are set aside: 8 calls in the graphs of 64 widths. A further one zeroes its own in a
#: node of the graph.
CAPTURES = 512


class ArrivalState:
    """Words that are 0 at rest, never given to two launches that may run at the same time.

    The kernels put the words back to 0 themselves, so launches in one stream may follow each other on the same words.
    Two streams have different words. A captured launch keeps the words that it was captured with, and its graph may be
    replayed on any stream: it gets words that nothing else ever gets.
    """

    __slots__ = ("_captured", "_reserve", "_rows", "_streams")

    def __init__(self, rows: int, device: torch.device, captures: int = CAPTURES) -> None:
        self._rows = rows
        self._streams: dict[tuple[int, int], torch.Tensor] = {}
        captures = captures if device.type == "cuda" and rows else 0
        self._reserve = list(torch.zeros(captures, rows, WORDS, dtype=torch.int64, device=device).unbind(0))
        self._captured: list[torch.Tensor] = []

    def take(self, rows: int, like: torch.Tensor) -> torch.Tensor:
        """Return at least ``rows * WORDS`` int64 words for one launch on the current stream of the device of `like`."""
        if like.is_cuda and torch.cuda.is_current_stream_capturing():
            return self._take_for_graph(rows, like)
        stream = torch.cuda.current_stream(like.device).cuda_stream if like.is_cuda else 0
        key = (like.get_device(), stream)
        words = self._streams.get(key)
        if words is None or words.shape[0] < rows:
            # Stream order protects smaller words that a launch may still be using: they are freed on this stream.
            rows = max(rows, self._rows)
            words = self._streams[key] = torch.zeros(rows, WORDS, dtype=torch.int64, device=like.device)
        return words

    def _take_for_graph(self, rows: int, like: torch.Tensor) -> torch.Tensor:
        if rows <= self._rows and self._reserve:
            self._captured.append(self._reserve.pop())
            return self._captured[-1]
        # Nothing may be allocated outside the graph now: zeroing becomes a node of the graph, right but not free.
        return torch.zeros(rows, WORDS, dtype=torch.int64, device=like.device)
