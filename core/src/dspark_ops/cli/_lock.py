"""What the verbs about lock files share: which file is meant, planning for it, writing it, and showing differences."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any

from dspark_ops._entry import started
from dspark_ops.cli._options import chosen_device, chosen_rows, configured
from dspark_ops.cli._show import console, table
from dspark_ops.errors import ConfigError, SelectionWarning
from dspark_ops.selection.lock import DEFAULT_LOCK, Lock, lock_of, write_lock
from dspark_ops.selection.lock_check import Difference, differences
from dspark_ops.selection.start import Purpose, Started


def planned_for_lock(
    *,
    device: str | None,
    which: int | None,
    model: str,
    rows: str,
    config: Path | None,
    file: Path | None,
    unlocked: Collection[str] | None = (),
) -> tuple[Started, Path, list[str]]:
    """Return the plan made for a lock file, the file, and what is to be said about the plan.

    The choices of the existing file are kept where they still hold; measured times decide the rest.

    Args:
        device: name of a simulated device.
        which: index of a device of this machine.
        model: name of the model.
        rows: row counts.
        config: configuration file.
        file: the lock file; by default the configured one, else ``dspark-ops.lock``.
        unlocked: operators that are chosen anew; None stands for all.
    """
    settings = configured(config).settings
    path = file or Path(settings.files.lock or DEFAULT_LOCK)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", SelectionWarning)
        result = started(
            device=chosen_device(device, which, settings),
            model=model,
            rows=chosen_rows(rows),
            config=settings,
            purpose=Purpose(write=True, unlocked=unlocked, path=str(path)),
        )
    for warning in caught:
        warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)
    findings = [str(warning.message) for warning in caught if issubclass(warning.category, SelectionWarning)]
    findings += [str(failure) for failure in result.plan.failures if failure.stage != "blocked"]
    return result, path, findings


def written_lock(result: Started, path: Path) -> tuple[Lock, tuple[Difference, ...]]:
    """Write the lock of a plan, and return it with what has changed against the old file.

    Raises:
        ConfigError: the file cannot be written.
    """
    lock = lock_of(result.plan)
    changed = differences(result.lock, lock, whole=True) if result.lock else ()
    try:
        write_lock(path, lock)
    except OSError as error:
        raise ConfigError(f"--write {path}: the lock file cannot be written: {error.strerror}") from error
    return lock, changed


def show_differences(title: str, found: Iterable[Difference], columns: tuple[str, str] = ("locked", "here")) -> None:
    """Print differences, one per line."""
    rows = [(item.name, item.kind.value, item.locked, item.here, item.why) for item in found]
    console().print(table(title, ("point", "kind", *columns, "why"), rows))


def differences_json(found: Iterable[Difference]) -> list[dict[str, Any]]:
    """Return differences with plain types."""
    return [
        {"name": item.name, "kind": item.kind.value, "locked": item.locked, "here": item.here, "why": item.why}
        for item in found
    ]
