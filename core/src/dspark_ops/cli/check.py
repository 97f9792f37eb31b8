"""``dspark-ops check``: what a plugin's kernels claim, compute and promise, against their contracts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from dspark_ops.cli._options import JsonOption, configured
from dspark_ops.cli._show import console, print_json, table
from dspark_ops.conformance.check import Request, run_check
from dspark_ops.conformance.report import LEVELS, KernelRecord, LevelRecord, Report
from dspark_ops.conformance.xfails import read_xfails
from dspark_ops.errors import ConfigError
from dspark_ops.selection.discovery import survey

PluginArgument = Annotated[str | None, typer.Argument(metavar="[PLUGIN]", help="Name of a plugin; by default all.")]
OpOption = Annotated[list[str] | None, typer.Option("--op", metavar="NAME", help="Only this operator. Repeatable.")]
DeviceOption = Annotated[
    str | None,
    typer.Option(
        "--device",
        metavar="NAME",
        help="cpu, cuda, cuda:N, or a simulated device (claims and builds only). Default: cuda, else cpu.",
    ),
]
LevelOption = Annotated[
    list[str] | None,
    typer.Option(
        "--level", metavar="LEVEL", help="claims, numbers or traits (default: these three), or builds. Repeatable."
    ),
]
ScaleOption = Annotated[str, typer.Option("--scale", metavar="SCALE", help="small, or model for the sizes of V4.1.")]
SeedOption = Annotated[int, typer.Option("--seed", metavar="N", help="Seed of the cases.")]
CaseOption = Annotated[str, typer.Option("--case", metavar="NAME", help="Only this case, by its name or a glob.")]
XfailsOption = Annotated[
    Path | None, typer.Option("--xfails", metavar="FILE", help="TOML list of expected failures, with reasons.")
]
WriteOption = Annotated[Path | None, typer.Option("--write", metavar="FILE", help="Save the report as JSON.")]

_SHOWN = 12


def check(
    plugin: PluginArgument = None,
    op: OpOption = None,
    device: DeviceOption = None,
    level: LevelOption = None,
    scale: ScaleOption = "small",
    seed: SeedOption = 0,
    case: CaseOption = "",
    xfails: XfailsOption = None,
    write: WriteOption = None,
    as_json: JsonOption = False,
) -> None:
    """Check a plugin's kernels against their contracts.

    On a machine without a GPU, Triton kernels run in Triton's interpreter, repaired and proved first. Exit code 1 means
    that something is wrong; what could not be run is listed and is not wrong.
    """
    if scale not in ("small", "model"):
        raise ConfigError(f"--scale: wanted small or model, got {scale!r}")
    request = Request(
        plugin=plugin,
        ops=tuple(op or ()),
        device=device,
        levels=tuple(level or LEVELS),
        scale=scale,
        seed=seed,
        case=case,
        xfails=read_xfails(xfails) if xfails else (),
        xfails_file=str(xfails.resolve()) if xfails else "",
    )
    report = run_check(request, survey(configured(None).settings))
    if write is not None:
        try:
            write.write_text(json.dumps(report.to_json(), indent=2) + "\n", encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"--write {write}: the report cannot be saved: {error.strerror}") from error
    if as_json:
        print_json(report.to_json())
    else:
        _print(report)
    if not report.passed:
        raise typer.Exit(1)


def _print(report: Report) -> None:
    out = console()
    device = report.device["arch"] + (
        ", simulated" if report.device["simulated"] and report.device["arch"] != "cpu" else ""
    )
    out.print(f"{report.plugin or 'all plugins'} on {device}, seed {report.seed}, scale {report.scale}", markup=False)
    rows = [
        (record.kernel, *(_level_text(record.levels.get(name)) for name in report.levels), record.level)
        for record in report.kernels
    ]
    out.print(table("", ("kernel", *report.levels, "evidence"), rows, whole=("kernel",)))
    for record in report.kernels:
        _print_record(out, record)
    for finding in report.findings:
        out.print(f"\nfinding: {finding}", markup=False, soft_wrap=True)
    if report.interpreter:
        out.print(f"\nTriton {report.versions.get('triton', '')} interpreter: {len(report.interpreter)} proofs passed")
    failed = sum(1 for _ in report.failures())
    out.print(f"\n{'passed' if report.passed else f'{failed} failures, {len(report.findings)} findings'}", markup=False)


def _level_text(level: LevelRecord | None) -> str:
    if level is None:
        return "-"
    if level.status == "not run":
        return "not run"
    counts = ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in level.counts.items() if count)
    return f"{level.status}: {counts}"


def _print_record(out: Console, record: KernelRecord) -> None:
    lines = [str(failure) for failure in record.failures[:_SHOWN]]
    if len(record.failures) > _SHOWN:
        lines.append(f"and {len(record.failures) - _SHOWN} more failures: --json lists them all")
    lines += [f"expected ({reason}): case {failure.case!r}: {failure.what}" for failure, reason in record.expected]
    for name, level in record.levels.items():
        if level.reason:
            lines.append(f"{name} not run: {level.reason}")
        lines += [f"{name}, not covered: {text}" for text in level.not_covered]
    if lines:
        out.print(f"\n{record.kernel}{f' ({record.note})' if record.note else ''}", markup=False)
        for line in lines:
            out.print(f"  {line}", markup=False, soft_wrap=True)
