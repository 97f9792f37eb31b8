"""Memory that the first launch of a call writes and a later one of the same call reads."""

from __future__ import annotations

import torch


class ScratchMemory:
    """float32 memory for calls on any number of streams, kept from call to call.

    Calls on one stream follow each other on the same memory. Two streams have different memory. A captured call gets
    memory of its graph's own pool, which nothing outside that graph uses and which the graph keeps.
    """

    __slots__ = ("_streams",)

    def __init__(self) -> None:
        self._streams: dict[tuple[int, int], torch.Tensor] = {}

    def take(self, count: int, like: torch.Tensor) -> torch.Tensor:
        """Return at least `count` float32 elements for one call on the current stream of the device of `like`."""
        if like.is_cuda and torch.cuda.is_current_stream_capturing():
            return torch.empty(count, dtype=torch.float32, device=like.device)
        stream = torch.cuda.current_stream(like.device).cuda_stream if like.is_cuda else 0
        key = (like.get_device(), stream)
        memory = self._streams.get(key)
        if memory is None or memory.numel() < count:
            # Stream order protects smaller memory that a call may still be using: it is freed on this stream.
            memory = self._streams[key] = torch.empty(count, dtype=torch.float32, device=like.device)
        return memory
