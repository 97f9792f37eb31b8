"""A session: all launches of an A/B comparison, one after the other, and the record of each arm."""

from __future__ import annotations

import fcntl
import getpass
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from dspark_ops.bench.design import Arm, Slot
from dspark_ops.bench.launching import ALL_CHECKS, NO_CHECKS, ArmSpec, Checks, Outcome, launch_arm
from dspark_ops.bench.measurement import Measurement
from dspark_ops.bench.record import ArmRecord, Launch
from dspark_ops.errors import EvidenceError

__all__ = ["Session", "machine_alone", "run_session"]

Launcher = Callable[[ArmSpec, float, Checks], Outcome]
Progress = Callable[[Slot, "Launch | None"], None]


@dataclass(frozen=True, slots=True)
class Session:
    """What is to be run.

    Attributes:
        first, second: the arms A and B.
        slots: their order, see `dspark_ops.bench.design.schedule`.
        workload: what both arms share, for the record.
        order: name of the order.
        declared: fields of the fingerprint that belong to the treatment.
        time_limit: seconds for one launch.
        selection: the session chooses a configuration.
        checks: what the first launch of each arm looks at before it is timed (R4.13).
    """

    first: ArmSpec
    second: ArmSpec
    slots: tuple[Slot, ...]
    workload: Mapping[str, Any]
    order: str = "abba"
    declared: tuple[str, ...] = ()
    time_limit: float = 3600.0
    selection: bool = False
    checks: Checks = ALL_CHECKS
    name: str = field(default_factory=lambda: datetime.now(timezone.utc).strftime("%Y%m%dT%H%M%S.%fZ"))

    def records(self, launches: list[Launch]) -> tuple[ArmRecord, ArmRecord]:
        """Return the records of both arms; the control's launches are kept with those of A."""
        return self._record(Arm.A, self.first, launches), self._record(Arm.B, self.second, launches)

    def _record(self, arm: Arm, spec: ArmSpec, launches: list[Launch]) -> ArmRecord:
        own = tuple(launch for launch in launches if (launch.arm is Arm.B) == (arm is Arm.B))
        return ArmRecord(
            self.name, arm, spec.treatment(), self.workload, own, self.declared, spec.expected, self.order,
            self.selection,
        )  # fmt: skip


def run_session(session: Session, progress: Progress, launcher: Launcher = launch_arm) -> Iterator[Launch]:
    """Run the launches in their order and yield each as it ends, so that a caller can keep what an interruption leaves.

    A launch that fails is yielded like any other.

    Args:
        session: what to run.
        progress: called before a launch with its slot and None, and after it with the launch.
        launcher: runs one launch.

    Raises:
        EvidenceError: the first launch of an arm failed, or one of its checks did, so that the others would too.
    """
    met: set[Arm] = set()
    for slot in session.slots:
        progress(slot, None)
        arm = session.second if slot.arm is Arm.B else session.first
        side = Arm.B if slot.arm is Arm.B else Arm.A
        started, began = datetime.now(timezone.utc), time.monotonic()
        outcome = launcher(arm, session.time_limit, NO_CHECKS if side in met else session.checks)
        launch = Launch(
            number=slot.number,
            arm=slot.arm,
            pair=slot.pair,
            control=slot.control,
            started=started.isoformat(timespec="milliseconds"),
            seconds=round(time.monotonic() - began, 3),
            measurement=outcome.measurement,
            error=outcome.error,
            fingerprint=outcome.fingerprint,
            conditions=outcome.conditions,
            notes=outcome.notes,
        )
        progress(slot, launch)
        yield launch
        if launch.measurement is None and side not in met:
            raise EvidenceError(f"the first launch of arm {side.value} failed, so no other was tried: {launch.error}")
        if launch.measurement is not None:
            _refuse_wrong(side, launch.measurement, own=arm.spec is not None)
        met.add(side)


def _refuse_wrong(side: Arm, measurement: Measurement, own: bool) -> None:
    """Refuse to time an arm that is wrong; `own` says that the checks were this bench's, and not a command's."""
    if not own and (failed := measurement.failed_checks()):
        raise EvidenceError(f"arm {side.value}: its command printed that a check of its own {'; '.join(failed)}")
    if measurement.conformance.startswith("failed"):
        raise EvidenceError(
            f"arm {side.value}: the kernels' check before the timed runs {measurement.conformance}; deny the kernel, "
            "or measure it all the same with --no-conformance, and the report says so"
        )
    if measurement.gate.startswith("failed"):
        raise EvidenceError(
            f"arm {side.value}: the check before the timed runs {measurement.gate}; where the target's numbers depend "
            "on the rows of a step, as they may on a GPU, --no-gate measures all the same, and the report says so"
        )


@contextmanager
def machine_alone(allow_concurrent: bool) -> Iterator[None]:
    """Hold this user's bench lock of the machine: two benches at once disturb each other (R4.1).

    Raises:
        EvidenceError: another bench of this user runs here, and `allow_concurrent` does not let that pass.
    """
    path = Path(tempfile.gettempdir(), f"dspark-ops-bench-{getpass.getuser()}.lock")
    with path.open("w", encoding="ascii") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if not allow_concurrent:
                raise EvidenceError(
                    f"another bench is running on this machine ({path} is held): wait for it, or say "
                    "--allow-concurrent, which the report will repeat"
                ) from None
        yield
