"""Bound operators with something around each of their functions, for a bench; users' operators stay as they are."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from types import SimpleNamespace
from typing import Any

from dspark_ops.binding.bound import BoundOps, Function
from dspark_ops.selection.plan import Choice, Plan
from dspark_ops.selection.rows import rows_of

__all__ = ["Place", "observed"]


@dataclass(frozen=True, slots=True)
class Place:
    """What a function serves.

    Attributes:
        operator: name of the operator.
        kernel: id of the kernel.
        rank: class of the kernel.
        composed: the function only calls the operator's parts, each of which has a place of its own.
    """

    operator: str
    kernel: str
    rank: str
    composed: bool


def observed(ops: BoundOps, around: Callable[[Place, Function], Function]) -> BoundOps:
    """Return other bound operators of the same plan, each function `f` of which is ``around(place, f)``.

    Nothing is prepared again: the kernels are those of `ops`, with the choices that their preparation made. Parts of a
    composed operator are reached too, before the whole. One function that serves one operator at several sites stays
    one function.

    Args:
        ops: operators that were bound without ``check``.
        around: returns what is called in place of a function; the function itself leaves it as it is.
    """
    work = _Rebuild(around)
    tables: dict[str, dict[str, dict[int, Function]]] = {
        name: {site: dict(by_rows) for site, by_rows in table.items()} for name, table in ops._tables.items()
    }
    plan: Plan = ops.plan
    for selection in plan.selections:
        by_rows = tables[selection.operator][selection.site]
        for choice in selection.choices:
            for count in rows_of(choice.rows):
                by_rows[count] = work.function(selection.operator, choice, by_rows[count])
    return BoundOps.freeze(plan, tables, ops._contracts)


@dataclass(slots=True)
class _Rebuild:
    around: Callable[[Place, Function], Function]
    made: dict[tuple[Place, Function], Function] = field(default_factory=dict)

    def function(self, operator: str, choice: Choice, function: Function) -> Function:
        """Return the replacement of one function, the same for equal places."""
        parts = _parts(function) if choice.parts else None
        place = Place(operator, choice.kernel.id, choice.kernel.rank.value, parts is not None)
        key = (place, function)
        if key not in self.made:
            inner = function
            if parts is not None and isinstance(function, partial):
                replaced = {
                    part.operator: self.function(part.operator, part.choices[0], parts[part.operator])
                    for part in choice.parts
                }
                if any(replaced[name] is not parts[name] for name in replaced):
                    inner = partial(function.func, SimpleNamespace(**replaced))
            self.made[key] = self.around(place, inner)
        return self.made[key]


def _parts(function: Function) -> dict[str, Any] | None:
    """Return the parts of a composition that binding made, by operator; None for any other function."""
    if isinstance(function, partial) and len(function.args) == 1 and isinstance(function.args[0], SimpleNamespace):
        return vars(function.args[0])
    return None
