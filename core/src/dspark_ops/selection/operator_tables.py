"""The facts of operators as tables of texts, which the command line and the documentation lay out each in its way."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dspark_ops.selection.operator_facts import OperatorFacts

__all__ = ["FactTable", "head", "index", "tables"]


@dataclass(frozen=True, slots=True)
class FactTable:
    """A table of texts.

    Attributes:
        title: what its rows are.
        columns: their names.
        rows: one text per column.
        code: columns that hold names, shapes or numbers, not sentences.
        none: what is said where there are no rows.
    """

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    code: tuple[str, ...] = ()
    none: str = ""


def index(operators: Iterable[OperatorFacts]) -> FactTable:
    """Return the table of all operators: a row each, with what it gives and where it is called."""
    rows = ((item.name, _summary(item), f"{item.family}: {_places_of(item)}", str(item.version)) for item in operators)
    columns = ("operator", "what the caller gets", "family: places", "version")
    return FactTable("operators", columns, tuple(rows), code=("operator",))


def _summary(item: OperatorFacts) -> str:
    parts = ", ".join(part.operator for part in item.parts)
    return f"{item.summary} Made of {parts}." if parts else item.summary


def _places_of(item: OperatorFacts) -> str:
    return ", ".join(place.name for place in item.places) or "none"


def head(item: OperatorFacts) -> Iterator[tuple[str, str]]:
    """Yield what is true of the whole operator, as pairs of a label and a text."""
    yield "family", f"{item.family} (contract version {item.version})"
    yield "runs in", ", ".join(item.phases)
    yield "rule from", item.source
    yield "reference", item.reference
    yield "rows axis", f"{item.rows} = {item.rows_from}"
    yield "without rows", item.empty
    yield "model", item.model
    if item.small:
        yield "small", "its torch reference is good enough on an accelerator"


def tables(item: OperatorFacts) -> Iterator[FactTable]:
    """Yield the tables of one operator; one that says nothing without rows, and a column without texts, is left out."""
    for make in (_arguments, _options, _outputs, _rules, _places, _parts, _kernels):
        table = make(item)
        if table.rows:
            yield _without_empty_columns(table)
        elif table.none:
            yield table


def _arguments(item: OperatorFacts) -> FactTable:
    rows = (
        (
            each.name,
            ", ".join(each.dtypes),
            each.shape,
            _by_place(each.sizes),
            each.strides,
            ", ".join(each.layouts),
            each.values,
            ", ".join(word for word, true in (("written", each.written), ("optional", each.optional)) if true),
            each.doc,
        )
        for each in item.arguments
    )
    columns = ("name", "dtype", "shape", "in the model", "strides", "layout", "values", "is", "what it holds")
    return FactTable("arguments", columns, tuple(rows), code=("name", "shape", "in the model"))


def _options(item: OperatorFacts) -> FactTable:
    rows = (
        (
            each.name,
            each.type,
            "required" if each.required else str(each.default),
            ", ".join(map(str, each.choices)) or each.values,
            each.doc,
        )
        for each in item.options
    )
    columns = ("name", "type", "default", "choices", "what it means")
    return FactTable("options", columns, tuple(rows), code=("name",))


def _outputs(item: OperatorFacts) -> FactTable:
    rows = (
        (
            each.name,
            each.dtype,
            each.shape,
            _by_place(each.sizes),
            each.exact,
            ", ".join(filter(None, ("written in place" if each.in_place else "", each.none and f"None {each.none}"))),
            each.doc,
        )
        for each in item.outputs
    )
    columns = ("name", "dtype", "shape", "in the model", "exactness", "is", "what it holds")
    return FactTable("outputs", columns, tuple(rows), code=("name", "shape", "in the model"))


def _rules(item: OperatorFacts) -> FactTable:
    rows = ((each.name, each.default, ", ".join(each.choices), each.doc) for each in item.rules)
    return FactTable("rules that have names", ("rule", "default", "choices", "what it says"), tuple(rows), ("rule",))


def _places(item: OperatorFacts) -> FactTable:
    rows = (
        (
            each.name,
            _pairs(each.axes),
            _pairs(each.options),
            "; ".join(
                f"{name} {form}" for group in (each.dtypes, each.strides, each.layouts) for name, form in group.items()
            ),
        )
        for each in item.places
    )
    columns = ("place", "sizes", "options", "tensors")
    none = "none: this model does not call it"
    return FactTable("places in the model", columns, tuple(rows), ("place", "sizes", "options"), none)


def _parts(item: OperatorFacts) -> FactTable:
    rows = ((each.operator, each.rows, _pairs(each.axes)) for each in item.parts)
    columns = ("part", "its rows", "its sizes")
    return FactTable("made of, in this order", columns, tuple(rows), code=columns)


def _kernels(item: OperatorFacts) -> FactTable:
    rows = (
        (each.plugin, each.id.rpartition("/")[2], each.rank, each.runs_on, ", ".join(each.promises))
        for each in item.kernels
    )
    columns = ("plugin", "variant", "class", "runs on", "promises")
    none = f"none: core serves it, by {'its parts' if item.parts else 'its torch reference'}"
    return FactTable("kernels that plugins register", columns, tuple(rows), ("plugin", "variant"), none)


def _by_place(sizes: Mapping[str, str]) -> str:
    """Return the one text of all places, or each text with the places where it holds."""
    places: dict[str, list[str]] = {}
    for place, text in sizes.items():
        places.setdefault(text, []).append(place)
    if len(places) < 2:
        return "".join(places)
    return ", ".join(f"{text} ({', '.join(names)})" for text, names in places.items())


def _pairs(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={value}" for name, value in values.items())


def _without_empty_columns(table: FactTable) -> FactTable:
    keep = [index for index in range(len(table.columns)) if any(row[index] for row in table.rows)]

    def kept(texts: Sequence[str]) -> tuple[str, ...]:
        return tuple(texts[index] for index in keep)

    return FactTable(table.title, kept(table.columns), tuple(kept(row) for row in table.rows), table.code)
