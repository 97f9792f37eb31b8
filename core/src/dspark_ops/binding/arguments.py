"""Arguments against a contract: kinds, sizes and values, each refused with what was wanted and what was got."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Final

from dspark_ops._lazy import torch
from dspark_ops.contracts.contract import Argument, Contract, Option
from dspark_ops.contracts.values import Values, evaluate, unknown_names

if TYPE_CHECKING:
    from torch import Tensor

_TYPES: Final[Mapping[str, tuple[type, ...]]] = {"int": (int,), "float": (int, float), "bool": (bool,), "str": (str,)}


class Refused(Exception):
    """An argument is outside the contract; the text names it, what was wanted and what was got."""


@dataclass(frozen=True, slots=True)
class _Bounds:
    """The bounds of a rule as numbers."""

    least: int | None
    most: int | None

    def hold(self, value: float) -> bool:
        return (self.least is None or value >= self.least) and (self.most is None or value <= self.most)


def check_kinds(contract: Contract, arguments: Mapping[str, Any], device_type: str | None) -> None:
    """Check each argument by itself, and that all tensors are on one device.

    Raises:
        Refused: a tensor is missing or has another dtype, rank, stride form or device than the contract admits, or an
            option another type or a value that is no choice.
    """
    first: tuple[str, Any] | None = None
    for parameter in contract.parameters:
        value = arguments[parameter.name]
        if isinstance(parameter, Option):
            _check_option(parameter, value)
        elif value is None and parameter.optional:
            continue
        else:
            _check_tensor(parameter, value)
            where = value.device
            if where.type == "meta" or (device_type is not None and where.type != device_type):
                wanted = device_type or "a device with storage"
                raise Refused(f"argument {parameter.name}: wanted device {wanted}, got {where}")
            first = first or (parameter.name, where)
            if where != first[1]:
                raise Refused(f"argument {parameter.name}: wanted device {first[1]}, where {first[0]} is, got {where}")


def _check_option(option: Option, value: Any) -> None:
    if value is None and (option.optional or option.default is None):
        return
    wanted = _TYPES[option.type]
    if not isinstance(value, wanted) or (isinstance(value, bool) and bool not in wanted):
        raise Refused(f"option {option.name}: wanted {option.type}, got {value!r} ({type(value).__name__})")
    if option.choices and value not in option.choices:
        raise Refused(f"option {option.name}: wanted one of {', '.join(map(repr, option.choices))}, got {value!r}")


def _check_tensor(argument: Argument, value: Any) -> None:
    name = argument.name
    if not isinstance(value, torch.Tensor):
        got = "None" if value is None else f"{type(value).__name__} {value!r:.40}"
        raise Refused(f"argument {name}: wanted a tensor{' or None' if argument.optional else ''}, got {got}")
    dtype = str(value.dtype).removeprefix("torch.")
    if dtype not in argument.dtypes:
        raise Refused(f"argument {name}: wanted dtype {' or '.join(argument.dtypes)}, got {dtype}")
    if value.dim() != len(argument.shape):
        raise Refused(
            f"argument {name}: wanted {len(argument.shape)} dimensions {_shape(argument.shape)}, "
            f"got {value.dim()}: {_shape(value.shape)}"
        )
    if argument.strides == "contiguous" and not value.is_contiguous():
        raise Refused(
            f"argument {name}: wanted contiguous, got strides {_shape(value.stride())} for {_shape(value.shape)}"
        )
    spaced = value.numel() and value.dim() and value.shape[-1] > 1 and value.stride(-1) != 1
    if argument.strides == "unit_last" and spaced:
        raise Refused(f"argument {name}: wanted a last stride of 1, got strides {_shape(value.stride())}")


def check_sizes(contract: Contract, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the sizes of the axis symbols, which must be the same wherever a symbol or a formula of symbols occurs.

    A formula in which one symbol is not known yet gives its size; one with several unknown symbols is compared as a
    whole with the same formula elsewhere.

    Raises:
        Refused: two sizes do not fit each other.
    """
    sizes: dict[str, Any] = {}
    origins: dict[str, str] = {}
    open_entries = [
        (argument.name, dimension, entry, int(arguments[argument.name].shape[dimension]))
        for argument in contract.arguments
        if arguments[argument.name] is not None
        for dimension, entry in enumerate(argument.shape)
        if entry != "*"
    ]
    while open_entries:
        left = [item for item in open_entries if not _settle(*item, sizes, origins)]
        if len(left) == len(open_entries):
            name, dimension, entry, size = left.pop(0)
            sizes[str(entry)], origins[str(entry)] = size, f"{name}[{dimension}]"
            left = [item for item in left if not _same_formula(*item, sizes, origins)]
        open_entries = left
    return sizes


