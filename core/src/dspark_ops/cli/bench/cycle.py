"""``dspark-ops bench cycle``: the operators of a whole decode cycle in one graph, under two plans side by side."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dspark_ops.cli._options import DEFAULT_MODEL, JsonOption, ModelOption, configured
from dspark_ops.cli._show import console, print_json, table
from dspark_ops.errors import ConfigError

if TYPE_CHECKING:
    from dspark_ops.selection.settings import Settings

AOption = Annotated[
    str, typer.Option("--a", metavar="PLAN", help="planned, reference, parts, or a configuration file.")
]
BOption = Annotated[str, typer.Option("--b", metavar="PLAN", help="As --a; what it is compared with.")]
RowsOption = Annotated[int, typer.Option("--rows", metavar="N", help="Rows of the verify step: 6 per request.")]
GapOption = Annotated[
    float, typer.Option("--gap", metavar="US", help="Microseconds that stand for each matrix product; 0: left out.")
]
RoundsOption = Annotated[int, typer.Option("--rounds", help="Rounds in which both plans take a turn; at least 5.")]
WriteOption = Annotated[Path | None, typer.Option("--write", metavar="FILE", help="Save the figures as JSON.")]


def cycle(
    a: AOption = "planned",
    b: BOption = "parts",
    rows: RowsOption = 6,
    model: ModelOption = DEFAULT_MODEL,
    gap: GapOption = 0.0,
    rounds: RoundsOption = 25,
    write: WriteOption = None,
    as_json: JsonOption = False,
) -> None:
    """Time all operators of one decode cycle under two plans, and show each one's part.

    Static verify widths, greedy acceptance; matrix products and collectives are left out, or stubs of a stated time.
    Exit code 1: an operator could not be captured and is left out.
    """
    from dspark_ops.bench.cycle import CycleBench, time_cycle
    from dspark_ops.bench.floors import measure_floor
    from dspark_ops.bench.machine import machine_facts, require_gpu

    if rounds < 5:
        raise ConfigError(f"--rounds {rounds}: wanted 5 or more, else there are no deciles")
    if gap < 0:
        raise ConfigError(f"--gap {gap}: wanted microseconds, 0 or more")
    arms = {f"a: {a}": _settings(a), f"b: {b}": _settings(b)}
    device = require_gpu()
    report = time_cycle(CycleBench(device, model, rows, arms, gap), rounds)
    report = {"machine": machine_facts(device), "floor": measure_floor().to_json(), "rounds": rounds, **report}
    if write is not None:
        try:
            write.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"--write {write}: the figures cannot be saved: {error.strerror}") from error
    if as_json:
        print_json(report)
    else:
        _print(report)
    if report["left_out"]:
        raise typer.Exit(1)


def _settings(name: str) -> Settings:
    from dspark_ops.bench.cycle import PRESETS, preset_settings

    path = Path(name)
    if name not in PRESETS and path.suffix == ".toml":
        return configured(path).settings
    return preset_settings(name, configured(None).settings)


def _print(report: dict[str, Any]) -> None:
    out = console()
    machine, stubs = report["machine"], report["gemm_stubs"]
    gaps = f"{stubs['places']} stubs of {stubs['us_each']:g} us" if stubs["us_each"] else "left out"
    out.print(
        f"one cycle of {report['model']}, {report['rows']} verify rows, on {machine['device']} ({machine['arch']}); "
        f"matrix products and collectives: {gaps}",
        markup=False,
    )
    columns = ("plan", "#us", "#p10", "#p90", "#launches", "#copies and fills")
    out.print(table("", columns, _totals(report), whole=("plan",)))
    found = report["b_over_a"]
    if found["ratio"] is None:
        out.print(f"the plans are not told apart ({found['p10']:.2f} to {found['p90']:.2f})\n", markup=False)
    else:
        out.print(f"b takes {found['ratio']:.2f} times as long as a\n", markup=False)
    names = list(report["arms"])
    columns = (
        "operator",
        "site",
        "#calls",
        *(f"#{head}" for name in names for head in (f"{name[0]} us", "share", "n")),
    )
    out.print(table("each operator alone", (*columns, *names), _operators(report, names), whole=("operator",)))
    for entry in report["left_out"]:
        out.print(
            f"left out of both: {entry['operator']} at {entry['site']}, {entry['calls']} calls: {entry['why']}",
            markup=False,
            soft_wrap=True,
        )


def _totals(report: dict[str, Any]) -> Iterator[tuple[str, ...]]:
    for name, arm in report["arms"].items():
        times = tuple(f"{arm[key]:.1f}" for key in ("median_us", "p10_us", "p90_us"))
        yield (name, *times, str(arm["launches"] or "-"), str(arm["copies_and_fills"]))


def _operators(report: dict[str, Any], names: list[str]) -> Iterator[tuple[str, ...]]:
    for entry in report["operators"]:
        figures = []
        for name in names:
            part = entry[name]
            launches = "-" if part["launches"] is None else f"{part['launches']:g}"
            figures += [f"{part['us']:.1f}", f"{100 * part['share']:.1f} %", launches]
        kernels = [entry[name]["kernel"] for name in names]
        yield (entry["operator"], entry["site"], str(entry["calls"]), *figures, *kernels)
