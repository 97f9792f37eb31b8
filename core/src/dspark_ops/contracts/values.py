"""Rules for the values of arguments, and the small formulas in which contracts state sizes and bounds."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from typing import Any, Final

_OPERATORS: Final[Mapping[type[ast.operator], Callable[[Any, Any], Any]]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}


@dataclass(frozen=True, slots=True)
class Values:
    """The values that an integer argument or option may hold: outside, an implementation may touch foreign memory.

    Bounds are numbers or formulas (see `evaluate`) of axis symbols (``"V-1"``), options (``"page_size-1"``) and sizes
    of other arguments (``"freqs[0]-1"``). A rule says nothing where its formula names an argument that is None.

    Attributes:
        least, most: the bounds, both admitted; None for no bound.
        also: values outside the bounds that have a meaning of their own.
        leading: formula of the number of leading columns that count, where it is not all of them; an argument with
            one element per row stands for the row's value: ``"lengths/page_size"``. Fractions are rounded up.
    """

    least: int | str | None = 0
    most: int | str | None = None
    also: tuple[int, ...] = ()
    leading: str = ""

    def __str__(self) -> str:
        if self.most is None:
            text = f"{self.least} or more"
        else:
            text = f"{self.most} or less" if self.least is None else f"{self.least} to {self.most}"
        return f"{text}, or {', '.join(map(str, self.also))}" if self.also else text


def index_into(size: int | str, also: tuple[int, ...] = (), leading: str = "") -> Values:
    """Return the rule for indices below `size`."""
    return Values(0, f"{size}-1", also, leading)


def between(least: int | str | None, most: int | str | None, also: tuple[int, ...] = ()) -> Values:
    """Return the rule for values from `least` to `most`, both admitted."""
    return Values(least, most, also)


def evaluate(formula: int | str, names: Mapping[str, Any]) -> Any:
    """Return the value of a formula of ``+ - * /``, parentheses, numbers, names and sizes such as ``cache[0]``.

    Args:
        formula: a number, or a text such as ``"D/32"``.
        names: numbers and tensors by name. A quotient of integers is a `Fraction`; no rounding takes place.

    Raises:
        KeyError: a name is missing, or has the value None.
        ValueError: the text is no such formula.
    """
    return formula if isinstance(formula, int) else _value(_parse(formula), names)


def unknown_names(formula: str, names: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the names in a formula that have no value yet, each once."""
    found = [node.id for node in ast.walk(_parse(formula)) if isinstance(node, ast.Name)]
    return tuple(dict.fromkeys(name for name in found if names.get(name) is None))


@cache
def _parse(formula: str) -> ast.expr:
    return ast.parse(formula, mode="eval").body


def _value(node: ast.expr, names: Mapping[str, Any]) -> Any:
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        return node.value
    if isinstance(node, ast.Name):
        if names.get(node.id) is None:
            raise KeyError(node.id)
        return names[node.id]
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
        return _value(node.value, names).shape[node.slice.value]
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        left, right = _value(node.left, names), _value(node.right, names)
        if isinstance(node.op, ast.Div) and isinstance(left, int):
            left = Fraction(left)
        return _OPERATORS[type(node.op)](left, right)
    raise ValueError(f"cannot evaluate {ast.unparse(node)!r}: wanted numbers, names, name[dimension] and + - * /")
