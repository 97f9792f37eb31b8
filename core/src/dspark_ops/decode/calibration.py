"""Sequential temperature scaling: the table that makes a drafter's confidences mean what they say (C1.9)."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from dspark_ops.errors import ConfigError

__all__ = ["Calibration", "read_calibration", "write_calibration"]


@dataclass(frozen=True, slots=True)
class Calibration:
    """Temperatures by draft position, fitted to the product of confidences.

    A table fitted to single confidences is another kind of table and must not be used in its place (C1.9.5).
    `dspark_ops.decode.sts_fit.fit_sts` makes one.

    Attributes:
        temperatures: one positive number per draft position.
        dataset, samples: what they were fitted on.
        ece_before, ece_after: expected calibration error by position, if recorded.
    """

    temperatures: tuple[float, ...]
    dataset: str = ""
    samples: int = 0
    ece_before: tuple[float, ...] = ()
    ece_after: tuple[float, ...] = ()


def read_calibration(path: str | Path, gamma: int) -> Calibration:
    """Return the table that a JSON file holds.

    Its keys are ``temperatures`` and, for the record, ``dataset``, ``num_samples``, ``ece_before`` and ``ece_after``.

    Args:
        path: the file.
        gamma: drafts per block; the table must have exactly as many temperatures.

    Raises:
        ConfigError: the file is missing, is not such a table, or has another number of temperatures.
    """
    place = Path(path)
    try:
        data = json.loads(place.read_text(encoding="utf-8"))
        temperatures = tuple(float(value) for value in data["temperatures"])
        errors = [tuple(float(value) for value in data.get(key) or ()) for key in ("ece_before", "ece_after")]
        table = Calibration(temperatures, str(data.get("dataset", "")), int(data.get("num_samples", 0)), *errors)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(
            f"cannot read confidence temperatures from {place}: {type(error).__name__}: {error}"
        ) from error
    if len(temperatures) != gamma:
        raise ConfigError(
            f"confidence temperatures in {place}: wanted {gamma}, one per draft of a block, got {len(temperatures)}"
        )
    if not all(0 < value < float("inf") for value in temperatures):
        raise ConfigError(f"confidence temperatures in {place}: wanted positive numbers, got {list(temperatures)}")
    return table


def write_calibration(path: str | Path, table: Calibration) -> None:
    """Write a table as JSON, in the form that `read_calibration` and SGLang read.

    Args:
        path: the file; an existing one is replaced.
        table: the table.

    Raises:
        ConfigError: the file cannot be written.

    Source: C1.9.4.
    """
    data = {
        "temperatures": table.temperatures,
        "dataset": table.dataset,
        "num_samples": table.samples,
        "ece_before": table.ece_before,
        "ece_after": table.ece_after,
    }
    place = Path(path)
    try:
        place.write_text(json.dumps(data, indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot write confidence temperatures to {place}: {error}") from error
