"""``dspark-ops plan``: one kernel per operator, place and row counts, for a device and a model."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from dspark_ops.api.reason import ReasonCode
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
from dspark_ops.cli._show import console, print_json, table
from dspark_ops.errors import ConfigError
from dspark_ops.selection.explain import device_text
from dspark_ops.selection.plan import Choice, Plan, Selection

_OTHER_HARDWARE = (ReasonCode.DEVICE_VENDOR, ReasonCode.DEVICE_ARCH)

WriteOption = Annotated[Path | None, typer.Option("--write", metavar="FILE", help="Save the plan's canonical JSON.")]


def plan(
    device: DeviceOption = None,
    which: WhichOption = None,
    model: ModelOption = DEFAULT_MODEL,
    rows: RowsOption = DEFAULT_ROWS,
    config: ConfigOption = None,
    write: WriteOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show which kernel serves each operator.

    Exit code 1 means a finding: an operator is served by a weaker class than required while policy.fallback is "warn",
    a plugin did not load, or no kernel may serve an operator.
    """
    made, findings = made_plan(device=device, which=which, model=model, rows=rows, config=config)
    if write is not None:
        try:
            made.save(write)
        except OSError as error:
            raise ConfigError(f"--write {write}: the plan cannot be saved: {error.strerror}") from error
    if as_json:
        print_json({"digest": made.digest, "findings": findings, "plan": json.loads(made.to_json())})
    else:
        _print(made)
        if write is not None:
            console().print(f"saved to {write}", markup=False)
    if findings:
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
