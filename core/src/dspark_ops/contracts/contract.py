"""Contracts: what an operator means, as data that can be read without torch."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from dspark_ops.contracts.exactness import Exactness
from dspark_ops.contracts.values import Values

if TYPE_CHECKING:
    from dspark_ops.contracts.model_shapes import ModelShapes

REQUIRED = inspect.Parameter.empty


@dataclass(frozen=True, slots=True)
class Argument:
    """One tensor argument of an operator.

    Attributes:
        name: parameter name.
        shape: one entry per dimension: an axis symbol (``"R"``), a product of symbols (``"B*W"``), a number, or ``"*"``
            for a size that decides nothing, such as the number of pages of a cache.
        dtypes: torch dtype names that the contract admits.
        strides: the loosest form that the contract admits: ``contiguous``, ``unit_last`` or ``any``.
        layouts: names of the byte layouts that the contract admits; empty for plain tensors.
        optional: may be None, which is then the default.
        written: is modified in place.
        doc: what it holds.
        values: the values that it may hold, where others could make an implementation touch foreign memory.
    """

    name: str
    shape: tuple[str | int, ...]
    dtypes: tuple[str, ...]
    strides: str = "contiguous"
    layouts: tuple[str, ...] = ()
    optional: bool = False
    written: bool = False
    doc: str = ""
    values: Values | None = None

    @property
    def default(self) -> Any:
        """Default in the operator's signature."""
        return None if self.optional else REQUIRED


@dataclass(frozen=True, slots=True)
class Option:
    """One plain Python argument of an operator: a number, a flag or a name.

    Attributes:
        name: parameter name.
        type: ``int``, ``float``, ``bool`` or ``str``.
        default: default in the signature; `REQUIRED` if the caller must give it.
        choices: admitted values; empty if any value of the type will do.
        doc: what it means, with its unit.
        values: the numbers that it may be; None leaves that to the reference.
        optional: None is admitted, as it is where it is the default.
    """

    name: str
    type: str
    default: Any = REQUIRED
    choices: tuple[Any, ...] = ()
    doc: str = ""
    values: Values | None = None
    optional: bool = False


@dataclass(frozen=True, slots=True)
class Output:
    """One value that an operator returns (or, for a written argument, the value it holds afterwards).

    Attributes:
        name: unique in the contract; that of the argument where it is written in place.
        shape: one entry per dimension, as in `Argument`.
        dtype: a torch dtype name, ``like <argument>``, or the name of the option that holds one.
        exact: how near an implementation must come to the reference.
        doc: what it holds.
        none_without, none_with: the optional argument without which, or with which, None is returned in its place.
        shape_of: the shape of a call from its arguments by name, where `shape` has a ``"*"``. Sizes may be symbolic.
            Where neither says it, the reference does, on tensors without storage.
    """

    name: str
    shape: tuple[str | int, ...]
    dtype: str
    exact: Exactness
    doc: str = ""
    none_without: str = ""
    none_with: str = ""
    shape_of: Callable[[Mapping[str, Any]], tuple[Any, ...]] | None = None


@dataclass(frozen=True, slots=True)
class Semantic:
    """A rule on which implementations of an operator differ, with the contract's own choice and the named others."""

    name: str
    default: str
    choices: tuple[str, ...]
    doc: str = ""


