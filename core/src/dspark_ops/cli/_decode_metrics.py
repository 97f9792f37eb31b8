"""The metrics file of the decode verb."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from dspark_ops.errors import ConfigError

if TYPE_CHECKING:
    from dspark_ops.cli._decode_run import DecodeRun


def check_metrics(path: Path) -> None:
    """Return if the file's name says what is to be written, and its folder is there.

    Raises:
        ConfigError: it does not, or is not.
    """
    if path.suffix not in (".json", ".prom"):
        raise ConfigError(f"--metrics {path}: wanted a name that ends in .json, or in .prom for Prometheus text")
    if not path.parent.is_dir():
        raise ConfigError(f"--metrics {path}: the folder {path.parent} does not exist")


def save_metrics(run: DecodeRun, path: Path) -> None:
    """Write counters and figures of the run that was asked for, as JSON or as Prometheus text.

    Raises:
        ConfigError: the file cannot be written.
    """
    from dspark_ops.decode.figures import figures_of, prometheus_text

    metrics, simulated = run.main.metrics, run.main.simulated is not None
    if path.suffix == ".prom":
        text = prometheus_text(metrics, {"model": run.arguments.model.name}, simulated=simulated)
    else:
        figures = figures_of(metrics, run.main.results, simulated=simulated).to_json()
        found = {"counts": metrics.to_json(), "figures": figures, "simulated": run.main.simulated or False}
        text = json.dumps(found, indent=2) + "\n"
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"--metrics {path}: cannot be written: {error.strerror}") from error
