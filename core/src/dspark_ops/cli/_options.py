"""Options that several verbs have, and what they mean."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Annotated

import typer

from dspark_ops.config import Configuration, load_configuration
from dspark_ops.errors import ConfigError
from dspark_ops.selection.device import Device
from dspark_ops.selection.probe import probe
from dspark_ops.selection.rows import rows_of
from dspark_ops.selection.settings import Settings

DeviceOption = Annotated[
    str | None,
    typer.Option("--device", metavar="NAME", help="A simulated device: sm_103, gfx950, H200, cpu ..."),
]
WhichOption = Annotated[
    int | None, typer.Option("--which", metavar="INDEX", help="Which of this machine's devices, where they differ.")
]
ModelOption = Annotated[
    str, typer.Option("--model", metavar="NAME", help="Model, or a folder with its config.json; /tpN: one of N ranks.")
]
RowsOption = Annotated[str, typer.Option("--rows", metavar="COUNTS", help="Row counts: 6, 1-64 or 6-384/6.")]
ConfigOption = Annotated[
    Path | None, typer.Option("--config", metavar="FILE", help="Configuration file; it wins over dspark-ops.toml.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]

DEFAULT_MODEL = "deepseek-v4.1-flash/tp4"
DEFAULT_ROWS = "1-64"


def configured(config: Path | None) -> Configuration:
    """Return the configuration of this call, and log as it says."""
    configuration = load_configuration(config)
    # The library itself only ever writes to its logger; what is shown, and where, is the program's to decide.
    logging.basicConfig(format="dspark-ops: %(levelname)s: %(message)s")
    logging.getLogger("dspark_ops").setLevel((configuration.log or "warning").upper())
    return configuration


def chosen_device(name: str | None, which: int | None, settings: Settings) -> Device:
    """Return the device to plan for: the one named, else the configured one, else this machine's.

    Raises:
        ConfigError: a simulated device and one of this machine are both asked for.
        DeviceError: there is no such device.
    """
    if name is not None and which is not None:
        raise ConfigError(
            f"--device {name} is simulated, --which {which} is a device of this machine: give one of the two"
        )
    if name is not None:
        return Device.simulate(name)
    if which is None and settings.simulate is not None:
        return Device.simulate(settings.simulate)
    return probe(which)


def chosen_rows(text: str) -> tuple[int, ...]:
    """Return the row counts that ``--rows`` names.

    Raises:
        ConfigError: the text names none.
    """
    try:
        return rows_of(text)
    except ValueError as error:
        raise ConfigError(f"--rows: {error}") from None
