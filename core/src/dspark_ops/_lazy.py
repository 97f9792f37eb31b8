"""Modules that are imported at their first use, so that contract data can be read where torch is not installed."""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import TYPE_CHECKING, Any

from dspark_ops.errors import MissingDependencyError


class LazyModule:
    """Stand-in for a module: the first attribute access imports it.

    Raises:
        MissingDependencyError: at that access, if the module is not installed. The text names the extra to install.
    """

    def __init__(self, name: str, extra: str) -> None:
        self._name = name
        self._extra = extra
        self._module: ModuleType | None = None

    def __getattr__(self, attribute: str) -> Any:
        if self._module is None:
            try:
                self._module = importlib.import_module(self._name)
            except ModuleNotFoundError as error:
                if error.name != self._name:
                    raise
                raise MissingDependencyError(
                    f"this needs {self._name}, which is not installed: run  pip install 'dspark-ops[{self._extra}]'"
                ) from error
        return getattr(self._module, attribute)


if TYPE_CHECKING:
    import torch
else:
    torch = LazyModule("torch", "torch")

__all__ = ["LazyModule", "torch"]
