"""Sources of settings: one tree of tables each, with the place of every leaf, and the checks of the names in it."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any, Final

from dspark_ops import contracts
from dspark_ops.config.fault import Fault
from dspark_ops.config.names import KERNEL_ID, PLUGIN_NAME, is_kernel_glob
from dspark_ops.config.schema import schema_faults
from dspark_ops.config.toml_lines import lines_of
from dspark_ops.contracts.shared_layouts import SHARED_LAYOUTS
from dspark_ops.errors import DeviceError
from dspark_ops.selection.catalogue import simulated_device
from dspark_ops.suggest import did_you_mean

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = ["Source", "source_from_file", "source_from_mapping", "source_from_pyproject"]

_Path = tuple[str, ...]
_PYPROJECT: Final = ("tool", "dspark-ops")
_LINE: Final = re.compile(r"\(at line (\d+), column \d+\)")


@dataclass(frozen=True, slots=True)
class Source:
    """One source of settings.

    Attributes:
        label: the file's name, ``argument`` or ``command line``.
        tree: its tables.
        lines: line of each key, for files.
        origins: origin of each dotted leaf, where a source states it itself.
    """

    label: str
    tree: Mapping[str, Any]
    lines: Mapping[_Path, int] = field(default_factory=dict)
    origins: Mapping[str, str] = field(default_factory=dict)

    def origin(self, path: _Path) -> str:
        """Return where the value at `path` is written; an element of a list gives the list's place."""
        stated = self.origins.get(".".join(path))
        if stated:
            return stated
        line = self._line(path)
        return f"{self.label}:{line}" if line else self.label

    def leaves(self) -> Iterator[tuple[_Path, Any]]:
        """Yield path and value of everything that is no table; None counts as absent."""
        yield from _leaves((), self.tree)

    def _line(self, path: _Path) -> int:
        return next((self.lines[path[:end]] for end in range(len(path), 0, -1) if path[:end] in self.lines), 0)

    def faults(self) -> list[Fault]:
        """Return everything that is wrong with this source, in the order of its lines."""
        found = [
            *((path, what, wanted, got, hint) for path, what, wanted, got, hint in schema_faults(self.tree)),
            *_name_faults(self.tree),
        ]
        found.sort(key=lambda entry: self._line(entry[0]))
        return [Fault(self.origin(path), what, wanted, got, hint) for path, what, wanted, got, hint in found]


def source_from_mapping(label: str, tree: Mapping[str, Any], origins: Mapping[str, str] | None = None) -> Source:
    """Return a source from tables that a program gives; tuples count as lists and enumerations as their values."""
    return Source(label, _plain(tree), origins=origins or {})


def source_from_file(path: Path, label: str, faults: list[Fault]) -> Source | None:
    """Return what a configuration file says, or None after adding to `faults` why it cannot be read."""
    text = _text(path, label, faults)
    tree = None if text is None else _parse(text, label, faults)
    return None if text is None or tree is None else Source(label, tree, lines_of(text))


def source_from_pyproject(path: Path, label: str, faults: list[Fault]) -> Source | None:
    """Return what ``[tool.dspark-ops]`` of a pyproject.toml says, or None if it has no such table."""
    text = _text(path, label, faults)
    if text is None or _PYPROJECT[1] not in text:
        return None
    tree = _parse(text, label, faults)
    if tree is None:
        return None
    tool = tree.get(_PYPROJECT[0], {})
    table = tool.get(_PYPROJECT[1]) if isinstance(tool, dict) else None
    if table is None:
        return None
    lines = {key[2:]: line for key, line in lines_of(text).items() if key[:2] == _PYPROJECT and len(key) > 2}
    if not isinstance(table, dict):
        faults.append(Fault(label, "wrong type of tool.dspark-ops", "a table", repr(table)))
        return None
    return Source(label, table, lines)


def _text(path: Path, label: str, faults: list[Fault]) -> str | None:
    try:
        return path.read_bytes().decode("utf-8")
    except FileNotFoundError:
        faults.append(Fault(label, "no such file", "a TOML file", str(path)))
    except UnicodeDecodeError as error:
        faults.append(
            Fault(label, "not a text file", "UTF-8", f"byte {error.object[error.start]:#04x} at {error.start}")
        )
    except OSError as error:
        faults.append(Fault(label, "cannot be read", "a TOML file", error.strerror or str(error)))
    return None


