"""``dspark-ops tune``: time the kernels that may serve an operator here, for the next lock to choose by."""

from __future__ import annotations

from datetime import datetime, timezone
from pathlib import Path
from typing import Annotated

import typer

from dspark_ops.cli._options import (
    DEFAULT_MODEL,
    ConfigOption,
    JsonOption,
    ModelOption,
    RowsOption,
    WhichOption,
    chosen_rows,
    configured,
)
from dspark_ops.cli._show import console, print_json, table
from dspark_ops.errors import ConfigError
from dspark_ops.selection.codec import encode
from dspark_ops.selection.discovery import discover
from dspark_ops.selection.evidence import add_evidence
from dspark_ops.selection.fingerprint import fingerprint
from dspark_ops.selection.measured import Table, add_times
from dspark_ops.selection.probe import probe

OpOption = Annotated[list[str] | None, typer.Option("--op", metavar="NAME", help="Operator to time. Repeatable.")]
RoundsOption = Annotated[int, typer.Option("--rounds", help="Turns of each kernel; at least 5.")]
WriteOption = Annotated[
    Path | None, typer.Option("--write", metavar="FILE", help="The table. Default: files.measured, or measured.json.")
]

EvidenceOption = Annotated[
    Path | None, typer.Option("--evidence", metavar="FILE", help="Add a record of the run for each kernel to FILE.")
]

DEFAULT_TABLE = "measured.json"
_LEAST_ROUNDS = 5


def tune(
    op: OpOption = None,
    rows: RowsOption = "1,6,24,64",
    model: ModelOption = DEFAULT_MODEL,
    which: WhichOption = None,
    rounds: RoundsOption = 25,
    config: ConfigOption = None,
    write: WriteOption = None,
    evidence: EvidenceOption = None,
    as_json: JsonOption = False,
) -> None:
    """Time the kernels that may serve operators on this device.

    The table is keyed by the device's fingerprint and used by `dspark-ops plan --write` and `dspark-ops lock upgrade`
    where files.measured names it; a start never reads it. Exit code 1: a kernel is wrong or could not be timed.
    """
    from dspark_ops.bench.tune import METHODS, Tuning
    from dspark_ops.conformance.places import make_current

    if not op:
        raise ConfigError("tune: no operator is named: give --op NAME, once for each")
    if rounds < _LEAST_ROUNDS:
        raise ConfigError(f"--rounds {rounds}: wanted {_LEAST_ROUNDS} or more, else there are no deciles")
    settings = configured(config).settings
    device = probe(which)
    make_current(device)
    tuning = Tuning(device, model, settings, discover(settings), rounds, [])
    counts = chosen_rows(rows)
    times = tuple(time for name in op for time in tuning.times(name, counts))
    path = write or Path(settings.files.measured or DEFAULT_TABLE)
    mark = fingerprint(device)
    if times:
        date = datetime.now(timezone.utc).isoformat(timespec="seconds")
        try:
            add_times(path, mark, Table(date, METHODS[tuning.place], times))
            if evidence is not None:
                add_evidence(evidence, tuning.records(times, date))
        except OSError as error:
            raise ConfigError(f"--write {path}: the figures cannot be saved: {error.strerror}") from error
    if as_json:
        print_json({"fingerprint": mark, "table": str(path), "times": encode(times), "notes": tuning.notes})
    else:
        out = console()
        listed = [
            (
                time.operator,
                time.site,
                str(time.rows),
                time.kernel,
                *(f"{us:.2f}" for us in (time.us, time.low, time.high)),
            )
            for time in times
        ]
        columns = ("operator", "site", "#rows", "kernel", "#median us", "#p10", "#p90")
        out.print(mark, markup=False, soft_wrap=True)
        out.print(table("", columns, listed, whole=("kernel",)))
        for note in tuning.notes:
            out.print(note, markup=False, soft_wrap=True)
        out.print(f"saved to {path}" if times else "nothing to choose between was timed", markup=False)
    if any("not timed" in note or "no inputs" in note for note in tuning.notes):
        raise typer.Exit(1)
