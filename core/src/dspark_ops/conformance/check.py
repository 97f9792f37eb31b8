"""The check: which kernels, on which device, at which levels; what it finds becomes a report."""

from __future__ import annotations

import json
import shlex
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import date, datetime, timezone
from pathlib import Path
from typing import Any

from dspark_ops import contracts
from dspark_ops.conformance.kernel_check import KernelCheck
from dspark_ops.conformance.places import Machine, machine_for, needs_triton, subject_on
from dspark_ops.conformance.report import ALL_LEVELS, LEVELS, KernelRecord, Report
from dspark_ops.conformance.traits import Harness
from dspark_ops.conformance.xfails import ExpectedFailure
from dspark_ops.errors import ConfigError, EvidenceError, PluginError
from dspark_ops.selection.evidence import digest_of
from dspark_ops.selection.registry import RegisteredKernel, Registry
from dspark_ops.suggest import did_you_mean

__all__ = ["Request", "chosen_kernels", "run_check"]


@dataclass(frozen=True, slots=True)
class Request:
    """What to check.

    Attributes:
        plugin: name of one plugin; None checks all that are installed.
        ops: operators; empty for all.
        device: ``cpu``, ``cuda``, ``cuda:N``, or the catalogue name of a simulated device, for which only claims and
            builds can be checked; None: the GPU of this machine, else its CPU.
        levels: some of ``claims``, ``numbers`` and ``traits``, or ``builds``.
        scale: ``small``, or ``model`` for the sizes of DeepSeek-V4.1-Flash.
        seed: seed of the case generators.
        case: one case by name, or a glob; empty for all.
        xfails: expected failures.
        xfails_file: the file that they came from, for the commands that repeat a failure.
        time_limit: seconds for the process in which Triton interprets.
    """

    plugin: str | None = None
    ops: tuple[str, ...] = ()
    device: str | None = None
    levels: tuple[str, ...] = LEVELS
    scale: str = "small"
    seed: int = 0
    case: str = ""
    xfails: tuple[ExpectedFailure, ...] = ()
    xfails_file: str = ""
    time_limit: float = 3600.0

    def words(self) -> list[str]:
        """Return the words of the command line that ask for the same."""
        words = [self.plugin] if self.plugin else []
        for op in self.ops:
            words += ["--op", op]
        if self.device:
            words += ["--device", self.device]
        if self.levels != LEVELS:
            words += [word for level in self.levels for word in ("--level", level)]
        if self.scale != "small":
            words += ["--scale", self.scale]
        words += ["--seed", str(self.seed)]
        if self.case:
            words += ["--case", self.case]
        return [*words, "--xfails", self.xfails_file] if self.xfails_file else words


def run_check(
    request: Request, registry: Registry, today: date | None = None, harness: Harness | None = None
) -> Report:
    """Check kernels and return the report.

    Kernels that need Triton run on a CPU in Triton's interpreter; where this process does not interpret, the whole
    check runs in a child process that does, with the installed plugins.

    Args:
        request: what to check.
        registry: the loaded plugins.
        today: the day for expiry dates.
        harness: captures graphs; by default the GPU's where there is one.

    Raises:
        ConfigError: an operator or a level is unknown, or no kernel is left.
        PluginError: the plugin did not load.
        DeviceError: there is no such device.
    """
    unknown = [level for level in request.levels if level not in ALL_LEVELS]
    if unknown or not request.levels:
        raise ConfigError(f"level: wanted {' or '.join(ALL_LEVELS)}, got {', '.join(unknown) or 'none'}")
    kernels = chosen_kernels(request, registry)
    machine = machine_for(request.device)
    if request.levels != ("builds",) and machine.must_interpret(kernels):
        return _in_child(request)
    report = Report.begin(
        machine.device.to_json(), plugin=request.plugin or "", seed=request.seed, scale=request.scale,
        levels=request.levels, case=request.case,
    )  # fmt: skip
    day = today or datetime.now(timezone.utc).date()
    with ExitStack() as stack:
        if machine.interprets and any(needs_triton(entry.kernel) for entry in kernels):
            machine = _proved(machine, report, stack)
        _check_all(request, registry, machine, kernels, report, day, harness)
    return report


def chosen_kernels(request: Request, registry: Registry) -> list[RegisteredKernel]:
    """Return the kernels that a request names, sorted by id.

    Raises:
        ConfigError: a name is unknown, or no kernel is left.
        PluginError: the plugin did not load.
    """
    for op in request.ops:
        contracts.get(op)
    loaded = [record.name for record in registry.plugins]
    if request.plugin is not None and request.plugin not in loaded:
        failures = [failure for failure in registry.failures if failure.name == request.plugin]
        if failures:
            raise PluginError("\n".join(f"{failure}\n{failure.detail}".rstrip() for failure in failures))
        listed = ", ".join(loaded) or "none"
        raise ConfigError(f"no plugin {request.plugin!r}: loaded are {listed}{did_you_mean(request.plugin, loaded)}")
    kernels = [
        kernel
        for op, entries in registry.kernels.items()
        for kernel in entries
        if request.plugin in (None, kernel.plugin) and (not request.ops or op in request.ops)
    ]
    if not kernels:
        whose = f"plugin {request.plugin}" if request.plugin else "the installed plugins"
        of = f" of {', '.join(request.ops)}" if request.ops else ""
        raise ConfigError(f"nothing to check: {whose} registered no kernel{of}")
    return sorted(kernels, key=lambda kernel: kernel.id)


