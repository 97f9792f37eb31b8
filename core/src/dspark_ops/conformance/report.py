"""The report of a check: one record per kernel, which is the evidence for what it has reached, and its failures."""

from __future__ import annotations

import platform
from collections.abc import Collection, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from importlib import metadata
from typing import Any

import dspark_ops
from dspark_ops.api.version import API_VERSION
from dspark_ops.conformance.failure import Failure

__all__ = ["ALL_LEVELS", "LEVELS", "KernelRecord", "LevelRecord", "Report"]

#: What is checked where nothing else is asked for.
LEVELS = ("claims", "numbers", "traits")
ALL_LEVELS = (*LEVELS, "builds")
SCHEMA = "dspark-ops conformance 1"


@dataclass(slots=True)
class LevelRecord:
    """What one level of the check did for one kernel.

    Attributes:
        status: ``passed``, ``failed``, ``expected`` (every failure is on the list of expected ones) or ``not run``.
        reason: why it was not run.
        counts: how many points, cases, variations or calls were looked at.
        not_covered: what was left out, and why.
    """

    status: str = "not run"
    reason: str = ""
    counts: dict[str, int] = field(default_factory=dict)
    not_covered: list[str] = field(default_factory=list)


@dataclass(slots=True)
class KernelRecord:
    """The evidence for one kernel from one check.

    Attributes:
        kernel: its id.
        op, contract: operator, and version of its contract.
        plugin, distribution, version: what provides it.
        arch: architecture on which it ran; ``cpu`` for the interpreter.
        sources: digest of the sources that ran, by which a record lapses when the kernel changes.
        level: the highest level of evidence that this check supports: ``declared``, ``interpreted`` or ``conformant``.
        note: what to know about `level`.
        levels: per level of the check, what was done.
        failures: what is wrong.
        expected: failures that the list of expected ones names, with its reason.
    """

    kernel: str
    op: str
    contract: int
    plugin: str
    distribution: str
    version: str
    arch: str
    sources: str = ""
    level: str = "declared"
    note: str = ""
    levels: dict[str, LevelRecord] = field(default_factory=dict)
    failures: list[Failure] = field(default_factory=list)
    expected: list[tuple[Failure, str]] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """Return the record with plain types only."""
        return {
            "kernel": self.kernel,
            "op": self.op,
            "contract": self.contract,
            "plugin": self.plugin,
            "distribution": self.distribution,
            "version": self.version,
            "arch": self.arch,
            "sources": self.sources,
            "level": self.level,
            "note": self.note,
            "levels": {name: asdict(level) for name, level in self.levels.items()},
            "failures": [failure.to_json() for failure in self.failures],
            "expected_failures": [{**failure.to_json(), "reason": reason} for failure, reason in self.expected],
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> KernelRecord:
        """Return the record that `to_json` wrote."""
        fields = {name: data[name] for name in cls.__slots__ if name in data}
        fields["levels"] = {name: LevelRecord(**level) for name, level in data["levels"].items()}
        fields["failures"] = [_failure(entry) for entry in data["failures"]]
        fields["expected"] = [
            (_failure({key: value for key, value in entry.items() if key != "reason"}), entry["reason"])
            for entry in data["expected_failures"]
        ]
        return cls(**fields)


def _version(name: str) -> str:
    """Return the version of the distribution that provides a module: some builds bring Triton under another name."""
    names = {"triton": ("triton", "triton-rocm", "pytorch-triton-rocm")}.get(name, (name,))
    for distribution in names:
        try:
            return metadata.version(distribution)
        except metadata.PackageNotFoundError:
            continue
    return ""


def _failure(data: Mapping[str, Any]) -> Failure:
    return Failure(**{**data, "index": tuple(data["index"])})


@dataclass(slots=True)
class Report:
    """What a check found.

    Attributes:
        plugin: the plugin that was checked, or empty for all.
        date: when, in UTC.
        versions: of this library, its API, Python, torch and Triton.
        device: the device's facts.
        seed, scale, levels: what was asked for.
        case: the only case that was asked for, or empty.
        interpreter: what was proved of Triton's interpreter, where it was used.
        kernels: one record per kernel.
        findings: what is wrong beside failures of kernels: expected failures that pass or have expired, refused
            evidence, a device that was lost.
    """

    plugin: str
    date: str
    versions: dict[str, str]
    device: dict[str, Any]
    seed: int
    scale: str
    levels: tuple[str, ...]
    case: str = ""
    interpreter: tuple[str, ...] = ()
    kernels: list[KernelRecord] = field(default_factory=list)
    findings: list[str] = field(default_factory=list)

    @classmethod
    def begin(
        cls, device: dict[str, Any], *, plugin: str, seed: int, scale: str, levels: Collection[str], case: str
    ) -> Report:
        """Return a report of nothing yet, with this moment's date and the versions that are installed."""
        return cls(
            plugin=plugin,
            date=datetime.now(timezone.utc).isoformat(timespec="seconds"),
            versions={
                "dspark_ops": dspark_ops.__version__,
                "api": API_VERSION,
                "python": platform.python_version(),
                **{name: version for name in ("torch", "triton") if (version := _version(name))},
            },
            device=device,
            seed=seed,
            scale=scale,
            levels=tuple(level for level in ALL_LEVELS if level in levels),
            case=case,
        )

    @property
    def passed(self) -> bool:
        """Whether nothing is wrong. What was not run counts as nothing wrong, and is in the records."""
        return not self.findings and not any(record.failures for record in self.kernels)

    def failures(self) -> Iterator[Failure]:
        """Yield every failure that is not expected."""
        for record in self.kernels:
            yield from record.failures

    def to_json(self) -> dict[str, Any]:
        """Return the report with plain types only."""
        return {
            "schema": SCHEMA,
            "plugin": self.plugin,
            "date": self.date,
            "versions": self.versions,
            "device": self.device,
            "seed": self.seed,
            "scale": self.scale,
            "levels": list(self.levels),
            "case": self.case,
            "interpreter": list(self.interpreter),
            "passed": self.passed,
            "kernels": [record.to_json() for record in self.kernels],
            "findings": self.findings,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Report:
        """Return the report that `to_json` wrote."""
        fields = {name: data[name] for name in cls.__slots__ if name in data}
        fields["kernels"] = [KernelRecord.from_json(entry) for entry in data["kernels"]]
        return cls(**{**fields, "levels": tuple(data["levels"]), "interpreter": tuple(data["interpreter"])})
