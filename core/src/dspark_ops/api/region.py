"""Regions: where a kernel is valid, written as a list of constraints on axes, dtypes, strides, layouts and options.

Each constraint is a frozen value with a text. It is evaluated on plain numbers and strings: no tensor, no torch.

    region=[dtype("x", "float32"), axis("R").between(1, 64), axis("V").at_least(4096), option("nan").is_("first")]
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from dspark_ops.api.reason import Reason, ReasonCode


class Facts(Protocol):
    """What a constraint may look at: the facts of one problem.

    ``axes`` maps axis names to sizes, ``dtypes`` argument names to torch dtype names, ``strides`` argument names to
    one of ``contiguous``, ``unit_last``, ``any``, ``layouts`` argument names to layout names, ``options`` option names
    to values (the contract's semantics, such as ``nan`` and ``ties``, are options too).
    """

    @property
    def axes(self) -> Mapping[str, int]:
        """Sizes by axis name."""

    @property
    def dtypes(self) -> Mapping[str, str]:
        """Dtype names by argument."""

    @property
    def strides(self) -> Mapping[str, str]:
        """Stride forms by argument."""

    @property
    def layouts(self) -> Mapping[str, str]:
        """Layout names by argument."""

    @property
    def options(self) -> Mapping[str, Any]:
        """Values by option and by semantic field."""


@dataclass(frozen=True, slots=True)
class Constraint:
    """One condition on one subject of a problem.

    Attributes:
        kind: what the subject is: ``axis``, ``dtype``, ``stride``, ``layout``, ``option`` or ``elements``.
        subject: the axis, argument or option it speaks of.
        test: how it is compared: ``between``, ``one_of``, ``multiple_of`` or ``power_of_two``.
        values: the operands of the test.
        text: the condition in words, shown as "wanted".
    """

    kind: str
    subject: str
    test: str
    values: tuple[Any, ...]
    text: str

    def subjects(self) -> tuple[str, ...]:
        """Names of the axes that this constraint reads (empty if it reads none)."""
        if self.kind == "axis":
            return (self.subject,)
        return tuple(self.subject.split("*")) if self.kind == "elements" else ()

    def check(self, facts: Facts) -> Reason | None:
        """Return why `facts` violate this constraint, or None if they satisfy it.

        A subject that the problem does not state is a violation: silence is not consent.
        """
        got = self._value(facts)
        if got is None:
            return Reason(_CODES[self.kind], self.subject, self.text, "not stated by the problem")
        if self._holds(got):
            return None
        return Reason(_CODES[self.kind], self.subject, self.text, str(got))

    def _value(self, facts: Facts) -> Any:
        if self.kind == "elements":
            product = 1
            for name in self.subjects():
                size = facts.axes.get(name)
                if size is None:
                    return None
                product *= size
            return product
        source: Mapping[str, Any] = getattr(facts, _SOURCES[self.kind])
        return source.get(self.subject)

    def _holds(self, got: Any) -> bool:
        if self.test == "between":
            low, high = self.values
            return (low is None or got >= low) and (high is None or got <= high)
        if self.test == "multiple_of":
            return bool(got % self.values[0] == 0)
        if self.test == "power_of_two":
            return bool(got > 0 and got & (got - 1) == 0)
        return got in self.values


_SOURCES = {"axis": "axes", "dtype": "dtypes", "stride": "strides", "layout": "layouts", "option": "options"}
_CODES = {
    "axis": ReasonCode.SHAPE,
    "elements": ReasonCode.SHAPE,
    "dtype": ReasonCode.DTYPE,
    "stride": ReasonCode.STRIDE,
    "layout": ReasonCode.LAYOUT,
    "option": ReasonCode.OPTION,
}


@dataclass(frozen=True, slots=True)
class axis:
    """Constrain an axis of the contract: ``axis("R").between(1, 64)``."""

    name: str

    def between(self, low: int, high: int) -> Constraint:
        """Sizes from `low` to `high`, both included."""
        if low > high:
            raise ValueError(f"axis {self.name}: between({low}, {high}) is empty")
        return Constraint("axis", self.name, "between", (low, high), f"{low} <= {self.name} <= {high}")

    def at_least(self, low: int) -> Constraint:
        """Sizes of `low` or more."""
        return Constraint("axis", self.name, "between", (low, None), f"{self.name} >= {low}")

    def at_most(self, high: int) -> Constraint:
        """Sizes of `high` or less."""
        return Constraint("axis", self.name, "between", (None, high), f"{self.name} <= {high}")

    def one_of(self, *sizes: int) -> Constraint:
        """Exactly these sizes."""
        return Constraint("axis", self.name, "one_of", sizes, f"{self.name} in {{{', '.join(map(str, sizes))}}}")

    def multiple_of(self, step: int) -> Constraint:
        """Sizes divisible by `step`."""
        if step < 1:
            raise ValueError(f"axis {self.name}: multiple_of({step}) needs a positive step")
        return Constraint("axis", self.name, "multiple_of", (step,), f"{self.name} divisible by {step}")

    def power_of_two(self) -> Constraint:
        """Powers of two."""
        return Constraint("axis", self.name, "power_of_two", (), f"{self.name} a power of two")


@dataclass(frozen=True, slots=True)
class option:
    """Constrain an option or a semantic field of the contract: ``option("ties").is_("lowest")``."""

    name: str

    def is_(self, value: Any) -> Constraint:
        """Exactly this value."""
        return Constraint("option", self.name, "one_of", (value,), f"{self.name} = {value}")

    def one_of(self, *values: Any) -> Constraint:
        """Any of these values."""
        return Constraint("option", self.name, "one_of", values, f"{self.name} in {{{', '.join(map(str, values))}}}")


def dtype(argument: str, *names: str) -> Constraint:
    """Require that `argument` has one of these torch dtypes, by name (``float32``, ``bfloat16``, ...)."""
    return Constraint("dtype", argument, "one_of", names, " or ".join(names))


def contiguous(*arguments: str) -> tuple[Constraint, ...]:
    """Require that each named argument is contiguous."""
    return tuple(Constraint("stride", name, "one_of", ("contiguous",), "contiguous") for name in arguments)


def unit_last_stride(*arguments: str) -> tuple[Constraint, ...]:
    """Require that the last stride of each named argument is one; rows may be spaced."""
    accepted = ("contiguous", "unit_last")
    return tuple(Constraint("stride", name, "one_of", accepted, "last stride 1") for name in arguments)


def layout(argument: str, *names: str) -> Constraint:
    """Require that `argument` is stored in one of these named layouts."""
    return Constraint("layout", argument, "one_of", names, " or ".join(names))


def elements(axes: str, below: int) -> Constraint:
    """Require that a product of axes, written ``"R*V"``, stays below a count: for 32-bit offsets ``2**31``."""
    return Constraint("elements", axes, "between", (None, below - 1), f"{axes} < {below} (int32 offsets)")