def _check_all(
    request: Request,
    registry: Registry,
    machine: Machine,
    kernels: Sequence[RegisteredKernel],
    report: Report,
    today: date,
    harness: Harness | None,
) -> None:
    versions = {record.name: record.version for record in registry.plugins}
    seen: set[str] = set()
    matched: set[str] = set()
    twins: dict[Any, KernelRecord] = {}
    looked_at = 0
    lost = ""
    for registered in kernels:
        subject = subject_on(registered, contracts.get(registered.kernel.op), machine)
        twin = twins.get(_what_runs(registered)) if subject.interpreted else None
        if lost or twin:
            why = lost or f"the same target, preparation and region as {twin.kernel if twin else ''}, which was checked"
            subject = replace(subject, place="", why_not=why)
        record = KernelRecord(
            registered.id, registered.kernel.op, subject.contract.version, registered.plugin, registered.distribution,
            versions.get(registered.plugin, ""), machine.arch_of(subject), digest_of(registered),
        )  # fmt: skip
        repeat = _repeat(request, subject)
        check = KernelCheck(subject, request.scale, request.seed, request.case, request.xfails, repeat, harness)
        try:
            check.run(request.levels, record)
        except EvidenceError as error:
            lost = f"not run: {error}"
            report.findings.append(str(error))
        if twin and "claims" in record.levels:
            record.levels["claims"].not_covered.clear()  # they are the twin's, and stand there
        _settle(record, request, today, check.looked_at, seen, matched)
        looked_at += len(check.looked_at)
        if not record.failures and not record.expected and not request.case:
            machine.award(record, subject, request.levels)
            if twin:
                record.level, record.note = twin.level, f"as {twin.kernel}"
        twins.setdefault(_what_runs(registered), record)
        report.kernels.append(record)
    if request.case and not looked_at:
        report.findings.append(f"no case that was run is named {request.case!r}")
    report.findings += _stale(request.xfails, today, seen, matched)


def _what_runs(registered: RegisteredKernel) -> Any:
    kernel = registered.kernel
    return kernel.op, kernel.target, kernel.prepare, tuple(kernel.region)


def _settle(
    record: KernelRecord,
    request: Request,
    today: date,
    looked_at: Sequence[tuple[str, str]],
    seen: set[str],
    matched: set[str],
) -> None:
    """Move failures that are expected out of the failures, and note which entries of the list spoke of something."""
    for entry in request.xfails:
        if any(entry.names(record.kernel, level, case) for level, case in looked_at):
            seen.add(entry.origin or repr(entry))
    failures, record.failures = record.failures, []
    for failure in failures:
        entry = next((entry for entry in request.xfails if entry.expects(failure, today)), None)
        if entry is None:
            record.failures.append(failure)
        else:
            matched.add(entry.origin or repr(entry))
            record.expected.append((failure, entry.reason))
    for name, level in record.levels.items():
        if any(failure.level == name for failure in record.failures):
            level.status = "failed"
        elif any(failure.level == name for failure, _ in record.expected):
            level.status = "expected"


def _stale(entries: Sequence[ExpectedFailure], today: date, seen: set[str], matched: set[str]) -> list[str]:
    """Return what is wrong with the list itself: entries that have expired, and entries whose cases pass."""
    findings = []
    for entry in entries:
        key = entry.origin or repr(entry)
        what = f"{entry.kernel}, case {entry.case!r}"
        if entry.expired(today) and key in seen:
            findings.append(f"{key}: the expected failure of {what} expired on {entry.expires}: repair it, or renew it")
        elif entry.run and key in seen and key not in matched and not entry.expired(today):
            findings.append(f"{key}: {what} is expected to fail ({entry.reason}), but passes: remove the entry")
    return findings


def _repeat(request: Request, subject: Any) -> Callable[[str, str], str]:
    def command(level: str, case: str) -> str:
        one = replace(
            request, plugin=subject.registered.plugin, ops=(subject.contract.name,), levels=(level,), case=case,
            xfails_file="",
        )  # fmt: skip
        return shlex.join(["dspark-ops", "check", *one.words()])

    return command


def _proved(machine: Machine, report: Report, stack: ExitStack) -> Machine:
    """Prove the repaired interpreter and repair it until `stack` ends; or return a machine that refuses its numbers."""
    from dspark_ops.conformance.interpreter import prove, repaired_interpreter

    try:
        report.interpreter = prove()
        stack.enter_context(repaired_interpreter())
    except EvidenceError as error:
        report.findings.append(str(error))
        return replace(machine, refused=str(error))
    return machine


def _in_child(request: Request) -> Report:
    """Run the check in a process in which Triton interprets, and return its report.

    Raises:
        EvidenceError: the process gave none.
    """
    from dspark_ops.conformance.interpreter import run_interpreted

    # The report goes through a file: a kernel may print whatever it likes.
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "report.json"
        words = ["-m", "dspark_ops.cli", "check", *request.words(), "--write", str(file)]
        finished = run_interpreted(words, request.time_limit)
        if not file.exists():
            raise EvidenceError(
                f"the interpreting process ended with exit code {finished.returncode} and no report:\n"
                f"{(finished.stderr or finished.stdout)[-2000:]}"
            )
        return Report.from_json(json.loads(file.read_text(encoding="utf-8")))
