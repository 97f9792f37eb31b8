"""Is an arm right? What is looked at before anything is timed: its kernels, and its tokens (C4.4, R4.13)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from dspark_ops import contracts
from dspark_ops._lazy import torch
from dspark_ops.bench.agreement import Wanted
from dspark_ops.binding.observed import Place
from dspark_ops.conformance.numbers import outputs_of
from dspark_ops.contracts.contract import Contract
from dspark_ops.errors import ContractError
from dspark_ops.selection.candidate import CORE

__all__ = ["LAW_LEVEL", "KernelCheck", "all_bitwise", "same_law", "sizes_of"]

Function = Callable[..., Any]

#: Calls of one kernel that are held against the reference, each of other sizes or options.
_CALLS: Final = 4
#: Two samples of one law are called different so rarely: a bench that stops for nothing costs an hour.
LAW_LEVEL: Final = 1e-4
#: A cell of a table counts by itself from this many draws that are expected in it.
_LEAST_EXPECTED: Final = 5.0


class KernelCheck:
    """Holds kernels against their contracts' references on the workload's own calls.

    Of each kernel the first call of every combination of sizes and options is computed by the reference too, up to
    four of them, and every output is compared within the contract's bounds. Core's own candidates are left as they
    are: the references are the standard, and a composition is made of parts that are looked at one by one.
    """

    def __init__(self) -> None:
        self._met: dict[Place, set[Any]] = {}
        self._wrong: dict[Place, str] = {}

    def around(self, place: Place, function: Function) -> Function:
        """Return `function` with its first calls compared; what it returns and writes is its own."""
        if place.kernel.partition("/")[0] == CORE:
            return function
        contract, met = contracts.get(place.operator), self._met.setdefault(place, set())
        signature = contract.signature()

        def compared(*arguments: Any, **named: Any) -> Any:
            bound = signature.bind(*arguments, **named)
            bound.apply_defaults()
            key = sizes_of(bound.arguments.values())
            if key in met or len(met) >= _CALLS:
                return function(*arguments, **named)
            met.add(key)
            # the reference first, since the kernel may write into what it is given
            try:
                wanted = Wanted(contract, {name: _copy(value) for name, value in bound.arguments.items()})
            except ContractError as error:
                self._wrong.setdefault(place, f"was called outside of its contract: {error}")
                return function(*arguments, **named)
            returned = function(*arguments, **named)
            if wrong := wanted.disagreement(outputs_of(contract, returned, bound.arguments)):
                self._wrong.setdefault(place, wrong)
            return returned

        return compared

    def text(self) -> str:
        """Return ``passed: ...`` with what was looked at, or ``failed: ...`` with what is wrong."""
        if self._wrong:
            found = "; ".join(f"{place.kernel}: {wrong}" for place, wrong in self._wrong.items())
            return f"failed: {found}"
        called = {place.kernel: len(sizes) for place, sizes in self._met.items() if sizes}
        if not called:
            return "passed: core's references served every call"
        return f"passed: {sum(called.values())} calls of {len(called)} kernels give what the references give"


def all_bitwise(contract: Contract) -> bool:
    """Return whether every output of a contract is exact to the bit, so that kernels cannot be told apart by them."""
    return all(output.exact.kind == "bitwise" for output in contract.outputs)


def same_law(first: Sequence[Sequence[int]], second: Sequence[Sequence[int]]) -> tuple[float, int]:
    """Return the least p-value of "both samples come from one law", and over how many positions it was sought.

    Position by position, the tokens of both samples are a table of two rows; tokens that are too rare for a chi-square
    test count as one. The first position is left out, as it does not come from a verify step. Multiply the p-value by
    the positions before it is judged.

    Args:
        first: token sequences of independent draws.
        second: token sequences of others.
    """
    from scipy.stats import chi2_contingency

    values = []
    for position in range(1, min(map(len, (*first, *second)))):
        counts = [Counter(row[position] for row in sample) for sample in (first, second)]
        table = list(_pooled(counts[0], counts[1]))
        if len(table) > 1:
            values.append(float(chi2_contingency([*zip(*table, strict=True)]).pvalue))
    return min(values, default=1.0), len(values)


def sizes_of(values: Any) -> tuple[Any, ...]:
    """Return what tells two calls apart but for the numbers in their tensors: shapes, dtypes and options."""
    return tuple(map(_size, values))


def _pooled(first: Counter[int], second: Counter[int]) -> Iterator[tuple[int, int]]:
    """Yield both counts of each token, those of the rare ones in one cell at the end."""
    share = min(first.total(), second.total()) / max(first.total() + second.total(), 1)
    rest = [0, 0]
    for token in sorted(first.keys() | second.keys()):
        if (first[token] + second[token]) * share >= _LEAST_EXPECTED:
            yield first[token], second[token]
        else:
            rest = [rest[0] + first[token], rest[1] + second[token]]
    if any(rest):
        yield rest[0], rest[1]


def _size(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return tuple(value.shape), value.dtype
    return value if isinstance(value, int | float | str | bool | None) else id(type(value))


def _copy(value: Any) -> Any:
    return value.clone() if isinstance(value, torch.Tensor) else value