@dataclass(frozen=True, slots=True)
class Site:
    """One place in a model where an operator is called: every fact that decides which kernel may serve it but rows.

    Attributes:
        name: the place: ``verify``, ``draft``, ``commit`` or a finer name where one phase holds two shapes.
        axes: sizes of the contract's static axes.
        dtypes: dtype name per argument where it is not the contract's first one.
        strides: stride form per argument where it is not ``contiguous``.
        layouts: layout name per argument that has layouts.
        options: values of options that are fixed at this place.
        semantics: rules that the caller asks for where they are not the contract's default.
    """

    name: str
    axes: Mapping[str, int] = field(default_factory=dict)
    dtypes: Mapping[str, str] = field(default_factory=dict)
    strides: Mapping[str, str] = field(default_factory=dict)
    layouts: Mapping[str, str] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    semantics: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Case:
    """One input of an operator, for conformance tests.

    Attributes:
        name: a sentence fragment that says what is special about it, such as ``"ties across two chunks"``.
        inputs: every parameter by name; tensors on the CPU.
        expected: outputs by name where they are known without the reference (golden vectors); usually empty.
    """

    name: str
    inputs: Mapping[str, Any]
    expected: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Decomposition:
    """How a fused operator is made of others.

    Attributes:
        parts: names of the contracts it is made of, in the order of use.
        compose: ``compose(ops, *arguments)`` with the operator's own signature behind `ops`, whose attributes are the
            bound parts. It returns what the operator returns.
        rows: per part, its row count as a product of the operator's own axes, such as ``"B*W"``, where it is not simply
            the operator's row count.
        axes: per part, its static axes whose size here is not that of the part's own site, each as a product of the
            operator's own axes, such as ``{"K": "G*R"}``.
    """

    parts: tuple[str, ...]
    compose: Callable[..., Any]
    rows: Mapping[str, str] = field(default_factory=dict)
    axes: Mapping[str, Mapping[str, str]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Contract:
    """What one operator means.

    Attributes:
        name: the operator's name, final.
        summary: one sentence: what the caller gets.
        source: the section or paper from which the rule comes.
        phases: where in the cycle it runs: ``draft``, ``verify``, ``commit``.
        parameters: arguments and options in the order of the signature.
        outputs: what it returns, in order; then what written arguments hold.
        rows: symbol of the dynamic axis, the one that plans are bucketed by.
        reference: plain torch implementation with the contract's signature.
        cases: ``cases(scale, seed)`` yields test inputs; ``scale`` is ``small`` (seconds in an interpreter) or
            ``model`` (the sizes of DeepSeek-V4.1-Flash).
        sites: the places of a model where the operator is called.
        semantics: rules with named choices.
        decomposition: for a fused operator, the parts that serve it when no fused kernel may.
        small: torch operations are good enough on an accelerator (a few hundred bytes moved).
        empty: what a call with zero rows does.
        rules: for outputs that are exact given another one: output name to ``rule(inputs, outputs)``, which computes
            what this output must be from the call's own other outputs. `inputs` are those before the call.
        sizes: axes that no argument has: symbol to the option that is its size.
        version: version of the contract; a change of meaning makes a new one.
    """

    name: str
    summary: str
    source: str
    phases: tuple[str, ...]
    parameters: tuple[Argument | Option, ...]
    outputs: tuple[Output, ...]
    rows: str
    reference: Callable[..., Any]
    cases: Callable[[str, int], Iterator[Case]]
    sites: Callable[[ModelShapes], tuple[Site, ...]]
    semantics: tuple[Semantic, ...] = ()
    decomposition: Decomposition | None = None
    small: bool = False
    empty: str = "returns empty outputs and launches nothing"
    rules: Mapping[str, Callable[[Mapping[str, Any], Mapping[str, Any]], Any]] = field(default_factory=dict)
    sizes: Mapping[str, str] = field(default_factory=dict)
    version: int = 1

    @property
    def arguments(self) -> tuple[Argument, ...]:
        """The tensor arguments, in order."""
        return tuple(parameter for parameter in self.parameters if isinstance(parameter, Argument))

    @property
    def options(self) -> tuple[Option, ...]:
        """The plain arguments, in order."""
        return tuple(parameter for parameter in self.parameters if isinstance(parameter, Option))

    @property
    def axes(self) -> tuple[str, ...]:
        """Symbols of all axes, in the order of their first use."""
        seen: dict[str, None] = {}
        for shape in (item.shape for group in (self.arguments, self.outputs) for item in group):
            for entry in shape:
                if isinstance(entry, str):
                    seen.update(dict.fromkeys(symbol for symbol in _symbols(entry)))
        return tuple(seen)

    @property
    def rows_from(self) -> tuple[int, int]:
        """Index of the parameter, and its dimension, whose size is the number of rows."""
        for index, parameter in enumerate(self.parameters):
            if isinstance(parameter, Argument) and not parameter.optional and self.rows in parameter.shape:
                return index, parameter.shape.index(self.rows)
        raise ValueError(f"contract {self.name}: no required argument has the rows axis {self.rows!r} by itself")

    def signature(self) -> inspect.Signature:
        """Return the signature that the reference and every kernel have."""
        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
        return inspect.Signature(
            [inspect.Parameter(parameter.name, kind, default=parameter.default) for parameter in self.parameters]
        )


def _symbols(entry: str) -> list[str]:
    return [
        part
        for part in entry.replace("+", "*").replace("/", "*").replace("(", "").replace(")", "").split("*")
        if part.isidentifier()
    ]
