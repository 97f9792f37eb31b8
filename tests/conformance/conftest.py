"""Kernels planted for one test, and graphs recorded on a CPU."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from dspark_ops.api import Kernel, Manifest
from dspark_ops.conformance.check import Request, run_check
from dspark_ops.conformance.report import Report
from dspark_ops.selection.discovery import build_registry
from dspark_ops.selection.registry import Registry

MODULE = "planted_kernels"


class Planted:
    """A plugin named ``planted``, made of functions of the test."""

    def __init__(self, module: ModuleType) -> None:
        self._module = module
        self._kernels: list[Kernel] = []

    def kernel(
        self, op: str, function: Callable[..., Any], prepare: Callable[..., Any] | None = None, **fields: Any
    ) -> str:
        """Plant a kernel and return its id."""
        variant = fields.pop("variant", function.__name__)
        setattr(self._module, function.__name__, function)
        if prepare is not None:
            setattr(self._module, prepare.__name__, prepare)
            fields["prepare"] = f"{MODULE}:{prepare.__name__}"
        self._kernels.append(Kernel(op, variant, f"{MODULE}:{function.__name__}", **fields))
        return f"planted/{op}/{variant}"

    @property
    def registry(self) -> Registry:
        return build_registry([Manifest("planted", ">=1,<2", tuple(self._kernels))])

    def check(self, *levels: str, **request: Any) -> Report:
        """Check on the CPU."""
        extra = {name: request.pop(name) for name in ("today", "harness") if name in request}
        asked = {"plugin": "planted", "device": "cpu", **request, **({"levels": levels} if levels else {})}
        return run_check(Request(**asked), self.registry, **extra)

    def texts(self, *levels: str, **request: Any) -> list[str]:
        """Return every failure as a text."""
        return [str(failure) for failure in self.check(*levels, **request).failures()]


@pytest.fixture
def planted(monkeypatch: pytest.MonkeyPatch) -> Planted:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    module = ModuleType(MODULE)
    monkeypatch.setitem(sys.modules, MODULE, module)
    return Planted(module)


class _Recorder(TorchDispatchMode):
    """Notes every operation on tensors, as a graph notes launches; a value that is read on the host is refused."""

    def __init__(self) -> None:
        super().__init__()
        self.entries: list[tuple[Any, Any, Any, Any]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func._schema.name in ("aten::_local_scalar_dense", "aten::nonzero"):
            raise RuntimeError(f"{func._schema.name} waits for the device")
        result = func(*args, **(kwargs or {}))
        self.entries.append((func, args, kwargs or {}, result))
        return result


class RecordedGraphs:
    """A stand-in for graphs on a CPU: a replay repeats the recorded operations on the same memory, and nothing else.

    So whatever a kernel does beside torch operations is done once, when it is captured, as on a real device.
    """

    def capture(self, call: Callable[[], Any]) -> tuple[Any, Callable[[], None]]:
        with _Recorder() as recorder:
            returned = call()

        def replay() -> None:
            for func, args, kwargs, result in recorder.entries:
                again = func(*args, **kwargs)
                for old, new in zip(_tensors(result), _tensors(again), strict=True):
                    if "empty" not in func._schema.name and old.data_ptr() != new.data_ptr():
                        old.copy_(new)

        return returned, replay

    def allocations(self, call: Callable[[], Any]) -> tuple[Any, int]:
        return call(), 0

    def unsynchronised(self, call: Callable[[], Any]) -> Any:
        with _Recorder():
            return call()


def _tensors(value: Any) -> list[torch.Tensor]:
    return [item for item in (value if isinstance(value, tuple | list) else (value,)) if isinstance(item, torch.Tensor)]


@pytest.fixture
def recorded_graphs() -> RecordedGraphs:
    return RecordedGraphs()
