"""A request while it is being decoded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from dspark_ops._lazy import torch
from dspark_ops.decode.metrics import DecodeMetrics
from dspark_ops.decode.request import Finish, Request, Result, Timing
from dspark_ops.decode.stop_text import GrowingText
from dspark_ops.decode.stopping import Ending, cut_emitted

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["Running", "append_emitted", "emit_step"]


@dataclass(slots=True)
class Running:
    """A request that holds a slot.

    Attributes:
        index: its number in the caller's list.
        request: what was asked for.
        slot: its place in the caches.
        context: most tokens, prompt and emitted together.
        tokens: prompt and emitted tokens; the last one is the anchor, which the target has not seen (C10.1).
        finish: why it ended, None while it runs.
        metrics: its counts.
        text: its text, if something looks for stop strings in it.
        pages: shared pages of the caches that it owns.
        simulated: how many tokens its steps emit is drawn.
        submitted, first, last: when it was submitted and when its first and latest token came, by the host's clock.
    """

    index: int
    request: Request
    slot: int
    context: int
    tokens: list[int] = field(default_factory=list)
    finish: Finish | None = None
    metrics: DecodeMetrics = field(default_factory=DecodeMetrics)
    text: GrowingText | None = None
    pages: tuple[int, ...] = ()
    simulated: bool = False
    submitted: float = 0.0
    first: float = 0.0
    last: float = 0.0

    def __post_init__(self) -> None:
        if not self.tokens:
            self.tokens = list(self.request.prompt)

    @property
    def start(self) -> int:
        """Position of the anchor; everything below is committed."""
        return len(self.tokens) - 1

    @property
    def greedy(self) -> bool:
        """Whether the most likely token is taken at every position."""
        return self.request.sampling.greedy

    @property
    def emitted(self) -> int:
        """Tokens given to the caller so far."""
        return len(self.tokens) - len(self.request.prompt)

    @property
    def budget(self) -> int:
        """Tokens that may still be emitted."""
        return min(self.request.max_tokens - self.emitted, self.context - len(self.tokens))

    @property
    def room(self) -> int:
        """Drafts that fit into the context behind the anchor, so that no verify row stands beyond its end (C2.7.3)."""
        return self.context - 1 - self.start

    def note_time(self, now: float) -> None:
        """Note that tokens came at this moment."""
        self.first = self.first or now
        self.last = now

    def result(self) -> Result:
        """Return what it produced.

        Raises:
            ValueError: it has not ended.
        """
        if self.finish is None:
            raise ValueError(f"request {self.index} is still running")
        text = None
        if self.text is not None:
            self.text.finish()
            text = self.text.text
        timing = Timing(self.first - self.submitted, self.last - self.first) if self.first else Timing()
        emitted = tuple(self.tokens[len(self.request.prompt) :])
        return Result(emitted, self.finish, self.metrics, text, self.simulated, timing)


def emit_step(
    running: Sequence[Running], tokens: Tensor, commit_lens: Tensor, stop_ids: Tensor
) -> list[tuple[int, ...]]:
    """Append to each request what it emits of a step, mark those that end, and return what was appended (C2.7).

    Args:
        running: the requests, none of them ended.
        tokens: [R, W] int64, of which the first ``commit_lens`` [R] int32 are the step's.
        commit_lens: see `tokens`.
        stop_ids: [E] int64, tokens that end a request; they are emitted themselves.
    """
    budgets = torch.tensor([item.budget for item in running], device=tokens.device)
    counts, endings, _ = cut_emitted(tokens, commit_lens, budgets, stop_ids)
    return append_emitted(running, tokens.tolist(), counts.tolist(), endings.tolist())


def append_emitted(
    running: Sequence[Running], tokens: Sequence[Sequence[int]], counts: Sequence[int], endings: Sequence[int]
) -> list[tuple[int, ...]]:
    """Append to each request what it emits of a step that has been cut, mark those that end, and return what was added.

    Args:
        running: the requests; one that has ended emits nothing more.
        tokens: of each request, of which the first `counts` are emitted.
        counts: see `tokens`.
        endings: values of `Ending`.
    """
    emitted = []
    for item, row, count, ending in zip(running, tokens, counts, endings, strict=True):
        kept = () if item.finish else tuple(row[:count])
        if item.text is not None:
            kept = kept[: item.text.push(kept)]
        item.tokens += kept
        if item.finish is None and item.text is not None and item.text.stopped:
            item.finish = Finish.STOP
        elif item.finish is None and ending == Ending.STOP:
            item.finish = Finish.EOS
        elif item.finish is None and ending == Ending.LENGTH:
            item.finish = Finish.MAX_TOKENS if item.emitted >= item.request.max_tokens else Finish.CONTEXT
        emitted.append(kept)
    return emitted
