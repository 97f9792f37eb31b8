"""Waits of the host: how often a run stops until the device has caught up, counted in a run of its own (R4.14)."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Final

from dspark_ops._lazy import torch

__all__ = ["HostWaits"]

#: In torch's warnings: of an operation that waits, and of the mode that gives them.
_WAIT: Final = "synchronizing"
_MODE: Final = "Synchronization debug mode"


class HostWaits:
    """Counts waits while it is entered: values read from the device, copies to it or from it that block, events.

    torch says where an operation of its own waits; waits for an event and for the whole device are counted where they
    are asked for. What a library does behind torch's back is not seen.

    Attributes:
        count: waits so far.
    """

    def __init__(self) -> None:
        self.count = 0
        self._stack = ExitStack()

    def __enter__(self) -> HostWaits:
        self._stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("always", UserWarning)
        shown = warnings.showwarning

        def seen(message: Any, *where: Any, **named: Any) -> None:
            if _WAIT in str(message):
                self.count += 1
            elif _MODE not in str(message):
                shown(message, *where, **named)

        warnings.showwarning = seen
        self._stack.enter_context(_sync_warnings())
        for owner in (torch.cuda, torch.cuda.Event):
            self._stack.enter_context(self._counted(owner))
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @contextmanager
    def _counted(self, owner: Any) -> Iterator[None]:
        original = owner.synchronize

        def synchronize(*arguments: Any, **named: Any) -> Any:
            self.count += 1
            return original(*arguments, **named)

        owner.synchronize = synchronize
        try:
            yield
        finally:
            owner.synchronize = original


@contextmanager
def _sync_warnings() -> Iterator[None]:
    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("warn")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(before)
