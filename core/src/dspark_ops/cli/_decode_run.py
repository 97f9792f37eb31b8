"""The runs of the decode verb: with DSpark, plainly, or both, with text and progress as they go."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

if TYPE_CHECKING:
    from dspark_ops.decode import DecodeOptions, Generation, Model, Request
    from dspark_ops.decode.stop_text import GrowingText

Shower = Callable[[int, tuple[int, ...]], None]


@dataclass(frozen=True, slots=True)
class Arguments:
    """What is to be run.

    Attributes:
        model, texts, requests, options: what and how.
        speculative: run DSpark.
        plain: run plain decoding.
    """

    model: Model
    texts: list[str]
    requests: list[Request]
    options: DecodeOptions
    speculative: bool
    plain: bool


@dataclass(frozen=True, slots=True)
class DecodeRun:
    """What was run and what it gave; a run that was not asked for is None."""

    arguments: Arguments
    speculative: Generation | None
    plain: Generation | None

    @property
    def main(self) -> Generation:
        """The run that the caller asked for; its text is what is shown."""
        found = self.speculative or self.plain
        if found is None:
            raise ValueError("a run has at least one part")
        return found

    @property
    def greedy(self) -> bool:
        """Whether every request takes the most likely token."""
        return all(request.sampling.greedy for request in self.arguments.requests)

    @property
    def identical(self) -> bool | None:
        """Whether both runs gave the same tokens; None if they need not, being sampled, or were not both made."""
        if self.speculative is None or self.plain is None or not self.greedy:
            return None
        pairs = zip(self.speculative.results, self.plain.results, strict=True)
        return all(left.tokens == right.tokens for left, right in pairs)


def run_decode(arguments: Arguments, quiet: bool) -> DecodeRun:
    """Return the results of all runs.

    A terminal sees the text grow above a progress bar. Elsewhere the text of a single prompt is written as it comes,
    and there is no bar. `quiet` writes nothing.

    Raises:
        ModelError: a prompt or an option cannot be served; nothing has been written then.
    """
    from dspark_ops.decode import decode_plain, generate
    from dspark_ops.decode.admission import check_requests

    model, requests, options = arguments.model, arguments.requests, arguments.options
    check_requests(model, requests, options)
    speculative = plain = None
    simulated = options.forced is not None
    with right_numbers(model.plan(options.gamma, simulated=simulated).device.features):
        model.ops(options.gamma, simulated=simulated)
        if arguments.speculative:
            with _shown(arguments, "DSpark", quiet, text=True) as show:
                speculative = generate(model, requests, options, on_tokens=show)
        if arguments.plain:
            with _shown(arguments, "plain", quiet, text=speculative is None) as show:
                plain = decode_plain(model, requests, options, on_tokens=show)
    return DecodeRun(arguments, speculative, plain)


def right_numbers(features: Collection[str]) -> AbstractContextManager[None]:
    """Repair Triton's interpreter where it is what runs the kernels: as shipped it rounds and multiplies wrongly."""
    if "triton_interpreter" not in features:
        return nullcontext()
    from dspark_ops.conformance.interpreter import repaired_interpreter

    return repaired_interpreter()


@contextmanager
def _shown(arguments: Arguments, title: str, quiet: bool, text: bool) -> Iterator[Shower | None]:
    """Give a function that shows tokens, and clean up behind it."""
    streamed = text and len(arguments.texts) == 1
    if quiet:
        yield None
    elif not Console().is_terminal:
        with _written(arguments, streamed) as show:
            yield show
    else:
        with _live(arguments, title, streamed) as show:
            yield show


@contextmanager
def _written(arguments: Arguments, streamed: bool) -> Iterator[Shower | None]:
    if not streamed:
        yield None
        return
    grown = _grown(arguments)
    sys.stdout.write(arguments.texts[0])

    def show(_: int, tokens: tuple[int, ...]) -> None:
        grown.push(tokens)
        sys.stdout.write(grown.take())
        sys.stdout.flush()

    yield show
    sys.stdout.write(f"{grown.finish()}\n\n")


def _grown(arguments: Arguments) -> GrowingText:
    """Return the empty text of the first prompt's output; what a stop string may cut is not shown."""
    from dspark_ops.decode.stop_text import GrowingText

    return GrowingText(arguments.model.text(), arguments.requests[0].stop)


@contextmanager
def _live(arguments: Arguments, title: str, streamed: bool) -> Iterator[Shower]:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("tokens"))
    progress = Progress(*columns, TimeElapsedColumn())
    whole = sum(request.max_tokens for request in arguments.requests)
    task = progress.add_task(title, total=whole)
    grown, shown = _grown(arguments), Text()
    parts: list[Any] = [progress]
    if streamed:
        shown.append(arguments.texts[0], style="dim")
        parts.insert(0, shown)
    with Live(Group(*parts), refresh_per_second=12, vertical_overflow="visible"):

        def show(_: int, tokens: tuple[int, ...]) -> None:
            progress.advance(task, len(tokens))
            if streamed:
                grown.push(tokens)
                shown.append(grown.take())

        yield show
        progress.update(task, completed=whole)
        if streamed:
            shown.append(grown.finish())
