"""Problems: all facts of one operator at one place of a model, but the row count."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from dspark_ops.contracts.contract import REQUIRED, Contract, Site


@dataclass(frozen=True, slots=True)
class Problem:
    """What a region looks at (`dspark_ops.api.region.Facts`), with the contract's defaults filled in.

    Attributes:
        operator: name of the operator.
        site: name of the place.
        axes: sizes of the static axes.
        dtypes: dtype name per tensor argument.
        strides: ``contiguous``, ``unit_last`` or ``any`` per tensor argument.
        layouts: layout name per argument that has layouts.
        options: values of options and semantics; one that the caller must give is absent where the site leaves it open.
    """

    operator: str
    site: str
    axes: Mapping[str, int] = field(default_factory=dict)
    dtypes: Mapping[str, str] = field(default_factory=dict)
    strides: Mapping[str, str] = field(default_factory=dict)
    layouts: Mapping[str, str] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def at(cls, contract: Contract, site: Site) -> Problem:
        """Return the problem that a contract poses at a site."""
        arguments = contract.arguments
        semantics = {semantic.name: semantic.default for semantic in contract.semantics}
        defaults = {option.name: option.default for option in contract.options if option.default is not REQUIRED}
        return cls(
            operator=contract.name,
            site=site.name,
            axes=dict(site.axes),
            dtypes={argument.name: argument.dtypes[0] for argument in arguments} | dict(site.dtypes),
            strides={argument.name: "contiguous" for argument in arguments} | dict(site.strides),
            layouts={item.name: item.layouts[0] for item in arguments if item.layouts} | dict(site.layouts),
            options=defaults | semantics | dict(site.options) | dict(site.semantics),
        )

    @property
    def place(self) -> tuple[str, tuple[tuple[str, int], ...]]:
        """Name of the place and sizes of its axes: a part of a fused operator has other sizes than its own site."""
        return self.site, tuple(sorted(self.axes.items()))

    def with_rows(self, symbol: str, count: int) -> Problem:
        """Return these facts with the size of the rows axis."""
        axes = {**self.axes, symbol: count}
        return Problem(self.operator, self.site, axes, self.dtypes, self.strides, self.layouts, self.options)


def part_rows(whole: Contract, part: str, problem: Problem, rows: tuple[int, ...]) -> tuple[int, ...]:
    """Return the row counts at which a part runs when its whole runs at `rows`, one for one.

    Args:
        whole: contract of the fused operator.
        part: name of one of its parts.
        problem: the fused operator's problem.
        rows: its row counts.

    Raises:
        ValueError: the decomposition names an axis that is neither the whole's rows axis nor fixed at its site.
    """
    product = whole.decomposition.rows.get(part, whole.rows) if whole.decomposition else whole.rows
    static = "*".join(symbol for symbol in product.split("*") if symbol != whole.rows)
    factor = _size(whole, part, problem, static) if static else 1
    return tuple(count * factor for count in rows)


def part_problem(whole: Contract, part: Contract, site: Site, problem: Problem) -> Problem:
    """Return what a part of a fused operator is asked: the facts of its own site, with the sizes it has in the whole.

    Args:
        whole: contract of the fused operator.
        part: contract of the part.
        site: the part's own site.
        problem: the fused operator's problem.

    Raises:
        ValueError: the decomposition names an axis that is not fixed at the whole's site.
    """
    own = Problem.at(part, site)
    sizes = whole.decomposition.axes.get(part.name, {}) if whole.decomposition else {}
    found = {symbol: _size(whole, part.name, problem, product) for symbol, product in sizes.items()}
    return replace(own, axes={**own.axes, **found})


def _size(whole: Contract, part: str, problem: Problem, product: str) -> int:
    """Return the size of a product of axes that are fixed at the whole's site."""
    size = 1
    for symbol in product.split("*"):
        if symbol not in problem.axes:
            raise ValueError(
                f"{whole.name}: part {part} has a size of {product}, but site {problem.site} fixes no axis {symbol}"
            )
        size *= problem.axes[symbol]
    return size
