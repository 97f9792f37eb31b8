"""Starting one launch as a fresh process, and taking what it leaves: figures, fingerprint, or why it failed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from dspark_ops.bench.fingerprint import conditions, machine_fingerprint
from dspark_ops.bench.measurement import Measurement
from dspark_ops.bench.printed import read_printed
from dspark_ops.bench.workload import LaunchSpec
from dspark_ops.config.ambient import child_environment, unknown_variables
from dspark_ops.errors import DsparkOpsError

__all__ = ["ALL_CHECKS", "NO_CHECKS", "ArmSpec", "Checks", "Outcome", "launch_arm"]

_TAIL = 2000


@dataclass(frozen=True, slots=True)
class Checks:
    """What a launch of our own looks at before its timed runs (R4.13).

    Attributes:
        conformance: its kernels are held against their contracts.
        gate: its tokens are held against plain decoding.
    """

    conformance: bool = True
    gate: bool = True


ALL_CHECKS = Checks()
NO_CHECKS = Checks(conformance=False, gate=False)


@dataclass(frozen=True, slots=True)
class ArmSpec:
    """What one arm runs.

    Attributes:
        spec: what to decode; None where a command is run.
        command: words of a command that prints its metrics; empty where `spec` is run.
        environment: variables that only this arm has, or has with other values.
        config_text: the configuration file's text, for the record.
        expected: globs of kernel ids that must be called.
    """

    spec: LaunchSpec | None
    command: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    config_text: str = ""
    expected: tuple[str, ...] = ()

    def treatment(self) -> dict[str, Any]:
        """Return what was done to this arm, for the record."""
        found: dict[str, Any] = {"environment": dict(self.environment)}
        if self.command:
            return found | {"command": list(self.command)}
        if self.spec is not None and self.spec.knock_out:
            found["knock_out"] = self.spec.knock_out
        if self.spec is not None:
            found["execution"] = self.spec.execution
        return found | {"config": self.config_text}


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a process left behind: a measurement, or the error that there is in its place."""

    measurement: Measurement | None = None
    error: str = ""
    fingerprint: Mapping[str, Any] = field(default_factory=dict)
    conditions: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def launch_arm(arm: ArmSpec, time_limit: float, checks: Checks) -> Outcome:
    """Run one launch of an arm in a process of its own, and return what it left.

    A process that fails, prints no metrics or takes longer than `time_limit` seconds is an outcome too. When this
    process is interrupted, the child and all that it started end with it.
    """
    variables = child_environment(arm.environment)
    if arm.spec is None:
        return _command(arm, variables, time_limit)
    with tempfile.TemporaryDirectory(prefix="dspark-ops-bench-") as folder:
        asked = replace(arm.spec, gate=checks.gate, conformance=checks.conformance)
        spec, result = Path(folder, "spec.json"), Path(folder, "result.json")
        spec.write_text(json.dumps(asked.to_json()), encoding="utf-8")
        words = [sys.executable, "-m", "dspark_ops.cli._bench_child", str(spec), str(result)]
        _, errors, problem = _finished(words, variables, time_limit)
        if problem or not result.is_file():
            return Outcome(error=problem or f"left no result: {errors[-_TAIL:].strip()}")
        data = json.loads(result.read_text(encoding="utf-8"))
    stderr = [f"stderr: {errors[-_TAIL:].strip()}"] if errors.strip() else []
    return Outcome(
        measurement=Measurement.from_json(data["measurement"]),
        fingerprint=data["fingerprint"],
        conditions=data["conditions"],
        notes=(*data["notes"], *unknown_variables(data["fingerprint"]["environment"]), *stderr),
    )


def _command(arm: ArmSpec, variables: dict[str, str], time_limit: float) -> Outcome:
    before = conditions()
    output, errors, problem = _finished(arm.command, variables, time_limit)
    fingerprint = machine_fingerprint(variables)
    if problem:
        return Outcome(error=problem, fingerprint=fingerprint, conditions=before)
    try:
        measurement = read_printed(output)
    except DsparkOpsError as error:
        tail = f"; its last output: {output[-200:].strip()!r}, stderr: {errors[-200:].strip()!r}"
        return Outcome(error=f"{error}{tail}", fingerprint=fingerprint, conditions=before)
    if measurement.dispatch is not None:
        fingerprint["plan"] = {"dispatch": measurement.dispatch_hash}
    return Outcome(measurement, "", fingerprint, before, tuple(unknown_variables(fingerprint["environment"])))


def _finished(words: Sequence[str], variables: Mapping[str, str], time_limit: float) -> tuple[str, str, str]:
    """Return what a process printed on stdout and stderr, and the problem, if it did not end well in time."""
    try:
        child = subprocess.Popen(
            list(words), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            errors="replace", env=dict(variables), start_new_session=True,
        )  # fmt: skip
    except OSError as error:
        return "", "", f"{words[0]}: cannot be started: {error.strerror}"
    try:
        output, errors = child.communicate(timeout=time_limit)
    except subprocess.TimeoutExpired:
        _end(child)
        return "", "", f"took longer than {time_limit:g} s (--time-limit)"
    except BaseException:
        _end(child)
        raise
    if child.returncode == 0:
        return output, errors, ""
    how = f"signal {-child.returncode}" if child.returncode < 0 else f"exit code {child.returncode}"
    return output, errors, f"{how}: {errors[-_TAIL:].strip() or output[-_TAIL:].strip() or 'no output'}"


def _end(child: subprocess.Popen[str]) -> None:
    """End a process and all of its group, which it leads."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(child.pid, number)
        except ProcessLookupError:
            break
        try:
            child.communicate(timeout=5)
            break
        except subprocess.TimeoutExpired:
            continue
