"""What there is to know of an operator: its contract with a model's sizes filled in, and who registers kernels for it.

`dspark-ops contract` and ``docs/operators.md`` show the same facts, and both read them here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dspark_ops.api.kernel import Traits
from dspark_ops.contracts import family_of
from dspark_ops.contracts.contract import REQUIRED, Argument, Contract, Option, Output, Site
from dspark_ops.contracts.model_shapes import ModelShapes
from dspark_ops.contracts.values import Values, evaluate, unknown_names
from dspark_ops.selection.problem import Problem
from dspark_ops.selection.registry import RegisteredKernel, Registry

__all__ = [
    "ArgumentFacts", "KernelFacts", "OperatorFacts", "OptionFacts", "OutputFacts", "PartFacts", "PlaceFacts",
    "RuleFacts", "operator_facts",
]  # fmt: skip

_SYMBOL = re.compile(r"[A-Za-z_]\w*")


@dataclass(frozen=True, slots=True)
class ArgumentFacts:
    """A tensor argument; `shape` is symbolic, `sizes` has it per place of the model, the rest as in the contract."""

    name: str
    dtypes: tuple[str, ...]
    shape: str
    sizes: Mapping[str, str]
    strides: str
    layouts: tuple[str, ...]
    values: str
    written: bool
    optional: bool
    doc: str


@dataclass(frozen=True, slots=True)
class OptionFacts:
    """A plain argument; `default` means nothing where it is `required`."""

    name: str
    type: str
    required: bool
    default: Any
    choices: tuple[Any, ...]
    values: str
    doc: str


@dataclass(frozen=True, slots=True)
class OutputFacts:
    """A value that is returned, or that a written argument holds afterwards (`in_place`).

    Attributes:
        exact: how near an implementation must come to the reference.
        none: when None is returned in its place, or empty.
    """

    name: str
    shape: str
    sizes: Mapping[str, str]
    dtype: str
    exact: str
    in_place: bool
    none: str
    doc: str


@dataclass(frozen=True, slots=True)
class RuleFacts:
    """A rule on which implementations differ: the contract's own choice and the named others."""

    name: str
    default: str
    choices: tuple[str, ...]
    doc: str


@dataclass(frozen=True, slots=True)
class PlaceFacts:
    """A place of the model: what differs there from the contract's defaults, and the sizes of the static axes."""

    name: str
    axes: Mapping[str, int]
    options: Mapping[str, Any]
    dtypes: Mapping[str, str]
    strides: Mapping[str, str]
    layouts: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class PartFacts:
    """A part of a fused operator: its row count, and its axes whose sizes differ, in the operator's own symbols."""

    operator: str
    rows: str
    axes: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class KernelFacts:
    """A registered kernel: its class, the devices that it accepts, what it promises beyond numbers, its note."""

    id: str
    plugin: str
    rank: str
    runs_on: str
    promises: tuple[str, ...]
    note: str


@dataclass(frozen=True, slots=True)
class OperatorFacts:
    """All facts of one operator, as plain values that turn into JSON.

    Attributes:
        name, summary, version, phases, source, empty, small: as in the contract.
        family: the module of `dspark_ops.contracts` that holds the contract.
        reference: ``module.function`` of the torch reference.
        model: the model whose sizes are filled in.
        rows: symbol of the rows axis.
        rows_from: the argument's size that is the number of rows.
        arguments, options, outputs, rules, places: in the contract's order.
        parts: what a fused operator is made of; empty for others.
        kernels: what the installed plugins register, sorted by id.
    """

    name: str
    summary: str
    version: int
    family: str
    phases: tuple[str, ...]
    source: str
    reference: str
    model: str
    rows: str
    rows_from: str
    empty: str
    small: bool
    arguments: tuple[ArgumentFacts, ...]
    options: tuple[OptionFacts, ...]
    outputs: tuple[OutputFacts, ...]
    rules: tuple[RuleFacts, ...]
    places: tuple[PlaceFacts, ...]
    parts: tuple[PartFacts, ...]
    kernels: tuple[KernelFacts, ...]


