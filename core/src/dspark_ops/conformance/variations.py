"""More cases, made from a contract's own: other views, dtypes of positions, row counts, and poisoned padding.

Special values (NaN, infinities, ties, denormals, edges of powers of two) are the contract's own cases: only a contract
knows where they matter. Everything here keeps to the contract, and what cannot be made from a case is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dspark_ops._lazy import torch
from dspark_ops.binding.facts import outside, rows_of_inputs
from dspark_ops.conformance.numbers import reference_outputs
from dspark_ops.conformance.reshape import by_rows, converted, displaced, resized, restrided
from dspark_ops.contracts.contract import Argument, Case, Contract

if TYPE_CHECKING:
    from torch import Tensor

__all__ = [
    "ROW_COUNTS",
    "Variation",
    "bases",
    "elements",
    "rows_are_independent",
    "runs_on_reference",
    "same_bits",
    "variations",
]

#: Row counts around the powers of two up to 64 at which tiles and grids change.
ROW_COUNTS = (1, 2, 3, 5, 8, 15, 16, 17, 31, 33, 63, 64)
_BASES = 4
_ELEMENTS = 1 << 22

#: Arguments that mark rows as padding: which of the rows are.
_PADDING: Mapping[str, Callable[[Tensor, int], Tensor]] = {
    "num_valid": lambda value, rows: torch.arange(rows) >= int(value.reshape(-1)[0]),
    "verify_lens": lambda value, rows: value == 0,
    "correct_len": lambda value, rows: value < 0,
    "out_loc": lambda value, rows: value < 0,
}


@dataclass(frozen=True, slots=True)
class Variation:
    """A case made from another one.

    Attributes:
        case: name and inputs.
        rows: mask of the rows whose results count, or None for all.
    """

    case: Case
    rows: Any = None


def bases(contract: Contract, cases: Iterable[Case], accepts: Callable[[Mapping[str, Any]], bool]) -> list[Case]:
    """Return a few of the cases to make others from: the smallest with rows, of each combination of options."""
    smallest: dict[str, tuple[int, Case]] = {}
    for case in cases:
        if rows_of_inputs(contract, case.inputs) < 2 or not accepts(case.inputs):
            continue
        key = repr({option.name: case.inputs.get(option.name, option.default) for option in contract.options})
        size = elements(case.inputs)
        if key not in smallest or size < smallest[key][0]:
            smallest[key] = (size, case)
    return [case for _, case in sorted(smallest.values(), key=lambda entry: entry[0])[:_BASES]]


def variations(
    contract: Contract, cases: list[Case], accepts: Callable[[Mapping[str, Any]], bool]
) -> Iterator[Variation]:
    """Yield the variations that lie in a contract and in a region.

    Args:
        contract: the operator.
        cases: the contract's cases.
        accepts: whether a kernel's region admits inputs.
    """
    chosen = bases(contract, cases, accepts)
    for number, base in enumerate(chosen):
        made = [*_views(contract, base), *_integers(contract, base), *_written(contract, base)]
        if number == 0:
            counts = {rows_of_inputs(contract, case.inputs) for case in cases if accepts(case.inputs)}
            made += _row_counts(contract, base, counts)
        for name, inputs in made:
            if accepts(inputs) and runs_on_reference(contract, inputs):
                yield Variation(Case(f"{name} of {base.name}", inputs))
    for case in _padded(contract, [case for case in cases if accepts(case.inputs)]):
        yield from _poisoned(contract, *case, accepts)


def elements(inputs: Mapping[str, Any]) -> int:
    """Return how many elements the tensors of a call have together."""
    return sum(value.numel() for value in inputs.values() if isinstance(value, torch.Tensor))


def runs_on_reference(contract: Contract, inputs: Mapping[str, Any], limit: int = _ELEMENTS) -> bool:
    """Return whether a made-up call is in its contract, as far as that is checked, and its reference takes it."""
    if elements(inputs) > limit or outside(contract, inputs):
        return False
    try:
        reference_outputs(contract, inputs)
    except Exception:  # the reference refuses it or trips over it: then it is no call that a kernel must take
        return False
    return True


def rows_are_independent(contract: Contract, inputs: Mapping[str, Any]) -> bool:
    """Return whether the reference gives each row alone what it gives it among the others, to the bit."""
    together = reference_outputs(contract, inputs)
    shared = {name: value.clone() if isinstance(value, torch.Tensor) else value for name, value in inputs.items()}

    def call(part: Mapping[str, Any]) -> dict[str, Any]:
        from dspark_ops.conformance.numbers import outputs_of

        return outputs_of(contract, contract.reference(**part), part)

    try:
        alone = by_rows(contract, call, shared)
    except Exception:  # a single row is no call of its own
        return False
    return alone is not None and all(same_bits(together[name], value) for name, value in alone.items())


def same_bits(one: Any, other: Any) -> bool:
    """Return whether two outputs are equal to the bit; a NaN equals a NaN."""
    from dspark_ops.conformance.compare import compare
    from dspark_ops.contracts.exactness import bitwise

    return compare(one, other, bitwise()) is None


def _views(contract: Contract, base: Case) -> Iterator[tuple[str, dict[str, Any]]]:
    def each(change: Callable[[Argument, Tensor], Tensor | None]) -> dict[str, Any] | None:
        changed = {
            argument.name: made
            for argument in contract.arguments
            if isinstance(value := base.inputs.get(argument.name), torch.Tensor)
            and (made := change(argument, value)) is not None
        }
        return {**base.inputs, **changed} if changed else None

    views: dict[str, Callable[[Argument, Tensor], Tensor | None]] = {
        "rows spaced in wider buffers": lambda argument, value: (
            restrided(value, "unit_last") if argument.strides != "contiguous" else None
        ),
        "elements spaced": lambda argument, value: restrided(value, "any") if argument.strides == "any" else None,
        "views 16 bytes into their storage": lambda argument, value: displaced(value, 16 // value.element_size()),
        # Columns of a wider buffer may begin anywhere in it.
        "views one element into their storage": lambda argument, value: (
            displaced(value, 1) if argument.strides != "contiguous" else None
        ),
    }
    for name, change in views.items():
        inputs = each(change)
        if inputs is not None:
            yield name, inputs


def _integers(contract: Contract, base: Case) -> Iterator[tuple[str, dict[str, Any]]]:
    for argument in contract.arguments:
        value = base.inputs.get(argument.name)
        if isinstance(value, torch.Tensor) and {"int32", "int64"} <= set(argument.dtypes):
            other = "int32" if value.dtype == torch.int64 else "int64"
            yield f"{other} {argument.name}", converted(base.inputs, argument.name, other)


def _row_counts(contract: Contract, base: Case, have: set[int]) -> Iterator[tuple[str, dict[str, Any]]]:
    if 0 not in have and (none := resized(contract, base.inputs, contract.rows, 0)) is not None:
        yield "no rows", none
    if not rows_are_independent(contract, base.inputs):
        return
    for count in ROW_COUNTS:
        if count not in have and (made := resized(contract, base.inputs, contract.rows, count)) is not None:
            yield f"{count} rows", made


def _written(contract: Contract, base: Case) -> Iterator[tuple[str, dict[str, Any]]]:
    """Other contents before the call: an element that is never written then differs in one of the cases."""
    fills = {torch.uint8: 0xA5, torch.bfloat16: -7.25, torch.float16: -7.25, torch.float32: -7.25}
    changed = {}
    for argument in contract.arguments:
        value = base.inputs.get(argument.name)
        if argument.written and isinstance(value, torch.Tensor) and value.dtype in fills:
            changed[argument.name] = torch.full_like(value, fills[value.dtype])
    if changed:
        yield "other contents before the call", {**base.inputs, **changed}


def _padded(contract: Contract, cases: list[Case]) -> Iterator[tuple[Case, Tensor]]:
    """Yield a few cases of which some rows are padding and some are not, with the mask of the rows that are not."""
    found = 0
    for case in cases:
        rows = rows_of_inputs(contract, case.inputs)
        padding = torch.zeros(rows, dtype=torch.bool)
        for name, rule in _PADDING.items():
            value = case.inputs.get(name)
            if isinstance(value, torch.Tensor) and name in {argument.name for argument in contract.arguments}:
                padding |= rule(value, rows)
        if found < _BASES and padding.any() and not padding.all():
            found += 1
            yield case, ~padding


def _poisoned(
    contract: Contract, case: Case, valid: Tensor, accepts: Callable[[Mapping[str, Any]], bool]
) -> Iterator[Variation]:
    """Yield a case with NaN, then with out-of-range ids, in its padded rows, where the contract allows that."""
    from dspark_ops.conformance.reshape import row_dimension

    before = reference_outputs(contract, case.inputs)
    for what, matches in (("NaN", torch.is_floating_point), ("ids out of range", _is_integer)):
        inputs = dict(case.inputs)
        for argument in contract.arguments:
            value = inputs.get(argument.name)
            if not isinstance(value, torch.Tensor) or argument.written or argument.name in _PADDING:
                continue
            dimension = row_dimension(contract, argument.shape)
            if dimension != 0 or not matches(value) or value.element_size() == 1:
                continue
            changed = value.clone()
            per_row = value.shape[0] // len(valid)
            bad = float("nan") if what == "NaN" else torch.iinfo(value.dtype).max
            changed[(~valid).repeat_interleave(per_row)] = bad
            attempt = {**inputs, argument.name: changed}
            if _valid_rows_stay(contract, attempt, before, valid):
                inputs = attempt
        if any(inputs[name] is not case.inputs[name] for name in inputs) and accepts(inputs):
            yield Variation(Case(f"{what} in the padded rows of {case.name}", inputs), valid)


def _is_integer(value: Tensor) -> bool:
    return value.dtype in (torch.int32, torch.int64)


def _valid_rows_stay(contract: Contract, inputs: Mapping[str, Any], before: Mapping[str, Any], valid: Tensor) -> bool:
    from dspark_ops.conformance.numbers import counted_rows

    try:
        after = reference_outputs(contract, inputs)
    except Exception:  # the reference reads the value, so the contract does not leave it open
        return False
    return all(
        same_bits(
            counted_rows(contract, output, after.get(output.name), valid),
            counted_rows(contract, output, before.get(output.name), valid),
        )
        for output in contract.outputs
    )
