"""Writes docs/operators.md: every operator's contract, with the sizes of a model and the kernels that plugins register.

Run ``python docs/build_operators.py`` after adding or changing an operator or a kernel; ``--check`` says whether the
page is up to date. All plugins must be installed. `dspark-ops contract` shows the same facts.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

from dspark_ops import contracts
from dspark_ops.contracts import model_shapes
from dspark_ops.selection.discovery import survey
from dspark_ops.selection.operator_facts import OperatorFacts, operator_facts
from dspark_ops.selection.operator_tables import FactTable, head, index, tables
from dspark_ops.selection.settings import Settings

PAGE = Path(__file__).resolve().parent / "operators.md"
MODEL = "deepseek-v4.1-flash/tp4"

_HEAD = f"""<!-- written by docs/build_operators.py: do not edit -->
# Operators

What each operator means, as its contract says it. `dspark-ops contract NAME` shows the same for one of them, also for
another model or with other plugins, and `--json` gives it to a tool. Which kernel serves where is another question:
`dspark-ops explain NAME`, and the table in the README.

How to read a section:

* shape: axes by symbol; "in the model" has the sizes of one rank of `{MODEL}`, per place where they
  differ. The rows axis is the size that changes from call to call, and the one that plans are made for. `*` is a size
  that decides nothing.
* dtype: the first one is what a place has unless it names another.
* strides: the loosest form that is admitted: `contiguous`, `unit_last` (last stride 1, rows may be spaced) or `any`.
  A place has contiguous tensors unless it names another form.
* layout: names of the byte layouts that are admitted, the first one by default.
* values: others could make an implementation touch foreign memory; a checked call (`plan.bind(check=True)`) refuses
  them.
* exactness: how near an output must come to the reference. `bitwise`: every bit; `bitwise given x`: every bit follows
  from the call's own output x; `mismatch(s)`: at most the share s of what the reference changed differs; `ulp(n)`: at
  most n representable values away; `relative(b)`: norm of the difference over that of the reference; `absolute(b)`:
  largest difference; `law`: equal in distribution.
* rules that have names: where implementations differ. A kernel that promises another choice than the one a place asks
  for is not used there.
* promises: `graph_safe` (may be captured after its preparation), `deterministic` (equal bits from run to run),
  `batch_invariant` (a row does not depend on the others), `pdl` (launches early where the device can).
* rule from: the section of the contract notes that states the rule: N for NVIDIA, A for AMD, C for the DSpark cycle; O
  is the number of a fault that the rule keeps out.
"""


def page(operators: list[OperatorFacts]) -> Iterator[str]:
    """Yield the lines of the page."""
    yield _HEAD
    yield from _markdown(index(operators), links=True)
    for item in operators:
        yield ""
        yield f"## {item.name}"
        yield ""
        yield item.summary
        yield ""
        for label, text in head(item):
            yield f"* {label}: {_text(text)}"
        for table in tables(item):
            yield ""
            yield f"**{table.title}**"
            yield ""
            yield from _markdown(table) if table.rows else [table.none]


def _markdown(table: FactTable, links: bool = False) -> Iterator[str]:
    yield f"| {' | '.join(table.columns)} |"
    yield "| --- " * len(table.columns) + "|"
    for row in table.rows:
        cells = [
            f"`{text}`" if text and name in table.code else _text(text)
            for name, text in zip(table.columns, row, strict=True)
        ]
        if links:
            cells[0] = f"[{cells[0]}](#{row[0]})"
        yield f"| {' | '.join(cells)} |"


def _text(text: str) -> str:
    """Return a text in which no star is taken for emphasis, and no bar for the end of a cell."""
    return text.replace("*", r"\*").replace("|", r"\|")


def main() -> int:
    """Write the page, or compare it with what is there."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 if the page is out of date")
    check = parser.parse_args().check
    registry, shapes = survey(Settings()), model_shapes(MODEL)
    operators = [operator_facts(contracts.get(name), shapes, registry) for name in sorted(contracts.names())]
    text = "\n".join(page(operators)) + "\n"
    if check:
        return int(not PAGE.exists() or PAGE.read_text(encoding="utf-8") != text)
    PAGE.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
