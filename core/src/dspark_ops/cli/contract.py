"""``dspark-ops contract [OPERATOR]``: what an operator means, what it takes and gives, and who has kernels for it."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer
from rich.markup import escape

from dspark_ops import contracts
from dspark_ops.cli._options import DEFAULT_MODEL, ConfigOption, JsonOption, ModelOption, configured
from dspark_ops.cli._show import console, print_json, table
from dspark_ops.selection.discovery import survey
from dspark_ops.selection.named_model import named_shapes
from dspark_ops.selection.operator_facts import OperatorFacts, operator_facts
from dspark_ops.selection.operator_tables import FactTable, head, index, tables
from dspark_ops.selection.registry import Registry

NameArgument = Annotated[
    str | None, typer.Argument(metavar="[OPERATOR]", help="Name of the operator; without one, all are listed.")
]


def contract(
    operator: NameArgument = None, model: ModelOption = DEFAULT_MODEL, config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:  # fmt: skip
    """Show what an operator means: arguments, options, outputs, rules, places, and the kernels there are.

    Without a name all operators are listed. Sizes are those of one rank of the model; "*" is a size that decides
    nothing. Needs neither torch nor a device.
    """
    found = [contracts.get(operator)] if operator else list(contracts.all_contracts().values())
    # A plugin that does not load takes nothing away from a contract, so it is named and is no finding here.
    registry = survey(configured(config).settings)
    shapes = named_shapes(model)
    facts = [operator_facts(item, shapes, registry) for item in found]
    if as_json:
        shown = [asdict(item) for item in facts]
        print_json({"failures": [str(item) for item in registry.failures], "operators": shown})
    elif operator:
        _print(facts[0], registry)
    else:
        out = console()
        out.print(_rich(index(sorted(facts, key=lambda item: item.name))))
        out.print("\ndspark-ops contract OPERATOR  shows one of them", markup=False)


def _print(facts: OperatorFacts, registry: Registry) -> None:
    out = console()
    out.print(f"[bold]{escape(facts.name)}[/bold]  {escape(facts.summary)}")
    for label, text in head(facts):
        out.print(f"{label:<14}{text}", markup=False)
    for item in tables(facts):
        out.print()
        out.print(_rich(item))
        if not item.rows:
            out.print(item.none, markup=False)
    if registry.failures:
        named = ", ".join(f"{failure.name} ({failure.stage})" for failure in registry.failures)
        out.print(f"\nnot loaded: {named}; dspark-ops plugins  says why", markup=False)


def _rich(item: FactTable) -> object:
    return table(item.title, item.columns, item.rows, whole=item.columns[:1])
