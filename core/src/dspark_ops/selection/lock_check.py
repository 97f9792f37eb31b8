"""What a lock means here: every point in which it and the present environment differ, named, and what that entails.

A *hard* difference is a definite conflict: the file belongs to another environment (another model or architecture), so
it is refused whatever the policy is, and not overwritten. A *soft* one may change what runs: ``prefer`` warns and plans
anew where the locked choice cannot hold, ``require`` refuses. What the writer did not *know* is only reported, and
filled in when the lock is written again.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any

from dspark_ops.errors import LockError, LockWarning
from dspark_ops.selection.lock import Lock, LockedChoice, lock_of
from dspark_ops.selection.rows import rows_of, rows_text

if TYPE_CHECKING:
    from dspark_ops.selection.device import Device
    from dspark_ops.selection.plan import Choice, Plan, Selection

__all__ = ["Difference", "Kind", "conflicts", "differences", "enforce", "plan_differences", "refuse_conflicts"]

_Place = tuple[str, str, tuple[tuple[str, int], ...], str]
#: Facts that only the machine with the device knows: a plan for a simulated device is not held against them.
_MACHINE = ("name", "units", "driver", "toolkit", "torch")


class Kind(str, Enum):
    """How much a difference means."""

    HARD = "hard"
    SOFT = "soft"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Difference:
    """One point in which a lock and the present differ.

    Attributes:
        name: the point, such as ``device.driver``, ``plugins.triton.files`` or ``argmax_rows at verify, rows 1-64``.
        kind: what it means.
        locked, here: both values, for people.
        why: what is known of the cause, or empty.
    """

    name: str
    kind: Kind
    locked: str
    here: str
    why: str = ""

    def __str__(self) -> str:
        if self.kind is Kind.UNKNOWN:
            return f"{self.name}: not known when the lock was written, here {self.here}"
        return f"{self.name}: locked {self.locked}, here {self.here}{f' ({self.why})' if self.why else ''}"


def conflicts(lock: Lock, device: Device, model: str) -> tuple[Difference, ...]:
    """Return the hard differences, which are known before anything is planned."""
    pairs = (("model", lock.model, model), ("device.arch", lock.device.get("arch", ""), device.arch.name))
    return tuple(Difference(name, Kind.HARD, old, new) for name, old, new in pairs if old != new)


def refuse_conflicts(lock: Lock, device: Device, model: str, path: str) -> None:
    """Refuse a lock of another environment.

    Raises:
        LockError: there is a hard difference; the text names each.
    """
    found = conflicts(lock, device, model)
    if found:
        lines = "\n".join(f"  {difference}" for difference in found)
        raise LockError(
            f"{path} belongs to another environment, and is neither used nor overwritten:\n{lines}\n"
            f"name another lock file (DSPARK_OPS_LOCK, or files.lock), or delete this one"
        )


def differences(
    locked: Lock,
    here: Lock,
    *,
    whole: bool = False,
    why: Callable[[str, str, str, int], str] = lambda operator, site, kernel, rows: "",
) -> tuple[Difference, ...]:
    """Return every point in which two locks differ: facts first, then choices.

    Args:
        locked: the file.
        here: the present.
        whole: what the file has and the present does not is a difference too. A plan of some operators or of fewer row
            counts is no difference by itself.
        why: returns why a kernel does not serve an operator at a site and row count any more.
    """
    found = [
        Difference(name, Kind.HARD, old, new)
        for name, old, new in (
            ("model", locked.model, here.model),
            ("device.arch", locked.device["arch"], here.device["arch"]),
        )
        if old != new
    ]
    found += _facts(locked, here)
    found += _mapping("settings", locked.settings, here.settings)
    found += _mapping("layouts", locked.layouts, here.layouts)
    found += _plugins(locked, here)
    return (*found, *_choices(locked, here, whole, why))


def plan_differences(lock: Lock, plan: Plan, *, whole: bool = False) -> tuple[Difference, ...]:
    """Return every point in which a lock and a plan differ, with the reasons why locked kernels do not serve."""
    return differences(lock, lock_of(plan), whole=whole, why=lambda *point: _why(plan, *point))


def enforce(lock: Lock, plan: Plan, *, mode: str, path: str, stacklevel: int = 3) -> None:
    """Warn of the differences between a lock and a plan, or refuse the plan, as ``policy.lock`` says.

    Raises:
        LockError: `mode` is ``require``, and a difference may change what runs.

    Warns:
        LockWarning: one for each difference that is let pass.
    """
    found = plan_differences(lock, plan)
    barring = [difference for difference in found if difference.kind is not Kind.UNKNOWN]
    if mode == "require" and barring:
        lines = "\n".join(f"  {difference}" for difference in barring)
        origin = plan.settings.origin("policy.lock")
        raise LockError(
            f"policy.lock is 'require' ({origin}), and {path} does not describe what would run here:\n{lines}\n"
            f"restore that environment, or review  dspark-ops plan --check  and run  dspark-ops plan --write"
        )
    for difference in found:
        warnings.warn(f"{path}: {difference}", LockWarning, stacklevel=stacklevel)


def _facts(locked: Lock, here: Lock) -> Iterator[Difference]:
    pairs = [(f"device.{name}", locked.device.get(name, ""), here.device[name]) for name in _MACHINE]
    pairs.append(("versions.triton", locked.versions.get("triton", ""), here.versions["triton"]))
    for name, old, new in () if here.device["simulated"] else pairs:
        if old != new:
            # A lock that was written for a simulated device has the catalogue's facts and its writer's versions.
            known = old and not locked.device.get("simulated")
            yield Difference(name, Kind.SOFT if known else Kind.UNKNOWN, _shown(old), _shown(new))
    for name in ("api", "dspark_ops"):
        old, new = locked.versions.get(name, ""), here.versions[name]
        if old != new:
            yield Difference(f"versions.{name}", Kind.SOFT, _shown(old), _shown(new))


def _mapping(name: str, locked: Mapping[str, str], here: Mapping[str, str]) -> Iterator[Difference]:
    for leaf in sorted({*locked, *here}):
        old, new = locked.get(leaf, ""), here.get(leaf, "")
        if old != new:
            yield Difference(f"{name}.{leaf}", Kind.SOFT, _shown(old), _shown(new))


def _plugins(locked: Lock, here: Lock) -> Iterator[Difference]:
    old, new = ({item["name"]: item for item in lock.plugins} for lock in (locked, here))
    for name in sorted({*old, *new}):
        if name not in new or name not in old:
            present = [item.get(name, {}).get("version", "") for item in (old, new)]
            yield Difference(f"plugins.{name}", Kind.SOFT, present[0] or "none", present[1] or "none")
            continue
        for field in ("distribution", "version", "files"):
            if old[name][field] != new[name][field]:
                kind = Kind.SOFT if old[name][field] else Kind.UNKNOWN
                yield Difference(f"plugins.{name}.{field}", kind, _short(old[name][field]), _short(new[name][field]))


def _choices(locked: Lock, here: Lock, whole: bool, why: Callable[[str, str, str, int], str]) -> Iterator[Difference]:
    old, new = _by_count(locked.selections), _by_count(here.selections)
    contracts: set[str] = set()
    for place, now in new.items():
        before = old.get(place, {})
        changed: dict[tuple[str, str], list[int]] = {}
        for count, line in now.items():
            past = before.get(count)
            if past is not None and past.contract != line.contract and line.operator not in contracts:
                contracts.add(line.operator)
                name = f"contracts.{line.operator}"
                yield Difference(name, Kind.SOFT, str(past.contract), str(line.contract))
            if past is None or past.kernel != line.kernel:
                changed.setdefault((past.kernel if past else "", line.kernel), []).append(count)
        for (was, is_now), counts in changed.items():
            cause = why(place[0], place[1], was, counts[0]) if was and not place[3] else ""
            yield Difference(_named(place, counts), Kind.SOFT, was or "nothing", is_now, cause)
    for place, before in old.items() if whole else ():
        gone: dict[str, list[int]] = {}
        for count, line in before.items():
            if count not in new.get(place, {}):
                gone.setdefault(line.kernel, []).append(count)
        for kernel, counts in gone.items():
            yield Difference(_named(place, counts), Kind.SOFT, kernel, "nothing")


def _by_count(lines: tuple[LockedChoice, ...]) -> dict[_Place, dict[int, LockedChoice]]:
    found: dict[_Place, dict[int, LockedChoice]] = {}
    for line in lines:
        found.setdefault(line.place, {}).update(dict.fromkeys(line.counts(), line))
    return found


def _named(place: _Place, counts: list[int]) -> str:
    operator, site, _, part_of = place
    return f"{operator} at {site}{f' as part of {part_of}' if part_of else ''}, rows {rows_text(sorted(counts))}"


def _why(plan: Plan, operator: str, site: str, kernel: str, rows: int) -> str:
    selections: tuple[Selection, ...] = tuple(
        item for item in plan.selections if item.operator == operator and item.site == site
    )
    choices: list[Choice] = [choice for item in selections for choice in item.choices if rows in rows_of(choice.rows)]
    for choice in choices:
        for refusal in choice.refused:
            if refusal.candidate.id == kernel:
                return f"refused: {'; '.join(map(str, refusal.reasons))}"
        if any(candidate.id == kernel for candidate in choice.standby):
            return "it may serve, but something comes before it"
    return "it is not installed" if choices else ""


def _shown(value: Any) -> str:
    return str(value) if value or value == 0 else "nothing"


def _short(value: str) -> str:
    return value[:19] if value.startswith("sha256:") else value or "nothing"
