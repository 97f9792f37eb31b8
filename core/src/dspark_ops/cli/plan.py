"""``dspark-ops plan``: one kernel per operator, place and row counts, for a device and a model."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from dspark_ops.api.reason import ReasonCode
from dspark_ops.cli._lock import differences_json, planned_for_lock, show_differences, written_lock
from dspark_ops.cli._options import (
    DEFAULT_MODEL,
    DEFAULT_ROWS,
    ConfigOption,
    DeviceOption,
    JsonOption,
    ModelOption,
    RowsOption,
    WhichOption,
)
from dspark_ops.cli._plan import made_plan
from dspark_ops.cli._plan_streams import show_streams
from dspark_ops.cli._show import console, print_json, table
from dspark_ops.errors import ConfigError, LockError
from dspark_ops.selection.explain import device_text
from dspark_ops.selection.lock import lock_of, read_lock
from dspark_ops.selection.lock_check import Kind, differences, plan_differences
from dspark_ops.selection.plan import Choice, Plan, Selection

_OTHER_HARDWARE = (ReasonCode.DEVICE_VENDOR, ReasonCode.DEVICE_ARCH)

FileArgument = Annotated[
    Path | None,
    typer.Argument(metavar="[FILE]", help="The lock file for --write or --check. Default: the configured one."),
]
WriteOption = Annotated[bool, typer.Option("--write", help="Write the lock file; choices that still hold are kept.")]
CheckOption = Annotated[bool, typer.Option("--check", help="Compare with the lock file; exit 1 with a diff.")]
DiffOption = Annotated[
    Path | None, typer.Option("--diff", metavar="OTHER", help="Compare with another lock file; exit 1 with a diff.")
]
StreamsOption = Annotated[
    bool, typer.Option("--streams", help="Show which lane a layer of low compress ratio issues what on, instead.")
]
PlotOption = Annotated[Path | None, typer.Option("--plot", metavar="FILE", help="Draw what --streams shows.")]


def plan(
    file: FileArgument = None,
    device: DeviceOption = None,
    which: WhichOption = None,
    model: ModelOption = DEFAULT_MODEL,
    rows: RowsOption = DEFAULT_ROWS,
    config: ConfigOption = None,
    write: WriteOption = False,
    check: CheckOption = False,
    diff: DiffOption = None,
    streams: StreamsOption = False,
    plot: PlotOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show which kernel serves each operator.

    Exit code 1 means a finding: an operator is served by a weaker class than required while policy.fallback is "warn",
    a plugin did not load, no kernel may serve an operator, or a lock file differs.
    """
    if plot is not None and not streams:
        raise ConfigError(f"--plot {plot}: only --streams is drawn; give both")
    if streams:
        show_streams(plot, as_json)
        return
    if write + check + (diff is not None) > 1:
        raise ConfigError("--write, --check and --diff are three different things to do: give one of them")
    if file is not None and not (write or check):
        raise ConfigError(f"{file}: a lock file is named, but nothing to do with it: give --write or --check")
    if write or check:
        _locked(write, device=device, which=which, model=model, rows=rows, config=config, file=file, as_json=as_json)
        return
    made, findings = made_plan(device=device, which=which, model=model, rows=rows, config=config)
    if diff is not None:
        _compared(made, diff, as_json)
        return
    if as_json:
        print_json({"digest": made.digest, "findings": findings, "plan": json.loads(made.to_json())})
    else:
        _print(made)
    if findings:
        raise typer.Exit(1)


def _locked(write: bool, *, as_json: bool, **options: Any) -> None:
    """Write the lock file, or compare it with what would run here."""
    result, path, findings = planned_for_lock(**options)
    if write:
        lock, found = written_lock(result, path)
    else:
        if result.lock is None:
            raise LockError(f"there is no lock file {path} to check: run  dspark-ops plan --write")
        lock, found = result.lock, plan_differences(result.lock, result.plan, whole=True)
    if as_json:
        print_json(
            {"lock": str(path), "digest": lock.digest, "findings": findings, "differences": differences_json(found)}
        )
    elif write:
        _print(result.plan)
        if found:
            show_differences(f"changed in {path}", found, ("before", "now"))
        console().print(f"saved to {path}", markup=False)
    elif found:
        show_differences(f"{path} and what would run here", found)
    else:
        console().print(f"{path} describes what would run here", markup=False)
    if findings or (not write and any(item.kind is not Kind.UNKNOWN for item in found)):
        raise typer.Exit(1)


def _compared(made: Plan, other: Path, as_json: bool) -> None:
    try:
        lock = read_lock(other)
    except FileNotFoundError:
        raise ConfigError(f"--diff {other}: there is no such file") from None
    found = differences(lock, lock_of(made), whole=True)
    if as_json:
        print_json({"other": str(other), "differences": differences_json(found)})
    elif found:
        show_differences(f"{other} and what would run here", found, (str(other), "here"))
    else:
        console().print(f"{other} describes what would run here", markup=False)
    if found:
        raise typer.Exit(1)


def _print(made: Plan) -> None:
    out = console()
    title = f"{made.model} on {device_text(made)}, rows {made.rows}"
    columns = ("operator", "site", "rows", "kernel", "class", "evidence", "remark")
    out.print(table(title, columns, (row for selection in made.selections for row in _rows(selection)), ("kernel",)))
    out.print()
    for failure in made.failures:
        out.print(str(failure), markup=False, soft_wrap=True)
    out.print(f"digest {made.digest}", markup=False)
    out.print("dspark-ops explain OPERATOR  shows all candidates of one operator with their reasons", markup=False)


def _rows(selection: Selection, depth: int = 0) -> Iterator[tuple[str, ...]]:
    lead = "  " * depth
    for choice in selection.choices:
        kernel = choice.kernel
        yield (
            f"{lead}{selection.operator}",
            selection.site,
            choice.rows,
            kernel.id,
            kernel.rank.value,
            kernel.evidence.value,
            "; ".join(_remarks(choice)),
        )
        for part in choice.parts:
            yield from _rows(part, depth + 1)


def _remarks(choice: Choice) -> Iterator[str]:
    if choice.below:
        yield "weaker than required"
    for item in choice.refused:
        # That another vendor's kernels cannot run here is no news; explain lists them too.
        if item.better and not any(reason.code in _OTHER_HARDWARE for reason in item.reasons):
            more = f" (and {len(item.reasons) - 1} more)" if len(item.reasons) > 1 else ""
            reason = item.reasons[0]
            yield f"refused {item.candidate.id}: {reason.field}: wanted {reason.wanted}, got {reason.got}{more}"
