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
        return {item.name: encode(getattr(value, item.name)) for item in fields(value)}
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
    origin, arguments = get_origin(kind), get_args(kind)
    if kind is Any:
        return data
    if origin in (Union, types.UnionType):
        (inner,) = (argument for argument in arguments if argument is not type(None))
        return None if data is None else decode(inner, data)
    if origin is tuple and isinstance(data, list):
        kinds = arguments[:1] * len(data) if arguments[-1] is Ellipsis else arguments
        return tuple(decode(inner, item) for inner, item in zip(kinds, data, strict=True))
    if origin is frozenset and isinstance(data, list):
        return frozenset(decode(arguments[0], item) for item in data)
    if origin is Mapping and isinstance(data, dict):
        return {key: decode(arguments[1], item) for key, item in data.items()}
    if is_dataclass(kind) and isinstance(data, dict):
        return _decode_fields(kind, data)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return kind(data)
    if origin is None and not is_dataclass(kind) and isinstance(data, kind):
        return data
    raise ValueError(f"wanted {getattr(kind, '__name__', kind)}, got {data!r}")


def without(data: Any, keys: Collection[str]) -> Any:
    """Return JSON data without the entries of these keys, at any depth."""
    if isinstance(data, dict):
        return {key: without(item, keys) for key, item in data.items() if key not in keys}
    return [without(item, keys) for item in data] if isinstance(data, list) else data


def without_own(data: dict[str, Any], keys: Collection[str]) -> dict[str, Any]:
    """Return a JSON object without these keys of its own; what lies deeper stays."""
    return {key: item for key, item in data.items() if key not in keys}


def _decode_fields(kind: Any, data: dict[str, Any]) -> Any:
    hints = _hints(kind)
    if data.keys() != hints.keys():
        raise ValueError(f"{kind.__name__}: wanted the fields {sorted(hints)}, got {sorted(data)}")
    return kind(**{name: decode(hint, data[name]) for name, hint in hints.items()})


@cache
def _hints(kind: Any) -> dict[str, Any]:
    hints = get_type_hints(kind)
    return {item.name: hints[item.name] for item in fields(kind)}