def _settle(
    name: str, dimension: int, entry: int | str, size: int, sizes: dict[str, Any], origins: dict[str, str]
) -> bool:
    """Compare one size, or take a symbol's size from it; False if that has to wait for other symbols."""
    unknown = unknown_names(entry, sizes) if isinstance(entry, str) else ()
    if len(unknown) > 1:
        return False
    if not unknown:
        wanted = evaluate(entry, sizes)
        if wanted != size:
            raise Refused(_size_text(name, dimension, entry, wanted, size, origins))
        return True
    at_0, at_1 = (evaluate(entry, {**sizes, unknown[0]: number}) for number in (0, 1))
    found = Fraction(size - at_0) / Fraction(at_1 - at_0) if at_1 != at_0 else Fraction(0)
    if found < 0 or found.denominator != 1 or evaluate(entry, {**sizes, unknown[0]: int(found)}) != size:
        raise Refused(
            f"argument {name}: wanted {entry} in dimension {dimension}, got {size}, for which no {unknown[0]} is whole"
        )
    sizes[unknown[0]], origins[unknown[0]] = int(found), f"{name}[{dimension}]"
    return True


def _same_formula(
    name: str, dimension: int, entry: int | str, size: int, sizes: dict[str, Any], origins: dict[str, str]
) -> bool:
    if entry not in sizes:
        return False
    if sizes[str(entry)] != size:
        raise Refused(_size_text(name, dimension, entry, sizes[str(entry)], size, origins))
    return True


def _size_text(name: str, dimension: int, entry: int | str, wanted: Any, size: int, origins: Mapping[str, str]) -> str:
    given = "" if isinstance(entry, int) else f"{entry} = "
    symbols = [entry] if entry in origins else unknown_names(entry, {}) if isinstance(entry, str) else ()
    where = ", ".join(f"{symbol} from {origins[str(symbol)]}" for symbol in symbols if symbol in origins)
    return (
        f"argument {name}: wanted {given}{wanted} in dimension {dimension}{f' ({where})' if where else ''}, got {size}"
    )


def check_values(contract: Contract, arguments: Mapping[str, Any], sizes: Mapping[str, Any]) -> None:
    """Check the values that the contract bounds; reads them from the device.

    Raises:
        Refused: a value is outside its bounds; the text has the first one and its place.
    """
    names = {**arguments, **sizes}
    for parameter in contract.parameters:
        value, rule = arguments[parameter.name], parameter.values
        if rule is None or value is None:
            continue
        least, most = _bound(rule.least, names), _bound(rule.most, names)
        counts = _bound(rule.leading, names) if rule.leading else None
        bounds = _Bounds(None if least is None else math.ceil(least), None if most is None else math.floor(most))
        if isinstance(parameter, Option):
            if value not in rule.also and not bounds.hold(value):
                raise Refused(f"option {parameter.name}: wanted {_rule_text(rule, bounds)}, got {value}")
        elif value.numel():
            _check_elements(parameter.name, value, rule, bounds, counts)


def _bound(formula: int | str | None, names: Mapping[str, Any]) -> Any:
    """Return the value of a formula; None if there is none, or if it names an argument that is not given."""
    if formula is None or (isinstance(formula, str) and unknown_names(formula, names)):
        return None
    return evaluate(formula, names)


def _check_elements(name: str, value: Tensor, rule: Values, bounds: _Bounds, counts: Any) -> None:
    wrong = torch.zeros(value.shape, dtype=torch.bool, device=value.device)
    if bounds.least is not None:
        wrong |= value < bounds.least
    if bounds.most is not None:
        wrong |= value > bounds.most
    for special in rule.also:
        wrong &= value != special
    if counts is not None:
        columns = torch.arange(value.shape[-1], device=value.device)
        leading = torch.ceil(counts).unsqueeze(-1) if isinstance(counts, torch.Tensor) else math.ceil(counts)
        wrong &= columns < leading
    if bool(wrong.any()):
        place = wrong.nonzero()[0].tolist()
        got = value[tuple(place)].item()
        raise Refused(f"argument {name}: wanted values {_rule_text(rule, bounds)}, got {got} at {place}")


def _rule_text(rule: Values, bounds: _Bounds) -> str:
    """Return the bounds as numbers, and their formulas where they are such."""
    formulas = [str(bound) for bound in (rule.least, rule.most) if isinstance(bound, str)]
    text = str(Values(bounds.least, bounds.most, rule.also)) + (f" ({', '.join(formulas)})" if formulas else "")
    return f"{text} in the first {rule.leading} columns" if rule.leading else text


def _shape(sizes: Any) -> str:
    return f"[{', '.join(map(str, sizes))}]"
