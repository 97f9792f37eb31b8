"""Measured times of kernels: a table per device fingerprint, which planning reads where a lock is written.

A start reads no table: two ranks that time kernels apart choose apart. What was measured reaches a start through the
lock, which is one file for all.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from dspark_ops.errors import ConfigError
from dspark_ops.selection.codec import decode, encode
from dspark_ops.selection.written import write_atomically

__all__ = ["MeasuredTime", "Table", "add_times", "read_tables", "usable_times"]

SCHEMA: Final = "dspark-ops measured 1"


@dataclass(frozen=True, slots=True)
class MeasuredTime:
    """One kernel at one place and row count.

    Attributes:
        kernel, operator, site, axes, rows: what was timed.
        us: median microseconds of a call.
        low, high: 10th and 90th percentile.
        calls: how many calls were timed.
        sources: digest of the kernel's sources.
    """

    kernel: str
    operator: str
    site: str
    axes: Mapping[str, int]
    rows: int
    us: float
    low: float
    high: float
    calls: int
    sources: str

    @property
    def key(self) -> tuple[Any, ...]:
        """What a newer time replaces."""
        return self.kernel, self.site, tuple(sorted(self.axes.items())), self.rows


@dataclass(frozen=True, slots=True)
class Table:
    """The times of one fingerprint, with the date of the newest and how they were taken."""

    date: str
    method: str
    times: tuple[MeasuredTime, ...]


def read_tables(path: str | Path) -> dict[str, Table]:
    """Return the tables of a file by device fingerprint.

    Raises:
        ConfigError: the file cannot be read or holds something else.
    """
    try:
        data = json.loads(Path(path).read_text(encoding="utf-8"))
        if not isinstance(data, dict) or data.get("schema") != SCHEMA:
            raise ValueError(f"wanted schema {SCHEMA!r}")
        return {name: decode(Table, table) for name, table in data["tables"].items()}
    except OSError as error:
        raise ConfigError(f"files.measured: {path} cannot be read: {error.strerror}; run  dspark-ops tune") from None
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"files.measured: {path} holds no measured times: {error}; run  dspark-ops tune") from None


def add_times(path: str | Path, fingerprint: str, table: Table) -> None:
    """Add times to a file: newer ones replace older ones of the same kernel, place and row count; others stay."""
    tables = read_tables(path) if Path(path).exists() else {}
    old = tables.get(fingerprint)
    kept = {time.key: time for time in old.times} if old else {}
    kept.update({time.key: time for time in table.times})
    tables[fingerprint] = replace(table, times=tuple(sorted(kept.values(), key=lambda time: repr(time.key))))
    blocks = []
    for name, entry in sorted(tables.items()):
        times = ",\n".join(json.dumps(encode(time), sort_keys=True) for time in entry.times)
        head = f'{json.dumps(name)}: {{"date": {json.dumps(entry.date)}, "method": {json.dumps(entry.method)}'
        blocks.append(f'{head}, "times": [\n{times}\n]}}')
    write_atomically(path, f'{{"schema": "{SCHEMA}", "tables": {{\n' + ",\n".join(blocks) + "\n}}\n")


def usable_times(
    times: Iterable[MeasuredTime], digest: Callable[[str], str]
) -> dict[tuple[str, Any], dict[int, dict[str, float]]]:
    """Return times by operator and place, then row count, then kernel, of kernels whose sources are the present ones.

    Args:
        times: of this device's fingerprint.
        digest: returns the digest of a kernel's present sources by its id, or an empty text.
    """
    found: dict[tuple[str, Any], dict[int, dict[str, float]]] = {}
    for time in times:
        if time.sources and time.sources == digest(time.kernel):
            place = (time.operator, (time.site, tuple(sorted(time.axes.items()))))
            found.setdefault(place, {}).setdefault(time.rows, {})[time.kernel] = time.us
    return found
