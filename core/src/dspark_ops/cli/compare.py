"""``dspark-ops compare A.json B.json``: what two recorded arms show, and what they do not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from dspark_ops.bench.comparable import incomparable
from dspark_ops.bench.comparison import Verdict, compare_arms
from dspark_ops.bench.design import Arm
from dspark_ops.bench.record import read_arm
from dspark_ops.cli._bench_report import print_comparison, report_of
from dspark_ops.cli._bench_session import check_packages
from dspark_ops.cli._options import JsonOption
from dspark_ops.cli._show import console, print_json
from dspark_ops.errors import ConfigError, EvidenceError


def compare(
    first: Annotated[Path, typer.Argument(metavar="A.json", help="Record of arm A.")],
    second: Annotated[Path, typer.Argument(metavar="B.json", help="Record of arm B.")],
    treatment: Annotated[
        list[str] | None,
        typer.Option("--treatment", metavar="FIELD", help="Field that differs on purpose, such as versions.torch."),
    ] = None,
    confidence: Annotated[float, typer.Option("--confidence", help="Level of the intervals.")] = 0.95,
    html: Annotated[Path | None, typer.Option("--html", metavar="FILE", help="Write the report as a page.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Compare two arms that `bench ab --out` recorded.

    Arms of one session are paired launch by launch. Arms of two sessions can be compared too, without the power of
    pairs, and the report says so. Exit code 1 means that they cannot be compared, with the fields that differ, or that
    no statement can be made.
    """
    check_packages(page=html is not None)
    records = read_arm(first), read_arm(second)
    if records[0].session == records[1].session and [record.arm.value for record in records] != ["A", "B"]:
        got = " and ".join(record.arm.value for record in records)
        raise ConfigError(f"wanted arm A, then arm B, of session {records[0].session}: got {got}")
    # Of two sessions, the first file is A and the second is B, whatever they were when they were measured.
    a, b = (
        replace(record, arm=arm, declared=(*record.declared, *(treatment or ())))
        for record, arm in zip(records, (Arm.A, Arm.B), strict=True)
    )
    if differences := incomparable(a, b):
        lines = "".join(f"\n  {difference}" for difference in differences)
        heads = " ".join(f"--treatment {difference.field}" for difference in differences)
        raise EvidenceError(f"{first} and {second} cannot be compared:{lines}\nif that is the treatment, say  {heads}")
    comparison = compare_arms(a, b, confidence)
    if html is not None:
        from dspark_ops.bench.page import page

        try:
            html.write_text(page(comparison, a, b), encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"--html {html}: cannot be written: {error.strerror}") from error
    if as_json:
        print_json(report_of(a, b, comparison))
    else:
        print_comparison(console(), comparison, (a, b))
    if comparison.verdict is Verdict.VOID:
        raise typer.Exit(1)
