"""``dspark-ops explain OPERATOR``: every candidate, its verdict, and what would have to change."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.tree import Tree

from dspark_ops import contracts
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
from dspark_ops.selection.candidate import Candidate
from dspark_ops.selection.explain import change, device_text, facts_text, roles, settings_in_force, why_first
from dspark_ops.selection.plan import Choice, Plan, Refusal, Selection
from dspark_ops.suggest import did_you_mean

OperatorArgument = Annotated[str, typer.Argument(metavar="OPERATOR", help="Name of the operator.")]
SiteOption = Annotated[str | None, typer.Option("--site", metavar="NAME", help="Only this place: verify, draft, ...")]

_COLUMNS = ("", "candidate", "class", "evidence", "verdict", "field", "wanted", "got", "from", "to use it")


def explain(
    operator: OperatorArgument,
    device: DeviceOption = None,
    which: WhichOption = None,
    model: ModelOption = DEFAULT_MODEL,
    rows: RowsOption = DEFAULT_ROWS,
    site: SiteOption = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show all candidates of one operator and why.

    Each comes with its verdict and what would have to change; then the settings in force with their origins. Exit code
    1 means a finding: it is served by a weaker class than required while policy.fallback is "warn", a plugin did not
    load, or no kernel may serve it.
    """
    name = contracts.get(operator).name
    made, findings = made_plan(device=device, which=which, model=model, rows=rows, config=config, operators=(name,))
    selections = _at(made, name, site)
    settings = list(settings_in_force(made, name))
    if as_json:
        planned = json.loads(made.to_json())
        keep = [index for index, selection in enumerate(made.selections) if selection in selections]
        print_json(
            {
                "operator": name,
                "digest": made.digest,
                "device": planned["device"],
                "model": made.model,
                "rows": made.rows,
                "selections": [planned["selections"][index] for index in keep],
                "settings": settings,
                "findings": findings,
                "failures": planned["failures"],
            }
        )
    else:
        _print(made, selections, settings)
    if findings:
        raise typer.Exit(1)


def _at(made: Plan, operator: str, site: str | None) -> tuple[Selection, ...]:
    selections = made.of(operator)
    if site is None:
        return selections
    found = tuple(selection for selection in selections if selection.site == site)
    if not found:
        sites = [selection.site for selection in selections]
        raise ConfigError(f"--site {site}: {operator} is called at {', '.join(sites)}{did_you_mean(site, sites)}")
    return found


def _print(made: Plan, selections: tuple[Selection, ...], settings: list[str]) -> None:
    out = console()
    first = selections[0]
    contract = contracts.get(first.operator)
    out.print(f"[bold]{escape(contract.name)}[/bold]  {escape(contract.summary)}  (contract {first.contract})")
    out.print(f"{made.model} on {device_text(made)}, rows {made.rows}", markup=False)
    for selection in selections:
        out.print(f"\n[bold]site {escape(selection.site)}[/bold]  {escape(facts_text(selection.problem))}")
        for choice in selection.choices:
            _print_choice(out, choice, roles(made, selection, choice))
    out.print("\n[bold]settings in force[/bold]")
    for line in settings:
        out.print(f"  {line}", markup=False, soft_wrap=True)
    if made.failures:
        out.print("\n[bold]plugins that did not load[/bold]")
        for failure in made.failures:
            out.print(f"  {failure}", markup=False, soft_wrap=True)
    out.print(f"\ndigest {made.digest}", markup=False)


def _print_choice(out: Console, choice: Choice, served: Sequence[tuple[Candidate, str]]) -> None:
    why = why_first(choice)
    out.print(f"\nrows {choice.rows}: [bold green]{escape(choice.kernel.id)}[/bold green]{escape(why)}")
    columns = _COLUMNS if choice.refused else _COLUMNS[:5]
    rows = [row[: len(columns)] for row in _candidates(choice, served)]
    out.print(table("", columns, rows, whole=("candidate", "class", "verdict")))
    everyone = [choice.kernel, *choice.standby, *(item.candidate for item in choice.refused)]
    for candidate in everyone:
        if candidate.origin:
            out.print(f"record of {candidate.id}: {candidate.origin}", markup=False, soft_wrap=True)
    if choice.parts:
        tree = Tree(escape(choice.kernel.id))
        _grow(tree, choice)
        out.print(tree)


def _candidates(choice: Choice, served: Sequence[tuple[Candidate, str]]) -> Iterator[tuple[str, ...]]:
    for item in choice.refused:
        if item.better:
            yield from _refused(item)
    for number, (candidate, verdict) in enumerate(served, start=1):
        yield (str(number), candidate.id, candidate.rank.value, candidate.evidence.value, verdict, *[""] * 5)
    for item in choice.refused:
        if not item.better:
            yield from _refused(item)


def _refused(item: Refusal) -> Iterator[tuple[str, ...]]:
    candidate = item.candidate
    head: tuple[str, ...] = ("-", candidate.id, candidate.rank.value, candidate.evidence.value)
    for reason in item.reasons:
        yield (*head, reason.code.value, reason.field, reason.wanted, reason.got, reason.origin, change(reason))
        head = ("", "", "", "")


def _grow(tree: Tree, choice: Choice) -> None:
    for part in choice.parts:
        for inner in part.choices:
            kernel = inner.kernel
            text = f"{part.operator} rows {inner.rows}: {kernel.id}  {kernel.rank.value}  {kernel.evidence.value}"
            _grow(tree.add(escape(text)), inner)