def operator_facts(contract: Contract, shapes: ModelShapes, registry: Registry) -> OperatorFacts:
    """Return the facts of an operator.

    Args:
        contract: what it means.
        shapes: sizes of the model to fill in.
        registry: the kernels to name.
    """
    sites = contract.sites(shapes)
    sizes = {site.name: _sizes(contract, site) for site in sites}
    index, dimension = contract.rows_from
    made = contract.decomposition
    return OperatorFacts(
        name=contract.name,
        summary=contract.summary,
        version=contract.version,
        family=family_of(contract.name),
        phases=contract.phases,
        source=contract.source,
        reference=f"{contract.reference.__module__}.{contract.reference.__name__}",
        model=shapes.name,
        rows=contract.rows,
        rows_from=f"{contract.parameters[index].name}.shape[{dimension}]",
        empty=contract.empty,
        small=contract.small,
        arguments=tuple(_argument(item, sizes) for item in contract.arguments),
        options=tuple(_option(item) for item in contract.options),
        outputs=tuple(_output(contract, item, sizes) for item in contract.outputs),
        rules=tuple(RuleFacts(item.name, item.default, item.choices, item.doc) for item in contract.semantics),
        places=tuple(_place(site) for site in sites),
        parts=tuple(
            PartFacts(part, made.rows.get(part, contract.rows), dict(made.axes.get(part, {}))) for part in made.parts
        )
        if made
        else (),
        kernels=tuple(_kernel(item) for item in registry.of(contract.name)),
    )


def _sizes(contract: Contract, site: Site) -> dict[str, int]:
    """Return the sizes that are fixed at a site, those that an option states among them."""
    options = Problem.at(contract, site).options
    stated = {symbol: options[option] for symbol, option in contract.sizes.items() if option in options}
    return {**stated, **site.axes}


def _argument(item: Argument, sizes: Mapping[str, Mapping[str, int]]) -> ArgumentFacts:
    return ArgumentFacts(
        name=item.name,
        dtypes=item.dtypes,
        shape=_shape(item.shape, {}),
        sizes={place: _shape(item.shape, known) for place, known in sizes.items()},
        strides=item.strides,
        layouts=item.layouts,
        values=_values(item.values),
        written=item.written,
        optional=item.optional,
        doc=item.doc,
    )


def _option(item: Option) -> OptionFacts:
    required = item.default is REQUIRED
    return OptionFacts(
        name=item.name,
        type=f"{item.type} or None" if item.optional or item.default is None else item.type,
        required=required,
        default=None if required else item.default,
        choices=item.choices,
        values=_values(item.values),
        doc=item.doc,
    )


def _output(contract: Contract, item: Output, sizes: Mapping[str, Mapping[str, int]]) -> OutputFacts:
    options = {option.name for option in contract.options}
    none = f"without {item.none_without}" if item.none_without else f"with {item.none_with}" if item.none_with else ""
    return OutputFacts(
        name=item.name,
        shape=_shape(item.shape, {}),
        sizes={place: _shape(item.shape, known) for place, known in sizes.items()},
        dtype=f"what {item.dtype} names" if item.dtype in options else item.dtype,
        exact=str(item.exact),
        in_place=item.name in {argument.name for argument in contract.arguments if argument.written},
        none=none,
        doc=item.doc,
    )


def _place(site: Site) -> PlaceFacts:
    return PlaceFacts(
        name=site.name,
        axes=dict(site.axes),
        options={**site.options, **site.semantics},
        dtypes=dict(site.dtypes),
        strides=dict(site.strides),
        layouts=dict(site.layouts),
    )


def _kernel(item: RegisteredKernel) -> KernelFacts:
    kernel = item.kernel
    return KernelFacts(
        id=item.id,
        plugin=item.plugin,
        rank=kernel.rank.value,
        runs_on=kernel.arch.text if kernel.arch else "any device",
        promises=tuple(_promises(kernel.traits)),
        note=kernel.note,
    )


def _promises(traits: Traits) -> list[str]:
    promised = [name for name in ("graph_safe", "deterministic", "batch_invariant", "pdl") if getattr(traits, name)]
    rules = ((name, getattr(traits, name)) for name in ("nan", "ties", "padding"))
    return promised + [f"{name}={rule}" for name, rule in rules if rule]


def _values(values: Values | None) -> str:
    if values is None:
        return ""
    return f"{values} in the first {values.leading} columns" if values.leading else str(values)


def _shape(shape: tuple[str | int, ...], known: Mapping[str, int]) -> str:
    """Return a shape as text, with the known symbols replaced by their sizes."""
    return f"[{', '.join(_size(entry, known) for entry in shape)}]"


def _size(entry: str | int, known: Mapping[str, int]) -> str:
    if isinstance(entry, int) or entry == "*" or not known:
        return str(entry)
    if not unknown_names(entry, known):
        return str(evaluate(entry, known))
    return _SYMBOL.sub(lambda found: str(known.get(found[0], found[0])), entry)
