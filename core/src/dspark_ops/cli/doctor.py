"""``dspark-ops doctor``: what makes this machine slower than it could be, each with its evidence and its fix."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated, Any

import typer

from dspark_ops.cli._options import (
    DEFAULT_MODEL,
    DEFAULT_ROWS,
    ConfigOption,
    DeviceOption,
    JsonOption,
    ModelOption,
    RowsOption,
    WhichOption,
    chosen_rows,
)
from dspark_ops.cli._show import console, print_json
from dspark_ops.doctor import Answer, Facts, Severity, examine, gather
from dspark_ops.doctor.gather import Request
from dspark_ops.errors import ConfigError
from dspark_ops.selection.device import Device

StrictOption = Annotated[bool, typer.Option("--strict", help="Warnings count as findings too.")]


def doctor(
    device: DeviceOption = None,
    which: WhichOption = None,
    model: ModelOption = DEFAULT_MODEL,
    rows: RowsOption = DEFAULT_ROWS,
    config: ConfigOption = None,
    strict: StrictOption = False,
    as_json: JsonOption = False,
) -> None:
    """Find what costs speed or will fail here, and say what to do.

    Exit code 1 means that something was found: an error, or with --strict also a warning.
    """
    if device is not None and which is not None:
        raise ConfigError(
            f"--device {device} is simulated, --which {which} is a device of this machine: give one of the two"
        )
    if config is not None and not config.is_file():
        raise ConfigError(f"--config: wanted a file, got {config}")
    simulated = Device.simulate(device) if device is not None else None
    facts = gather(Request(device=simulated, which=which, model=model, rows=chosen_rows(rows), config=config))
    answers = examine(facts)
    if as_json:
        print_json(_json(facts, answers))
    else:
        _print(facts, answers)
    counted = (Severity.ERROR, Severity.WARNING) if strict else (Severity.ERROR,)
    if any(finding.severity in counted for answer in answers for finding in answer.findings):
        raise typer.Exit(1)


def _json(facts: Facts, answers: Sequence[Answer]) -> dict[str, Any]:
    return {
        "device": facts.device.to_json() if facts.device else None,
        "plan": facts.plan.digest if facts.plan else None,
        "checks": [
            {
                "name": item.check.name,
                "question": item.check.question,
                "not_asked": item.not_asked,
                "findings": [{**asdict(finding), "severity": finding.severity.value} for finding in item.findings],
            }
            for item in answers
        ],
    }


def _print(facts: Facts, answers: Sequence[Answer]) -> None:
    out = console()
    name = f"{facts.device.name} ({facts.device.arch})" if facts.device else "a device that cannot be probed"
    simulated = ", simulated" if facts.device and facts.device.simulated else ""
    out.print(f"doctor: {name}{simulated}", markup=False)
    for item in answers:
        for finding in item.findings:
            out.print(f"\n{finding.severity.value}: {finding.finding}  [{item.check.name}]", markup=False)
            for label, text in (("evidence", finding.evidence), ("fix", finding.fix)):
                out.print(f"  {label}: {text}".replace("\n", "\n    "), markup=False)
    out.print()
    for item in answers:
        out.print(f"{item.check.name:16} {_state(item):12} {item.not_asked or item.check.question}", markup=False)
    count = {severity: 0 for severity in Severity}
    for item in answers:
        for finding in item.findings:
            count[finding.severity] += 1
    counted = (f"{number} {severity.value}{'' if number == 1 else 's'}" for severity, number in count.items())
    out.print("\n" + ", ".join(counted), markup=False)


def _state(item: Answer) -> str:
    if item.not_asked:
        return "not asked"
    return "fine" if not item.findings else f"{len(item.findings)} found"
