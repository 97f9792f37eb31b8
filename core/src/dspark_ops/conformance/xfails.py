"""Expected failures: a vendor's own list of what is known to fail, each with a reason, in a TOML file."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import date
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from dspark_ops.conformance.failure import Failure
from dspark_ops.errors import ConfigError
from dspark_ops.suggest import did_you_mean

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = ["ExpectedFailure", "read_xfails"]

_KEYS: Mapping[str, type] = {
    "kernel": str,
    "case": str,
    "level": str,
    "reason": str,
    "expires": date,
    "run": bool,
}
_LEVELS = ("claims", "numbers", "traits")


@dataclass(frozen=True, slots=True)
class ExpectedFailure:
    """One entry of the list.

    Attributes:
        kernel: glob over kernel ids.
        reason: why it fails.
        case: glob over names of cases.
        level: ``claims``, ``numbers`` or ``traits``; empty for all.
        expires: the last day on which it counts, or None.
        run: False: cases that it names are not called at all, for those that take the process or the device with them.
        origin: file and number of the entry.
    """

    kernel: str
    reason: str
    case: str = "*"
    level: str = ""
    expires: date | None = None
    run: bool = True
    origin: str = ""

    def names(self, kernel: str, level: str, case: str) -> bool:
        """Whether this entry speaks of a case of a kernel; an equal name matches even with characters of globs."""
        if not fnmatchcase(kernel, self.kernel) or self.level not in ("", level):
            return False
        return case == self.case or fnmatchcase(case, self.case)

    def expects(self, failure: Failure, today: date) -> bool:
        """Whether a failure is this one, and the entry still counts."""
        return not self.expired(today) and self.names(failure.kernel, failure.level, failure.case)

    def expired(self, today: date) -> bool:
        """Whether its last day has passed."""
        return self.expires is not None and today > self.expires


def read_xfails(path: Path) -> tuple[ExpectedFailure, ...]:
    """Return the entries of a file.

    The file holds tables ``[[xfail]]`` with the keys ``kernel`` and ``reason``, and optionally ``case``, ``level``,
    ``expires`` (a date) and ``run``.

    Raises:
        ConfigError: the file cannot be read, or an entry is wrong; the text lists every fault.
    """
    try:
        tree = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path}: the list of expected failures cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: not TOML: {error}") from error
    faults = [f"unknown key {key!r}: wanted only tables [[xfail]]" for key in tree if key != "xfail"]
    entries = tree.get("xfail", [])
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        faults.append("xfail: wanted tables [[xfail]]")
        entries = []
    for number, entry in enumerate(entries, start=1):
        faults += [f"xfail {number}: {fault}" for fault in _faults(entry)]
    if faults:
        raise ConfigError("\n".join([f"{path}: the list of expected failures is wrong:", *(f"  {f}" for f in faults)]))
    return tuple(
        ExpectedFailure(**entry, origin=f"{path}, xfail {number}") for number, entry in enumerate(entries, start=1)
    )


def _faults(entry: Mapping[str, Any]) -> Iterable[str]:
    for key, value in entry.items():
        if key not in _KEYS:
            yield f"unknown key {key!r}: wanted {', '.join(_KEYS)}{did_you_mean(key, _KEYS)}"
        elif type(value) is not _KEYS[key]:
            yield f"{key}: wanted {_KEYS[key].__name__}, got {value!r}"
    for key in ("kernel", "reason"):
        if not entry.get(key):
            yield f"{key} is missing"
    if isinstance(entry.get("level"), str) and entry["level"] not in _LEVELS:
        yield f"level: wanted {' or '.join(_LEVELS)}, got {entry['level']!r}"
