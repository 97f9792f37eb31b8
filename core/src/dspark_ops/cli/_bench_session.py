"""Running a session on a terminal: progress with the time left, and files that an interruption cannot lose."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from dspark_ops.bench.comparison import Comparison
from dspark_ops.bench.design import Slot
from dspark_ops.bench.record import ArmRecord, Launch
from dspark_ops.bench.session import Session, machine_alone, run_session
from dspark_ops.cli._show import console
from dspark_ops.errors import ConfigError, MissingDependencyError

_FILES = ("A.json", "B.json", "report.json", "report.html")


def check_packages(page: bool) -> None:
    """Refuse what would need a package that is not installed, before it has taken an hour.

    Args:
        page: a page with plots is asked for.

    Raises:
        MissingDependencyError: one is missing.
    """
    missing = [name for name in ("scipy", *(["matplotlib"] if page else [])) if find_spec(name) is None]
    if missing:
        raise MissingDependencyError(
            f"this needs {' and '.join(missing)}, which is not installed: run  pip install 'dspark-ops[bench]'"
        )


@dataclass(frozen=True, slots=True)
class Output:
    """The folder for the results, or none."""

    folder: Path | None

    @classmethod
    def prepared(cls, folder: Path | None) -> Output:
        """Return the output for a folder, which is made; results that are there already are never overwritten.

        Raises:
            ConfigError: the folder holds results, or cannot be made.
        """
        if folder is not None:
            there = [name for name in _FILES if (folder / name).exists()]
            if there:
                raise ConfigError(f"--out {folder}: holds {', '.join(there)} already; name another folder")
            try:
                folder.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise ConfigError(f"--out {folder}: cannot be made: {error.strerror}") from None
        return cls(folder)

    def records(self, records: tuple[ArmRecord, ArmRecord]) -> None:
        """Write the records of both arms."""
        for name, record in zip(_FILES, records, strict=False):
            self._write(name, json.dumps(record.to_json(), indent=1) + "\n")

    def report(self, report: dict[str, Any], records: tuple[ArmRecord, ArmRecord], comparison: Comparison) -> None:
        """Write the report as JSON and as a page."""
        if self.folder is None:
            return
        from dspark_ops.bench.page import page

        self._write("report.json", json.dumps(report, indent=1) + "\n")
        self._write("report.html", page(comparison, *records))

    def say(self) -> None:
        """Print where the results are."""
        if self.folder is not None:
            console().print(f"\nwritten: {', '.join(str(self.folder / name) for name in _FILES)}", markup=False)

    def _write(self, name: str, text: str) -> None:
        if self.folder is not None:
            new = self.folder / f".{name}.new"
            new.write_text(text, encoding="utf-8")
            new.replace(self.folder / name)


def measured_launches(session: Session, output: Output, quiet: bool, allow_concurrent: bool) -> list[Launch]:
    """Return all launches of a session. After each, the records on disk hold all that was measured so far.

    Raises:
        EvidenceError: the first launch of an arm failed, or another bench runs on this machine.
    """
    launches: list[Launch] = []
    with machine_alone(allow_concurrent), _progress(len(session.slots), quiet) as progress:
        for launch in run_session(session, progress):
            launches.append(launch)
            output.records(session.records(launches))
    return launches


@contextmanager
def _progress(total: int, quiet: bool) -> Iterator[Callable[[Slot, Launch | None], None]]:
    # Progress is for people and goes to stderr, so that --json stays clean.
    screen = Console(stderr=True, highlight=False)
    if quiet or not screen.is_terminal:
        yield _Lines(total, quiet)
        return
    columns: list[ProgressColumn] = [TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn()]
    columns += [TextColumn("launches"), TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn()]
    # A launch takes longer than the window in which rich looks for finished steps.
    with Progress(*columns, console=screen, speed_estimate_period=float("inf")) as bar:
        task = bar.add_task("", total=total)

        def show(slot: Slot, launch: Launch | None) -> None:
            bar.update(task, description=f"arm {slot.arm.value}")
            if launch is not None:
                bar.advance(task)
                bar.console.print(_line(slot, launch), markup=False)

        yield show


class _Lines:
    """One line per launch, where there is no terminal."""

    def __init__(self, total: int, quiet: bool) -> None:
        self._total = total
        self._quiet = quiet
        self._began = time.monotonic()

    def __call__(self, slot: Slot, launch: Launch | None) -> None:
        if launch is None or self._quiet:
            return
        done = slot.number + 1
        left = (time.monotonic() - self._began) / done * (self._total - done)
        sys.stderr.write(f"[{done}/{self._total}] {_line(slot, launch)}; about {left:.0f} s left\n")


def _line(slot: Slot, launch: Launch) -> str:
    found = f"{launch.measurement.cycle:.1f} us per cycle" if launch.measurement else f"failed: {launch.error}"
    kind = "control" if slot.control else "pair"
    return f"arm {slot.arm.value} ({kind} {slot.pair}): {found}, {launch.seconds:.1f} s"
