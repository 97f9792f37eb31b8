"""Every key of the configuration, with its type, values, default, variables and what it does, as texts for people."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, get_args, get_origin

from pydantic.fields import FieldInfo

from dspark_ops.config.environment import PREFIX, PROFILES, read_environment
from dspark_ops.config.schema import DeviceTable, FilesTable, OperatorTable, PluginsTable, PolicyTable, Tree
from dspark_ops.contracts.shared_layouts import SHARED_LAYOUTS
from dspark_ops.selection.settings import Files, OperatorSettings, Policy, Settings

__all__ = ["Key", "KeyTable", "key_tables", "keys_of_variables"]

#: A value of each variable that sets keys.
_SAMPLES = {"PROFILE": tuple(PROFILES), "PLUGINS": ("none",), "LOCK": ("any.lock",)}
#: Where the built-in values of each table's keys are.
_BUILT_IN: tuple[tuple[str, type[Any], Any], ...] = (
    ("policy", PolicyTable, Policy()),
    ("plugins", PluginsTable, Settings()),
    ("device", DeviceTable, Settings()),
    ("files", FilesTable, Files()),
    ("ops.<operator>", OperatorTable, OperatorSettings()),
)


@dataclass(frozen=True, slots=True)
class Key:
    """One key.

    Attributes:
        name: its name in its table.
        type: ``text``, ``list of texts`` or ``whole number``.
        admits: the values that it takes.
        default: what holds without it.
        variables: the environment variables that set it.
        does: what it does.
    """

    name: str
    type: str
    admits: str
    default: str
    variables: tuple[str, ...]
    does: str


@dataclass(frozen=True, slots=True)
class KeyTable:
    """One table of the file: its name in brackets, what it is about, and its keys in the schema's order."""

    name: str
    about: str
    keys: tuple[Key, ...]


def key_tables() -> tuple[KeyTable, ...]:
    """Return every table of the configuration with its keys."""
    setters = keys_of_variables()
    found = []
    for name, table, built_in in _BUILT_IN:
        keys = [
            _key(key, field, getattr(built_in, key), setters.get(f"{name}.{key}", ()))
            for key, field in table.model_fields.items()
        ]
        found.append(KeyTable(name, table.__doc__ or "", tuple(keys)))
    layouts = Tree.model_fields["layouts"]
    shared = tuple(
        Key(
            group.name,
            "list of texts",
            _choices(group.tokens),
            _extra(layouts, "unset"),
            (),
            f"{group.what[0].upper()}{group.what[1:]}.",
        )
        for group in SHARED_LAYOUTS.values()
    )
    found.insert(-1, KeyTable("layouts", layouts.description or "", shared))
    return tuple(found)


def keys_of_variables() -> dict[str, tuple[str, ...]]:
    """Return the variables that set each key, by the key's dotted name: what reading each of them gives."""
    found: dict[str, dict[str, None]] = {}
    for name, values in _SAMPLES.items():
        for value in values:
            for key in read_environment({PREFIX + name: value}, []).origins:
                found.setdefault(key, {})[PREFIX + name] = None
    return {key: tuple(names) for key, names in found.items()}


def _key(name: str, field: FieldInfo, built_in: Any, variables: tuple[str, ...]) -> Key:
    members = list(_members(field.annotation))
    choices = [choice for member in members if get_origin(member) is Literal for choice in get_args(member)]
    return Key(
        name=name,
        type="list of texts" if list[str] in members else "whole number" if int in members else "text",
        admits=_choices(choices) or _extra(field, "admits"),
        default=_extra(field, "unset") if built_in in (None, ()) else f"`{built_in}`",
        variables=variables,
        does=field.description or "",
    )


def _members(annotation: Any) -> Iterator[Any]:
    """Yield the alternatives of a union, or the annotation itself."""
    if get_origin(annotation) in (Literal, list) or not get_args(annotation):
        yield annotation
    else:
        for member in get_args(annotation):
            yield from _members(member)


def _choices(values: Any) -> str:
    return ", ".join(f"`{value}`" for value in values)


def _extra(field: FieldInfo, name: str) -> str:
    extra = field.json_schema_extra
    return str(extra.get(name, "")) if isinstance(extra, dict) else ""
