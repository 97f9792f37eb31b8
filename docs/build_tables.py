"""Writes the generated part of README.md: which kernel a plan chooses for each operator on each device.

Run ``python docs/build_tables.py`` after adding an operator or a kernel; ``--check`` says whether it is up to date. All
four distributions must be installed. The plans are for simulated devices, so the table is the same on every machine.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import dspark_ops
from dspark_ops.selection.discovery import discover
from dspark_ops.selection.plan import Choice
from dspark_ops.selection.registry import Registry
from dspark_ops.selection.settings import Settings

README = Path(__file__).resolve().parents[1] / "README.md"
BEGIN = "<!-- operators: written by docs/build_tables.py -->"
END = "<!-- /operators -->"
DEVICES = ("cpu", "sm_90", "sm_103", "gfx950")
MODEL = "deepseek-v4.1-flash/tp4"
ROWS = range(1, 65)


def operator_table(registry: Registry) -> str:
    """Return the table in Markdown: a row per operator, a column per device; a cell has who serves and the evidence."""
    plans = {}
    for name in DEVICES:
        device = dspark_ops.Device.simulate(name)
        plans[name] = dspark_ops.plan(device=device, model=MODEL, rows=ROWS, registry=registry, config=Settings())
    lines = [f"| operator | {' | '.join(DEVICES)} |", "| --- " * (len(DEVICES) + 1) + "|"]
    for operator in plans["cpu"].operators:
        cells = [_cell([choice for item in plans[name].of(operator) for choice in item.choices]) for name in DEVICES]
        lines.append(f"| `{operator}` | {' | '.join(cells)} |")
    return "\n".join(lines)


def _cell(choices: list[Choice]) -> str:
    texts = []
    for choice in choices:
        kernel = choice.kernel
        origin = kernel.id.split("/")[0]
        text = (
            "torch" if kernel.id.endswith("/reference") else "its parts" if kernel.id.endswith("/composed") else origin
        )
        if text == origin:
            text += f" ({kernel.evidence.value})"
        texts.append(text)
    return ", ".join(dict.fromkeys(texts))


def updated(text: str, table: str) -> str:
    """Return a file's text with the table between its two marks replaced."""
    head, _, rest = text.partition(BEGIN)
    _, mark, tail = rest.partition(END)
    if not mark:
        raise SystemExit(f"{README}: the marks {BEGIN!r} and {END!r} are not there")
    return f"{head}{BEGIN}\n{table}\n{END}{tail}"


def main() -> int:
    """Write the table, or compare it with what is there."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 if the file is out of date")
    arguments = parser.parse_args()
    old = README.read_text(encoding="utf-8")
    new = updated(old, operator_table(discover()))
    if arguments.check:
        return int(new != old)
    README.write_text(new, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
