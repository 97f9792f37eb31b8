"""Evidence: records of runs, kept as data, and what they prove of a kernel as it is installed now.

A record comes from a run of ``dspark-ops check --write``, of the compile test or of ``dspark-ops tune``, or is shipped
by a plugin with the digest of the sources that ran. It lapses when those sources change. What a manifest merely states
is shown as the kernel's level, but no floor counts it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any, Final

from dspark_ops.api.kernel import Evidence
from dspark_ops.errors import ConfigError, EvidenceError
from dspark_ops.selection.codec import decode, encode
from dspark_ops.selection.registry import RegisteredKernel, Registry
from dspark_ops.selection.sources import source_digest
from dspark_ops.selection.written import write_atomically

__all__ = [
    "EvidenceRecord",
    "Proof",
    "add_evidence",
    "digest_of",
    "proofs",
    "read_evidence",
    "shipped_evidence",
    "write_evidence",
]

SCHEMA: Final = "dspark-ops evidence 1"
CONFORMANCE: Final = "dspark-ops conformance 1"
#: The record that a plugin may ship, see `dspark_ops.api.with_recorded_evidence`.
SHIPPED: Final = "conformant.json"
_PLUGIN: Final = "a run that its plugin records"


@dataclass(frozen=True, slots=True)
class EvidenceRecord:
    """What one run proved of one kernel.

    Attributes:
        kernel: its id.
        level: the level reached.
        arch: architecture on which it ran or for which it was built; ``cpu`` for Triton's interpreter.
        by: ``check``, ``compile`` or ``tune``, or that the plugin records it.
        date: day or moment in UTC, empty if the record does not say.
        sources: digest of the sources that ran, see `dspark_ops.selection.sources.source_digest`.
        contract: version of the contract; 0 if the record does not say.
        device, driver: of the machine.
        versions: what else mattered, such as torch and triton.
        failures: how many things were wrong.
    """

    kernel: str
    level: Evidence
    arch: str
    by: str
    date: str
    sources: str
    contract: int = 0
    device: str = ""
    driver: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)
    failures: int = 0

    def __str__(self) -> str:
        what = f"{self.failures} failures" if self.failures else self.level.value
        where = f"{self.device} ({self.arch})" if self.device and self.device != self.arch else self.arch
        parts = [f"{what} by {self.by}", where, self.date[:10]]
        parts += [f"{name} {self.versions[name]}" for name in ("torch", "triton") if name in self.versions]
        return ", ".join(filter(None, parts))


@dataclass(frozen=True, slots=True)
class Proof:
    """What records prove of one kernel on one architecture; `failed` if the newest of them found something wrong."""

    level: Evidence
    text: str
    failed: bool = False


def write_evidence(path: Path, records: Iterable[EvidenceRecord]) -> None:
    """Write records, one per line, sorted; a reader sees the old file or the whole new one."""
    lines = sorted(json.dumps(encode(record), sort_keys=True) for record in records)
    write_atomically(path, f'{{"schema": "{SCHEMA}", "records": [\n' + ",\n".join(lines) + "\n]}\n")


def add_evidence(path: Path, records: Iterable[EvidenceRecord]) -> None:
    """Add records to a file; a newer one replaces those of its kernel, architecture and kind of run.

    Raises:
        ConfigError: the file exists and holds something else.
    """
    kept = read_evidence([str(path)]) if path.exists() else ()
    found = {(record.kernel, record.arch, record.by): record for record in (*kept, *records)}
    write_evidence(path, found.values())


def read_evidence(paths: Sequence[str], origin: str = "files.evidence") -> tuple[EvidenceRecord, ...]:
    """Return the records of some files: of those that `write_evidence` wrote, and reports of ``check --write``.

    Raises:
        ConfigError: a file cannot be read or holds something else.
    """
    found: list[EvidenceRecord] = []
    for path in paths:
        try:
            data = json.loads(Path(path).read_text(encoding="utf-8"))
            found += _records(data)
        except OSError as error:
            raise ConfigError(f"{origin}: {path} cannot be read: {error.strerror}; remove it from the list") from None
        except (ValueError, KeyError, TypeError) as error:
            raise ConfigError(
                f"{origin}: {path} holds no evidence: {error}; write it again with  dspark-ops check --write {path}"
            ) from None
    return tuple(found)


def _records(data: Any) -> Iterator[EvidenceRecord]:
    schema = data.get("schema") if isinstance(data, dict) else None
    if schema == SCHEMA:
        yield from (decode(EvidenceRecord, entry) for entry in data["records"])
    elif schema == CONFORMANCE:
        device = data["device"]
        for entry in data["kernels"]:
            interpreted = entry["level"] == Evidence.INTERPRETED.value
            yield EvidenceRecord(
                kernel=entry["kernel"], level=Evidence(entry["level"]), arch=entry["arch"], by="check",
                date=data["date"], sources=entry.get("sources", ""), contract=entry["contract"],
                device="Triton's interpreter" if interpreted else device["name"], driver=device["driver"],
                versions=data["versions"], failures=len(entry["failures"]),
            )  # fmt: skip
    else:
        raise ValueError(f"wanted schema {SCHEMA!r} or {CONFORMANCE!r}, got {schema!r}")


def shipped_evidence(registry: Registry) -> Iterator[EvidenceRecord]:
    """Yield what plugins ship as records of runs on hardware: kernels by architecture, with source digests."""
    for plugin in registry.plugins:
        for module in plugin.modules:
            try:
                file = resources.files(module) / SHIPPED
                passed = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
            except (ModuleNotFoundError, TypeError, ValueError, OSError):
                continue  # what a plugin ships in another form is a claim like any other
            for arch, kernels in passed.items():
                for name, sources in kernels.items():
                    yield EvidenceRecord(f"{plugin.name}/{name}", Evidence.CONFORMANT, arch, _PLUGIN, "", sources)


def proofs(
    records: Iterable[EvidenceRecord],
    registry: Registry,
    arch: str,
    versions: Mapping[str, int],
    digest: Callable[[RegisteredKernel], str] | None = None,
) -> dict[str, Proof]:
    """Return what records prove, by kernel id, of the kernels that are installed, on an architecture.

    A record counts if its sources and its contract are the present ones, and if it is of this architecture; numbers
    from Triton's interpreter count for every architecture. Of several runs of one kind the newest counts. A time counts
    as ``measured`` only beside a record that is ``conformant``: a fast wrong kernel has proved nothing.

    Args:
        records: what was read.
        registry: the installed kernels.
        arch: name of the architecture.
        versions: version of each operator's contract.
        digest: returns the digest of a kernel's present sources.
    """
    here = {kernel.id: kernel for kernels in registry.kernels.values() for kernel in kernels}
    digest = digest or digest_of
    newest: dict[tuple[str, str, bool], EvidenceRecord] = {}
    present: dict[str, str] = {}
    for record in sorted(records, key=lambda record: record.date):
        kernel = here.get(record.kernel)
        interpreted = record.level is Evidence.INTERPRETED
        if kernel is None or (record.level is Evidence.DECLARED and not record.failures):
            continue
        if not (interpreted or record.arch == arch) or record.contract not in (0, versions.get(kernel.kernel.op)):
            continue
        if record.kernel not in present:
            present[record.kernel] = digest(kernel)
        if record.sources and record.sources == present[record.kernel]:
            newest[record.kernel, record.by, interpreted] = record
    by_kernel: dict[str, list[EvidenceRecord]] = {}
    for (kernel_id, _, _), record in newest.items():
        by_kernel.setdefault(kernel_id, []).append(record)
    return {kernel_id: proof for kernel_id, found in by_kernel.items() if (proof := _proof(found)) is not None}


def _proof(records: Sequence[EvidenceRecord]) -> Proof | None:
    for record in records:
        if record.failures:
            return Proof(Evidence.DECLARED, str(record), failed=True)
    conformant = any(record.level is Evidence.CONFORMANT for record in records)
    counting = [record for record in records if conformant or record.level is not Evidence.MEASURED]
    if not counting:
        return None
    best = max(counting, key=lambda record: record.level.order)
    return Proof(best.level, str(best))


def digest_of(registered: RegisteredKernel) -> str:
    """Return the digest of a kernel's present sources; empty where they cannot be found."""
    kernel = registered.kernel
    try:
        return source_digest(kernel.prepare or kernel.target)
    except (EvidenceError, SyntaxError, ValueError, ImportError):
        return ""
