"""Known faults of kernels, as data that can be replaced without a release. A fault beats whatever a manifest claims."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from importlib import metadata, resources
from pathlib import Path
from typing import Any, Final

from packaging.specifiers import InvalidSpecifier, SpecifierSet

from dspark_ops.api.reason import Reason, ReasonCode
from dspark_ops.errors import ConfigError
from dspark_ops.selection.codec import decode
from dspark_ops.selection.device import Device
from dspark_ops.selection.packages import version_matches

__all__ = ["KnownFault", "fault_reasons", "read_known_faults"]

SCHEMA: Final = "dspark-ops known-bad 1"


@dataclass(frozen=True, slots=True)
class KnownFault:
    """One fault that is known of some kernels.

    Attributes:
        kernel: id of a kernel, or a glob over ids.
        what: what happens, for people, such as ``hangs at 64 rows``.
        link: where it is reported.
        arch: architecture names; empty for all.
        versions: distributions with the range in which the fault exists, such as ``{"triton": "<3.7"}``; all must hold.
            One that is not installed here is not at fault.
        driver: range of driver versions; empty for all. An unknown driver counts as inside.
        origin: the file that says so.
    """

    kernel: str
    what: str
    link: str
    arch: tuple[str, ...] = ()
    versions: Mapping[str, str] = field(default_factory=dict)
    driver: str = ""
    origin: str = ""

    def concerns(self, kernel_id: str, device: Device) -> bool:
        """Whether this installation has the fault on a device."""
        if not fnmatchcase(kernel_id, self.kernel) or (self.arch and device.arch.name not in self.arch):
            return False
        if self.driver and device.driver and version_matches(device.driver, self.driver) is False:
            return False
        return all(_installed_in(name, versions) for name, versions in self.versions.items())

    def reason(self, kernel_id: str) -> Reason:
        """Return the refusal of a kernel that has the fault."""
        ranges = [f"{name}{versions}" for name, versions in self.versions.items()]
        ranges += [f"driver {self.driver}"] if self.driver else []
        on = f" on {' or '.join(self.arch)}" if self.arch else ""
        within = f" with {', '.join(ranges)}" if ranges else ""
        leave = f"a version outside {', '.join(ranges)}" if ranges else "a version in which it is repaired"
        got = f"{self.what}{on}{within}: {self.link}"
        return Reason(ReasonCode.KNOWN_BAD, "kernel", "no known fault", got, leave, self.origin)


def read_known_faults(paths: Sequence[str] = ()) -> tuple[KnownFault, ...]:
    """Return the faults that core knows of, and those of further files.

    Raises:
        ConfigError: a file cannot be read, or an entry is not as `KnownFault` says.
    """
    own = resources.files("dspark_ops.selection") / "known_bad.json"
    found = [*_entries(own.read_text(encoding="utf-8"), "known to dspark-ops")]
    for path in paths:
        try:
            found += _entries(Path(path).read_text(encoding="utf-8"), str(path))
        except OSError as error:
            raise ConfigError(f"files.known_bad: {path} cannot be read: {error.strerror}") from None
    return tuple(found)


def _entries(text: str, origin: str) -> Iterator[KnownFault]:
    try:
        data = json.loads(text)
        schema = data.get("schema") if isinstance(data, dict) else None
        if schema != SCHEMA:
            raise ValueError(f"wanted schema {SCHEMA!r}, got {schema!r}")
        for entry in data["entries"]:
            yield _fault(entry, origin)
    except (ValueError, KeyError, TypeError, InvalidSpecifier) as error:
        raise ConfigError(f"files.known_bad: {origin} cannot be used: {error}") from None


def _fault(entry: Mapping[str, Any], origin: str) -> KnownFault:
    fields = {"arch": [], "versions": {}, "driver": "", **entry, "origin": origin}
    fault: KnownFault = decode(KnownFault, fields)
    if not fault.link or not fault.what:
        raise ValueError(f"the entry for {fault.kernel} says not what happens, or not where that is reported")
    for versions in (*fault.versions.values(), fault.driver):
        SpecifierSet(versions)
    return fault


def _installed_in(distribution: str, versions: str) -> bool:
    try:
        return version_matches(metadata.version(distribution), versions) is not False
    except metadata.PackageNotFoundError:
        return False


def fault_reasons(faults: Sequence[KnownFault], kernel_id: str, device: Device) -> Iterator[Reason]:
    """Yield a refusal for every fault that a kernel has on a device."""
    yield from (fault.reason(kernel_id) for fault in faults if fault.concerns(kernel_id, device))
