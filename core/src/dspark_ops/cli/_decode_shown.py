"""What the decode verb shows while it runs: the text of a single prompt as it grows, and how many prompts are done."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

if TYPE_CHECKING:
    from dspark_ops.cli._decode_run import Arguments
    from dspark_ops.decode import OnResult, OnTokens, Result
    from dspark_ops.decode.stop_text import GrowingText


@dataclass(frozen=True, slots=True)
class Shown:
    """What a run is to call.

    Attributes:
        tokens: whenever a prompt emits tokens, or None.
        result: when a prompt has ended, or None.
    """

    tokens: OnTokens | None = None
    result: OnResult | None = None


@contextmanager
def shown(arguments: Arguments, title: str, quiet: bool, text: bool) -> Iterator[Shown]:
    """Give what shows a run as it goes, and clean up behind it.

    A terminal gets a bar of finished prompts with the number of tokens beside it. The text is shown where there is a
    single prompt and `text` says so, with or without a terminal.

    Args:
        arguments: of the runs.
        title: of this run.
        quiet: show nothing.
        text: whether this run's text is the one to show.
    """
    streamed = text and len(arguments.texts) == 1
    screen = Console()
    if quiet:
        yield Shown()
    elif not screen.is_terminal:
        with _written(arguments, streamed) as show:
            yield show
    else:
        with _live(arguments, title, streamed, screen) as show:
            yield show


@contextmanager
def _written(arguments: Arguments, streamed: bool) -> Iterator[Shown]:
    if not streamed:
        yield Shown()
        return
    grown = _grown(arguments)
    sys.stdout.write(arguments.texts[0])

    def tokens(_: int, emitted: tuple[int, ...]) -> None:
        grown.push(emitted)
        sys.stdout.write(grown.take())
        sys.stdout.flush()

    yield Shown(tokens)
    sys.stdout.write(f"{grown.finish()}\n\n")


@contextmanager
def _live(arguments: Arguments, title: str, streamed: bool, screen: Console) -> Iterator[Shown]:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("prompts"))
    counts = TextColumn("{task.fields[tokens]} tokens")
    progress = Progress(*columns, counts, TimeElapsedColumn(), console=screen)
    task = progress.add_task(title, total=len(arguments.requests), tokens=0)
    grown, words = _grown(arguments), Text()
    parts: list[Any] = [progress]
    if streamed:
        words.append(arguments.texts[0], style="dim")
        parts.insert(0, words)

    def tokens(_: int, emitted: tuple[int, ...]) -> None:
        progress.update(task, tokens=progress.tasks[0].fields["tokens"] + len(emitted))
        if streamed:
            grown.push(emitted)
            words.append(grown.take())

    def result(_: int, ended: Result) -> None:
        progress.advance(task)

    with Live(Group(*parts), console=screen, refresh_per_second=12, vertical_overflow="visible"):
        yield Shown(tokens, result)
        if streamed:
            words.append(grown.finish())


def _grown(arguments: Arguments) -> GrowingText:
    """Return the empty text of the first prompt's output; what a stop string may cut is not shown."""
    from dspark_ops.decode.stop_text import GrowingText

    return GrowingText(arguments.model.text(), arguments.requests[0].stop)
