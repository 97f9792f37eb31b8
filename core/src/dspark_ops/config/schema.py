"""The configuration tree as pydantic models: which tables and keys exist, and which type each value has."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, ValidationError

from dspark_ops.suggest import did_you_mean

__all__ = ["Tree", "schema_faults"]

RankName = Literal["fused", "portable", "composed", "reference"]
EvidenceName = Literal["declared", "compiled", "interpreted", "conformant", "measured"]
Path = tuple[str, ...]


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class PolicyTable(_Table):
    """``[policy]``: how strict planning is."""

    fallback: Literal["fail", "warn", "allow"] | None = None
    require_class: RankName | None = None
    plugin_error: Literal["fail", "warn"] | None = None
    lock: Literal["off", "prefer", "require"] | None = None
    evidence: EvidenceName | None = None
    smoke: Literal["off", "on"] | None = None
    smoke_seconds: int | None = None
    rank_mismatch: Literal["fail", "leader"] | None = None


class PluginsTable(_Table):
    """``[plugins]``: which plugins may load, by name."""

    allow: list[str] | None = None
    deny: list[str] | None = None


class DeviceTable(_Table):
    """``[device]``: what is planned for when no device is named."""

    simulate: str | None = None


class FilesTable(_Table):
    """``[files]``: what is read beside the configuration."""

    lock: str | None = None
    evidence: list[str] | None = None
    known_bad: list[str] | None = None
    measured: str | None = None


class OperatorTable(_Table):
    """``[ops.<name>]``: what serves one operator."""

    pin: str | None = None
    deny: list[str] | None = None
    order: list[str] | None = None
    require_class: RankName | None = None


class Tree(_Table):
    """The whole file. Every leaf may be absent: each source is checked by itself, before they are merged."""

    policy: PolicyTable = PolicyTable()
    plugins: PluginsTable = PluginsTable()
    device: DeviceTable = DeviceTable()
    files: FilesTable = FilesTable()
    layouts: dict[str, list[str]] = {}
    ops: dict[str, OperatorTable] = {}


_TABLES: dict[str, type[BaseModel]] = {
    "policy": PolicyTable,
    "plugins": PluginsTable,
    "device": DeviceTable,
    "files": FilesTable,
    "ops": OperatorTable,
}
_TYPES = {str: "text", bool: "a boolean", int: "a whole number", float: "a number", list: "a list", dict: "a table"}


def schema_faults(tree: Mapping[str, Any]) -> Iterator[tuple[Path, str, str, str, str]]:
    """Yield each fault of one source's `tree`: the path of the value, what is wrong, wanted, got, and a hint."""
    try:
        Tree.model_validate(dict(tree))
    except ValidationError as error:
        seen: set[Path] = set()
        for entry in error.errors(include_url=False):
            path = tuple(str(part) for part in entry["loc"])
            if path not in seen:
                seen.add(path)
                yield _fault(path, entry)


def _fault(path: Path, entry: Mapping[str, Any]) -> tuple[Path, str, str, str, str]:
    name = ".".join(path)
    value = entry["input"]
    if entry["type"] == "extra_forbidden":
        known = _keys_beside(path)
        what = "unknown table" if isinstance(value, Mapping) else "unknown key"
        return path, f"{what} {name}", f"one of {', '.join(known)}", path[-1], did_you_mean(path[-1], known)
    if entry["type"] == "literal_error":
        choices = _choices(path)
        hint = did_you_mean(value, choices) if isinstance(value, str) else ""
        return path, f"wrong value of {name}", " or ".join(choices), _shown(value), hint
    kinds = {"string_type": "text", "list_type": "a list of texts", "int_type": "a whole number"}
    wanted = kinds.get(entry["type"], "a table")
    return path, f"wrong type of {name}", wanted, _shown(value), ""


def _keys_beside(path: Path) -> list[str]:
    table = Tree if len(path) == 1 else _TABLES[path[0]]
    return sorted(table.model_fields)


def _choices(path: Path) -> tuple[str, ...]:
    annotation = _TABLES[path[0]].model_fields[path[-1]].annotation
    for member in (annotation, *get_args(annotation)):
        if choices := tuple(choice for choice in get_args(member) if isinstance(choice, str)):
            return choices
    return ()


def _shown(value: Any) -> str:
    return f"{value!r} ({_TYPES.get(type(value), type(value).__name__)})"
