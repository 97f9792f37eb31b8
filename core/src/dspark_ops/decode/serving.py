"""Continuous batching: requests come, wait, run, are cancelled and end while others are being decoded."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import Any

from dspark_ops._lazy import torch
from dspark_ops.decode.admission import check_options, check_requests
from dspark_ops.decode.batch import Batch
from dspark_ops.decode.drafting import Drafter
from dspark_ops.decode.engine import Engine
from dspark_ops.decode.metrics import DecodeMetrics
from dspark_ops.decode.model import Model
from dspark_ops.decode.options import DecodeOptions
from dspark_ops.decode.ranks.agree import check_same_requests
from dspark_ops.decode.request import Request, Result
from dspark_ops.decode.stop_text import GrowingText

__all__ = ["Service", "ServiceLoad", "Update"]


@dataclass(frozen=True, slots=True)
class Update:
    """What a request has gained in a step.

    Attributes:
        number: of the request.
        tokens: emitted tokens; none if it was cancelled.
        text: text that is now certain: no later token and no stop string changes it. Empty for a model without a
            tokenizer.
        result: all of it, if the request has ended with this step.
    """

    number: int
    tokens: tuple[int, ...]
    text: str
    result: Result | None


@dataclass(frozen=True, slots=True)
class ServiceLoad:
    """How busy a service is.

    Attributes:
        running, waiting: requests.
        used_pages, pages: shared pages of the caches; 0 of 0 if every slot has its own whole context.
        short_of_pages: pages that the first waiting request lacks although there is a slot for it: it enters when
            others that run have given back so many. 0 if nobody waits for pages.
    """

    running: int
    waiting: int
    used_pages: int
    pages: int
    short_of_pages: int


class Service:
    r"""A running model that takes requests one by one.

    It has no thread of its own: `step` runs one cycle, and whoever owns the service decides when. Every greedy request
    gives the tokens that it would give alone, whatever runs beside it. On several ranks each has a service, and all of
    them submit, cancel and step alike.

        service = Service(model, DecodeOptions(max_batch=8))
        number = service.submit(Request(tokenizer.encode("def "), stop=("\n\n",)))
        while service:
            for update in service.step():
                ...

    Args:
        model: target and drafter.
        options: how to decode; ``max_batch`` requests run at once, and ``cache_pages`` bounds what they hold.
        drafter: proposes in place of the model's own drafter.

    Raises:
        ModelError: an option cannot be served.
    """

    def __init__(self, model: Model, options: DecodeOptions | None = None, drafter: Drafter | None = None) -> None:
        self._model, self._options = model, options or DecodeOptions()
        check_options(model, self._options)
        self._batch = Batch(model, (), self._options, self._emitted)
        self._next = 0
        self._tokens: dict[int, list[int]] = defaultdict(list)
        self._texts: dict[int, GrowingText] = {}
        self._ended = DecodeMetrics()
        with torch.inference_mode():
            self._engine = Engine(model, self._batch, self._options, drafter, greedy=False)

    def __bool__(self) -> bool:
        """Whether a step would do anything: something runs, waits, or was cancelled and not reported."""
        return bool(self._batch or self._batch.results)

    def submit(self, request: Request) -> int:
        """Let a request wait for its turn, and return its number.

        Raises:
            ModelError: it could never be served: an empty prompt, unknown tokens, no room in the context, or more pages
                than there are.
            RankError: another rank submits another request.
        """
        check_requests(self._model, [request], self._options)
        check_same_requests(self._model.ranks, [request], self._options)
        number, self._next = self._next, self._next + 1
        if self._model.tokenizer is not None:
            self._texts[number] = GrowingText(self._model.tokenizer, request.stop)
        self._batch.submit(number, request)
        return number

    def cancel(self, number: int) -> bool:
        """End a request that waits or runs; return False if it has ended or never was.

        Its place is free at once, and the next `step` reports its result with what it had emitted.
        """
        return self._engine.cancel(number)

    def step(self) -> list[Update]:
        """Let waiting requests enter, run one cycle, and return what each request has gained, by number.

        With ``execution=folded`` on a GPU the host learns of a step while the next one runs, so an update can be of the
        step before, and a request takes part in one step more than it emits.
        """
        if self._batch:
            self._engine.advance()
        results, self._batch.results = self._batch.results, {}
        updates = []
        for number in sorted({*self._tokens, *results}):
            tokens, result = tuple(self._tokens.pop(number, ())), results.get(number)
            updates.append(Update(number, tokens, self._text(number, tokens, result), result))
            if result is not None:
                self._ended = self._ended.merged(result.metrics)
        return updates

    def load(self) -> ServiceLoad:
        """Return how busy the service is."""
        pool = self._batch.pool
        pages = 0 if pool is None else len(pool)
        used = pages - (0 if pool is None else pool.free)
        return ServiceLoad(len(self._batch.running), self._batch.waiting, used, pages, self._batch.short_of_pages)

    def metrics(self) -> DecodeMetrics:
        """Return the counts of all requests so far, those that run included, and the times of the service."""
        total = self._engine.total.merged(self._ended)
        for item in self._batch.running:
            total = total.merged(item.metrics)
        return total

    def leaks(self) -> list[str]:
        """Return what is held for requests that are gone, one text each; empty is what is wanted.

        Raises:
            InvariantError: a page is lost or has two owners.
        """
        known = {item.index for item in self._batch.running}
        found = self._batch.leaks()
        gone = sorted(number for number in self._tokens if number not in known)
        waiting = self._batch.waiting
        if len(self._texts) > len(known) + waiting:
            found.append(f"{len(self._texts)} growing texts of {len(known) + waiting} requests")
        return found + [f"tokens of request {number} that were not given out" for number in gone]

    def simulated(self) -> dict[str, Any] | None:
        """Return what a service with drawn accept lengths must say of its results, or None for a real one (C3.5)."""
        return self._engine.simulated()

    def _emitted(self, number: int, tokens: tuple[int, ...]) -> None:
        self._tokens[number] += tokens

    def _text(self, number: int, tokens: tuple[int, ...], result: Result | None) -> str:
        grown = self._texts.get(number)
        if grown is None:
            return ""
        grown.push(tokens)
        new = grown.take()
        if result is not None:
            new += grown.finish()
            del self._texts[number]
        return new
