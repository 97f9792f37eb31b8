"""How close an output must come to the reference."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Exactness:
    """The comparison that an output must pass.

    Attributes:
        kind: ``bitwise``, ``bitwise_given`` (given another output of the same call), ``mismatch``, ``ulp``,
            ``relative``, ``absolute`` or ``law`` (equal in distribution only).
        amount: the bound for ``mismatch`` (share of the elements that the reference changed), ``ulp`` (units in the
            last place of the output's dtype), ``relative`` (Frobenius norm of the difference over that of the
            reference) and ``absolute`` (largest difference).
        given: for ``bitwise_given``, the output from which this one must follow exactly.
    """

    kind: str
    amount: float = 0.0
    given: str = ""

    def __str__(self) -> str:
        if self.kind == "bitwise_given":
            return f"bitwise given {self.given}"
        return self.kind if self.kind in ("bitwise", "law") else f"{self.kind}({self.amount:g})"


def bitwise() -> Exactness:
    """Every bit equals the reference (a NaN equals a NaN)."""
    return Exactness("bitwise")


def bitwise_given(output: str) -> Exactness:
    """Every bit follows from the operator's own `output` by the contract's rule."""
    return Exactness("bitwise_given", given=output)


def mismatch(share: float) -> Exactness:
    """Number of elements that differ, over the number that the reference changes, at most `share`.

    For bytes of quantised values, where a last-bit difference of a statistic moves a few codes by one step.
    """
    return Exactness("mismatch", share)


def ulp(count: int) -> Exactness:
    """At most `count` representable values away from the reference."""
    return Exactness("ulp", float(count))


def relative(bound: float) -> Exactness:
    """Norm of the difference over norm of the reference, at most `bound`."""
    return Exactness("relative", bound)


def absolute(bound: float) -> Exactness:
    """Largest difference, at most `bound`."""
    return Exactness("absolute", bound)


def law() -> Exactness:
    """Equal in distribution; tested by enumeration or a chi-square test."""
    return Exactness("law")
