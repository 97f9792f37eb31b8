"""One start: gather what is known, plan with it, and hold the plan against the lock.

Every way to a plan goes through here: `dspark_ops.plan`, the command line, and the planning anew after a trial run has
quarantined a kernel. Files are read here and nowhere else in selection.
"""

from __future__ import annotations

import warnings
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from dspark_ops import contracts
from dspark_ops.api.kernel import Package
from dspark_ops.api.reason import Reason
from dspark_ops.contracts.contract import Contract
from dspark_ops.contracts.model_shapes import ModelShapes
from dspark_ops.errors import LockError, LockWarning
from dspark_ops.selection.device import Device
from dspark_ops.selection.evidence import digest_of, proofs, read_evidence, shipped_evidence
from dspark_ops.selection.fingerprint import fingerprint
from dspark_ops.selection.knowledge import NOTHING, Knowledge, Place
from dspark_ops.selection.known_bad import read_known_faults
from dspark_ops.selection.lock import DEFAULT_LOCK, Lock, read_lock
from dspark_ops.selection.lock_check import enforce, refuse_conflicts
from dspark_ops.selection.measured import read_tables, usable_times
from dspark_ops.selection.packages import check_package
from dspark_ops.selection.plan import Plan
from dspark_ops.selection.planner import make_plan
from dspark_ops.selection.registry import Registry
from dspark_ops.selection.settings import Settings

__all__ = ["Purpose", "Started", "start"]


@dataclass(frozen=True, slots=True)
class Purpose:
    """What a plan is made for, where that is not simply to run.

    Attributes:
        write: a lock is to be written or checked: the existing one is preferred and not enforced, measured times count,
            and records of evidence are looked up so that the lock can name them.
        unlocked: operators for which the existing lock does not count; None stands for all.
        path: the lock file, where the configuration's is not meant.
        quarantined: kernels that failed a trial run, with what happened.
    """

    write: bool = False
    unlocked: Collection[str] | None = ()
    path: str | None = None
    quarantined: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Started:
    """A plan with the lock that it was held against: None where there is none or it is off."""

    plan: Plan
    lock: Lock | None
    path: str


def start(
    *,
    device: Device,
    shapes: ModelShapes,
    rows: tuple[int, ...],
    settings: Settings,
    registry: Registry,
    operators: Sequence[str] | None = None,
    purpose: Purpose | None = None,
) -> Started:
    """Return the plan that the configuration, the lock and the records give, held against the lock as the policy says.

    Raises:
        SelectionError, ConfigError: as `dspark_ops.selection.planner.make_plan`.
        LockError: the lock is damaged, of another environment, absent although ``policy.lock`` is ``require``, or does
            not describe the plan although it is.

    Warns:
        LockWarning: ``policy.lock`` is ``prefer``, and the lock is absent or does not describe the plan.
    """
    purpose = purpose or Purpose()
    known = contracts.all_contracts()
    path = purpose.path or settings.files.lock or DEFAULT_LOCK
    mode = _mode(settings, purpose, path)
    lock = _lock(settings, mode, path, quiet=purpose.write)
    if lock is not None:
        refuse_conflicts(lock, device, shapes.name, path)
    plan = make_plan(
        device=device,
        shapes=shapes,
        rows=rows,
        settings=settings,
        registry=registry,
        contracts=known,
        operators=operators,
        packages=_packages,
        knowledge=_knowledge(settings, device, registry, known, lock, path, purpose),
    )
    if lock is not None and not purpose.write:
        enforce(lock, plan, mode=mode, path=path, stacklevel=4)
    return Started(plan, lock, path)


def _mode(settings: Settings, purpose: Purpose, path: str) -> str:
    if purpose.write:
        return "prefer" if Path(path).exists() else "off"
    return settings.policy.lock or ("prefer" if settings.files.lock else "off")


def _lock(settings: Settings, mode: str, path: str, *, quiet: bool) -> Lock | None:
    if mode == "off":
        return None
    try:
        return read_lock(path)
    except FileNotFoundError:
        leaf = "files.lock" if settings.files.lock else "policy.lock"
        text = f"there is no lock file {path} ({leaf}, {settings.origin(leaf)}): run  dspark-ops plan --write"
    if mode == "require":
        raise LockError(f"policy.lock is 'require' ({settings.origin('policy.lock')}), and {text}")
    if not quiet:
        warnings.warn(text, LockWarning, stacklevel=4)
    return None


def _knowledge(
    settings: Settings,
    device: Device,
    registry: Registry,
    known: Mapping[str, Contract],
    lock: Lock | None,
    path: str,
    purpose: Purpose,
) -> Knowledge:
    files = settings.files
    found = Knowledge(faults=read_known_faults(files.known_bad), quarantined=purpose.quarantined)
    if files.evidence or settings.policy.evidence is not None or purpose.write:
        records = [*read_evidence(files.evidence), *shipped_evidence(registry)]
        versions = {name: contract.version for name, contract in known.items()}
        found = replace(found, proofs=proofs(records, registry, device.arch.name, versions))
    if lock is not None and purpose.unlocked is not None:
        locked = _locked(lock, purpose.unlocked)
        found = replace(found, locked=locked, lock_origin=path, layouts=lock.layouts)
    if purpose.write and files.measured is not None:
        mark = fingerprint(device)
        table = read_tables(files.measured).get(mark)
        if table is None:
            text = f"{files.measured} has no times of this device ({mark}): run  dspark-ops tune"
            warnings.warn(text, LockWarning, stacklevel=5)
        else:
            kernels = {kernel.id: kernel for entries in registry.kernels.values() for kernel in entries}
            times = usable_times(table.times, lambda name: digest_of(kernels[name]) if name in kernels else "")
            found = replace(found, times=times, times_origin=f"{files.measured} of {table.date[:10]}")
    # The usual start knows nothing beside the configuration, and the planner then asks nothing of what is known.
    return found if found != NOTHING else NOTHING


def _locked(lock: Lock, unlocked: Collection[str]) -> dict[Place, dict[int, str]]:
    """Return the lock's kernel by place and row count; parts of an operator that is unlocked are unlocked with it."""
    found: dict[Place, dict[int, str]] = {}
    for line in lock.selections:
        if line.operator not in unlocked and line.part_of not in unlocked:
            place = (line.operator, (line.site, tuple(sorted(line.axes.items()))))
            found.setdefault(place, {}).update(dict.fromkeys(line.counts(), line.kernel))
    return found


def _packages(package: Package) -> Reason | None:
    return check_package(package)
