"""Self-checks of the decode loop (C10.4): each cycle may be checked against what the token lists say."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from dspark_ops.decode.running import Running
from dspark_ops.errors import InvariantError

if TYPE_CHECKING:
    from dspark_ops.decode.v41.rows import Rows

__all__ = ["Ledger"]


class Ledger:
    """Notes which tokens were fed and committed where, and compares them with the requests.

    Every method raises `InvariantError` when the loop breaks its own rules; a wrong answer of a kernel shows as a wrong
    token, not here.
    """

    def __init__(self) -> None:
        self._target: dict[int, list[int]] = {}
        self._draft: dict[int, int] = {}

    def admit(self, slots: Sequence[int]) -> None:
        """New requests take slots: nothing is committed in them."""
        self._target.update({slot: [] for slot in slots})
        self._draft.update(dict.fromkeys(slots, 0))

    def feed(self, rows: Rows) -> None:
        """Rows go into the target: each request's must continue what is committed, position by position."""
        rows = _live(rows)
        expected = {slot: len(tokens) for slot, tokens in self._target.items()}
        for slot, position in zip(rows.request.tolist(), rows.position.tolist(), strict=True):
            if position != expected[slot]:
                raise InvariantError(f"slot {slot} is fed position {position}, wanted {expected[slot]}: the next one")
            expected[slot] += 1

    def commit(self, rows: Rows) -> None:
        """Rows become valid, in the target's caches and in the drafter's context at once."""
        rows = _live(rows)
        self.feed(rows)
        for slot, token in zip(rows.request.tolist(), rows.token.tolist(), strict=True):
            self._target[slot].append(token)
            self._draft[slot] += 1

    def after_cycle(self, running: Sequence[Running], emitted: Sequence[Sequence[int]], gamma: int) -> None:
        """A cycle is over: lengths agree, what is committed is what the request says, the anchor is not among it."""
        for request, tokens in zip(running, emitted, strict=True):
            committed, start = self._target[request.slot], request.start
            if request.finish is None and (len(committed) != start or self._draft[request.slot] != start):
                raise InvariantError(
                    f"request {request.index}: {len(request.tokens)} tokens want {start} committed positions, "
                    f"the target has {len(committed)}, the drafter {self._draft[request.slot]}"
                )
            if committed[:start] != request.tokens[: len(committed[:start])]:
                raise InvariantError(f"request {request.index}: the target was fed other tokens than were emitted")
            if not 1 <= len(tokens) <= gamma + 1:
                raise InvariantError(
                    f"request {request.index}: a cycle gave {len(tokens)} tokens, wanted 1 to {gamma + 1}"
                )


def _live(rows: Rows) -> Rows:
    return rows if rows.live is None else rows.where(rows.live)