def _parse(text: str, label: str, faults: list[Fault]) -> dict[str, Any] | None:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        match = _LINE.search(str(error))
        where = f"{label}:{match[1]}" if match else label
        faults.append(Fault(where, "not valid TOML", "TOML 1.0", str(error)))
    return None


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(entry) for key, entry in value.items() if entry is not None}
    if isinstance(value, list | tuple):
        return [_plain(entry) for entry in value]
    return value.value if isinstance(value, Enum) else value


def _leaves(path: _Path, value: Any) -> Iterator[tuple[_Path, Any]]:
    if isinstance(value, Mapping):
        for key, entry in value.items():
            yield from _leaves((*path, key), entry)
    elif value is not None:
        yield path, value


def _name_faults(tree: Mapping[str, Any]) -> Iterator[tuple[_Path, str, str, str, str]]:
    """Yield the faults of names: operators, kernel ids, globs, plugins, devices. Types are the schema's matter."""
    plugins = _table(tree, "plugins")
    for key in ("allow", "deny"):
        for name in _texts(plugins.get(key)):
            if not PLUGIN_NAME.match(name):
                yield ("plugins", key), "wrong plugin name", PLUGIN_NAME.pattern, repr(name), ""
    simulate = _table(tree, "device").get("simulate")
    if isinstance(simulate, str):
        try:
            simulated_device(simulate)
        except DeviceError as error:
            yield ("device", "simulate"), "unknown device", "a device of the catalogue", repr(simulate), f": {error}"
    yield from _layout_faults(_table(tree, "layouts"))
    known = contracts.names()
    for operator, entry in _table(tree, "ops").items():
        if operator not in known:
            hint = did_you_mean(operator, known) or f"; known operators: {', '.join(known)}"
            yield ("ops", operator), "unknown operator", "the name of an operator", repr(operator), hint
        if isinstance(entry, Mapping):
            yield from _kernel_faults(operator, entry, known)


def _layout_faults(layouts: Mapping[str, Any]) -> Iterator[tuple[_Path, str, str, str, str]]:
    for name, tokens in layouts.items():
        group = SHARED_LAYOUTS.get(name)
        if group is None:
            wanted = " or ".join(SHARED_LAYOUTS)
            yield ("layouts", name), "unknown shared layout", wanted, repr(name), did_you_mean(name, SHARED_LAYOUTS)
            continue
        if tokens == []:
            yield ("layouts", name), "no layout", "the layouts that the caller can make", "[]", ""
        for token in _texts(tokens):
            if token not in group.tokens:
                wanted, hint = " or ".join(group.tokens), did_you_mean(token, group.tokens)
                yield ("layouts", name), f"unknown layout of {name}", wanted, repr(token), hint


def _kernel_faults(
    operator: str, entry: Mapping[str, Any], known: Iterable[str]
) -> Iterator[tuple[_Path, str, str, str, str]]:
    where = ("ops", operator)
    pin = entry.get("pin")
    if isinstance(pin, str):
        if not KERNEL_ID.match(pin):
            guess = f"; did you mean '{pin}/{operator}/...'?" if PLUGIN_NAME.match(pin) and operator in known else ""
            yield (*where, "pin"), "not a kernel id", "plugin/operator/variant", repr(pin), guess
        elif pin.split("/")[1] != operator and operator in known:
            yield (*where, "pin"), "kernel of another operator", f"plugin/{operator}/variant", repr(pin), ""
    for key in ("deny", "order"):
        for glob in _texts(entry.get(key)):
            if not is_kernel_glob(glob):
                guess = f"; did you mean '{glob}/*'?" if PLUGIN_NAME.match(glob) else ""
                wanted = "a kernel id plugin/operator/variant, or a glob such as 'triton/*'"
                yield (*where, key), "matches no kernel id", wanted, repr(glob), guess


def _table(tree: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    table = tree.get(name)
    return table if isinstance(table, Mapping) else {}


def _texts(value: Any) -> list[str]:
    return [entry for entry in value if isinstance(entry, str)] if isinstance(value, list) else []
