"""Output: JSON for programs, tables for people. Errors go to stderr in `dspark_ops.cli.main`."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

#: Columns where the output is no terminal: tables in a log must not be folded to eighty.
LOG_WIDTH = 180


def console() -> Console:
    """Return the console that verbs print to."""
    measured = Console(highlight=False)
    return measured if measured.is_terminal else Console(highlight=False, width=LOG_WIDTH)


def print_json(value: Any) -> None:
    """Print a value as JSON with sorted keys."""
    typer.echo(json.dumps(value, indent=2, sort_keys=True))


def table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]], whole: Sequence[str] = ()) -> Table:
    """Return a table of plain texts.

    Args:
        title: shown above it.
        columns: their names; one that starts with ``#`` is aligned to the right.
        rows: one text per column.
        whole: columns whose texts stay on one line, so that they can be copied.
    """
    made = Table(title=title or None, title_justify="left", title_style="bold", header_style="bold", box=None)
    made.pad_edge = False
    for name in columns:
        right = name.startswith("#")
        made.add_column(
            name.lstrip("#"), justify="right" if right else "left", overflow="fold", no_wrap=name in whole or right
        )
    for row in rows:
        made.add_row(*map(escape, row))
    return made


def memory_text(count: int) -> str:
    """Return a number of bytes in GiB, or a dash for none."""
    return f"{count / 2**30:.0f} GiB" if count else "-"
