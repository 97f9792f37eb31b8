"""Tile sizes as data: ``tiles.json``, by architecture, operator and sizes, as benchmarks/tune_tiles.py writes it."""

from __future__ import annotations

import json
from dataclasses import replace
from importlib.resources import files
from typing import Any, TypeVar

from dspark_ops_triton.blocks.dependent import has_pdl

Tiles = TypeVar("Tiles")


def tiles_for(operator: str, device: Any, site: Any, default: Tiles) -> Tiles:
    """Return how an operator's work is cut at a place of a model on a device, and whether it is launched early.

    Args:
        operator: its name, as in the table.
        device: the planned device (`dspark_ops.selection.Device`): its architecture and features are read.
        site: the place: its axes are read.
        default: a frozen dataclass with a field `pdl`. The table replaces fields of it where it has an entry for the
            architecture whose axes are those of the place; nothing is taken from another architecture's entries.
    """
    return replace(default, **entry(read_table(), device.arch.name, operator, site.axes), pdl=has_pdl(device))


def entry(table: dict[str, Any], arch: str, operator: str, axes: Any) -> dict[str, int]:
    """Return the fields that the table sets for an architecture, an operator and sizes; none where it has no entry."""
    for candidate in table.get(arch, {}).get(operator, ()):
        if all(axes.get(name) == size for name, size in candidate["axes"].items()):
            return dict(candidate["tiles"])
    return {}


def read_table() -> dict[str, Any]:
    """Return the table as it is shipped."""
    table: dict[str, Any] = json.loads(files("dspark_ops_triton").joinpath("tiles.json").read_text(encoding="utf-8"))
    return table
