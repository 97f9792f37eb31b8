"""Frozen values to plain JSON data and back, by their field types, so that a new field is written and read at once."""

from __future__ import annotations

import types
from collections.abc import Collection, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache
from typing import Any, Union, get_args, get_origin, get_type_hints


def encode(value: Any) -> Any:
    """Return `value` with dataclasses as objects, enums as their values, tuples as lists and sets as sorted lists."""
    if isinstance(value, Enum):
        return value.value
    if is_dataclass(value):
        return {name: encode(getattr(value, name)) for name in _names(type(value))}
    if isinstance(value, Mapping):
        return {str(key): encode(item) for key, item in value.items()}
    if isinstance(value, (set, frozenset)):
        return sorted(map(encode, value))
    if isinstance(value, (tuple, list)):
        return [encode(item) for item in value]
    return value


def decode(kind: Any, data: Any) -> Any:
    """Return the value of type `kind` that `data` encodes.

    Raises:
        ValueError: a field is missing or unknown, or a value does not have its type.
    """
    if is_dataclass(kind):
        hints = _hints(kind)
        if not isinstance(data, dict) or data.keys() != hints.keys():
            got = sorted(data) if isinstance(data, dict) else data
            raise ValueError(f"{getattr(kind, '__name__', kind)}: wanted the fields {sorted(hints)}, got {got}")
        return kind(**{name: decode(hint, data[name]) for name, hint in hints.items()})  # type: ignore[operator]
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        (inner,) = (argument for argument in arguments if argument is not type(None))
        return None if data is None else decode(inner, data)
    if origin is tuple:
        if arguments[-1] is Ellipsis:
            return tuple(decode(arguments[0], item) for item in data)
        return tuple(decode(argument, item) for argument, item in zip(arguments, data, strict=True))
    if origin is frozenset:
        return frozenset(decode(arguments[0], item) for item in data)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return {key: decode(arguments[1], item) for key, item in data.items()}
    if kind is Any:
        return data
    if issubclass(kind, Enum):
        return kind(data)
    if not isinstance(data, kind):
        raise ValueError(f"wanted {kind.__name__}, got {data!r}")
    return data


def without(data: Any, keys: Collection[str]) -> Any:
    """Return JSON data without the entries of these keys, at any depth."""
    if isinstance(data, dict):
        return {key: without(item, keys) for key, item in data.items() if key not in keys}
    return [without(item, keys) for item in data] if isinstance(data, list) else data


@cache
def _names(kind: type) -> tuple[str, ...]:
    return tuple(field.name for field in fields(kind))


@cache
def _hints(kind: type) -> dict[str, Any]:
    hints = get_type_hints(kind)
    return {field.name: hints[field.name] for field in fields(kind)}
