"""``dspark-ops lock upgrade``: choose some operators anew and keep every other choice of the lock file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dspark_ops import contracts
from dspark_ops.cli._lock import differences_json, planned_for_lock, show_differences, written_lock
from dspark_ops.cli._options import ConfigOption, DeviceOption, JsonOption, WhichOption, configured
from dspark_ops.cli._show import console, print_json
from dspark_ops.errors import ConfigError
from dspark_ops.selection.lock import DEFAULT_LOCK, read_lock

OpOption = Annotated[
    list[str] | None, typer.Option("--op", metavar="NAME", help="Operator to choose anew. Repeatable. Default: all.")
]
FileArgument = Annotated[
    Path | None, typer.Argument(metavar="[FILE]", help="The lock file, if not the configured one.")
]


def upgrade(
    file: FileArgument = None,
    op: OpOption = None,
    device: DeviceOption = None,
    which: WhichOption = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Choose operators anew and rewrite the lock.

    Model and row counts are those of the lock file. Every other operator keeps its locked choice, and the parts of a
    fused operator are chosen with it. Measured times (files.measured) count.
    """
    for name in op or ():
        contracts.get(name)
    path = file or Path(configured(config).settings.files.lock or DEFAULT_LOCK)
    try:
        old = read_lock(path)
    except FileNotFoundError:
        raise ConfigError(f"there is no lock file {path} to upgrade: run  dspark-ops plan --write") from None
    if device is None and which is None and old.device.get("simulated"):
        device = str(old.device["arch"])
    result, path, _ = planned_for_lock(
        device=device, which=which, model=old.model, rows=old.rows, config=config, file=path, unlocked=op or None
    )
    lock, changed = written_lock(result, path)
    if as_json:
        print_json({"lock": str(path), "digest": lock.digest, "changed": differences_json(changed)})
    elif changed:
        show_differences(f"changed in {path}", changed, ("before", "now"))
    else:
        console().print(f"{path}: nothing better is known; it stays as it was", markup=False)
