"""What every verb that draws checks first."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from dspark_ops.errors import ConfigError, MissingDependencyError


def check_plot(path: Path) -> None:
    """Refuse a picture that could not be written, before anything is computed.

    Raises:
        MissingDependencyError: matplotlib is not installed.
        ConfigError: the file's kind is not known, or its directory does not exist.
    """
    if find_spec("matplotlib") is None:
        raise MissingDependencyError(
            "--plot needs matplotlib, which is not installed: run  pip install 'dspark-ops[bench]'"
        )
    if path.suffix.lower() not in (".png", ".svg", ".pdf"):
        raise ConfigError(f"--plot {path}: wanted a file name that ends in .png, .svg or .pdf")
    if not path.resolve().parent.is_dir():
        raise ConfigError(f"--plot {path}: the directory {path.resolve().parent} does not exist")
