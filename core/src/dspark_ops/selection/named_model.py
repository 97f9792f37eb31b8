"""The sizes of the model that a text names: one known by name, or a directory that holds a config.json."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Final

from dspark_ops.contracts.model_shapes import ModelShapes, model_shapes
from dspark_ops.errors import ModelError

__all__ = ["CONFIG", "named_shapes"]

CONFIG: Final = "config.json"
_PARALLEL: Final = re.compile(r"/tp(?P<ranks>[1-9]\d*)$")


def named_shapes(model: str) -> ModelShapes:
    """Return the sizes of a model: ``deepseek-v4.1-flash/tp4``, or ``DIR`` or ``DIR/tp4`` where DIR has a config.json.

    A directory's model is called as its last folder, so that plans and locks do not depend on where it lies.

    Raises:
        ModelError: there is no such model, its config.json cannot be read or states too little, or ``/tpN`` cannot
            split it.
    """
    parallel = _PARALLEL.search(model)
    folder = Path(model[: parallel.start()] if parallel else model)
    if not (folder / CONFIG).is_file():
        return model_shapes(model)
    try:
        values = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelError(f"{folder / CONFIG}: cannot be read as JSON: {error}") from error
    if not isinstance(values, dict):
        raise ModelError(f"{folder / CONFIG}: wanted one JSON object, got {type(values).__name__}")
    shapes = ModelShapes.from_config(values, folder.resolve().name)
    return shapes.sharded(int(parallel["ranks"])) if parallel else shapes
