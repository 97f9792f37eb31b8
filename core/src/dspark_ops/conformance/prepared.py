"""The launches of a kernel on a device that need not be present, as its own host code makes them.

A kernel's `prepare` compiles what a place of a model needs. Here it runs with tensors in host memory, and its launches
are noted instead of made: which function, with which types, constants and options. `build` then compiles one of them.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dspark_ops._lazy import torch
from dspark_ops.conformance.compiled import CompiledKernel, compile_kernel, compile_target
from dspark_ops.selection.device import Device

__all__ = ["Launch", "build", "launches_of_call", "launches_of_preparation", "recorded_launches"]


@dataclass(frozen=True, slots=True)
class Launch:
    """One launch as host code asks for it.

    Attributes:
        function: the ``@triton.jit`` function.
        grid: its programs.
        signature: Triton type per run-time argument.
        constants: values of compile-time arguments, those that Triton makes of 1 and None included.
        aligned: arguments that are known to be multiples of 16.
        options: compiler options, such as ``num_warps``.
    """

    function: Any
    grid: tuple[int, ...]
    signature: Mapping[str, str]
    constants: Mapping[str, Any]
    aligned: tuple[str, ...]
    options: Mapping[str, Any]

    @property
    def name(self) -> str:
        """``module:function``."""
        return f"{self.function.fn.__module__}:{self.function.fn.__name__}"

    @property
    def key(self) -> str:
        """A text that is equal for launches of one build."""
        parts = (sorted(self.signature.items()), sorted(self.constants.items(), key=lambda item: item[0]))
        return f"{self.name} {parts} {self.aligned} {sorted(self.options.items())}"


@dataclass(slots=True)
class _Recorder:
    """Stands in for Triton's launch."""

    backend: Any
    launches: list[Launch] = field(default_factory=list)
    binders: dict[Any, Callable[..., Any]] = field(default_factory=dict)

    def note(self, function: Any, arguments: tuple[Any, ...], grid: Any, named: dict[str, Any]) -> None:
        from triton.runtime.jit import create_function_from_signature

        if function not in self.binders:
            self.binders[function] = create_function_from_signature(function.signature, function.params, self.backend)
        bound, specialization, options = self.binders[function](*arguments, **named)
        names = [parameter.name for parameter in function.params]
        kinds = dict(zip(names, specialization, strict=True))
        constants = {name: bound[name] for name, kind in kinds.items() if kind[0] == "constexpr"}
        self.launches.append(
            Launch(
                function=function,
                grid=tuple(grid(bound) if callable(grid) else grid),
                signature={name: kind[0] for name, kind in kinds.items() if name not in constants},
                constants=constants,
                aligned=tuple(name for name, kind in kinds.items() if name not in constants and "D" in (kind[1] or "")),
                options=options,
            )
        )


@contextlib.contextmanager
def recorded_launches(device: Device) -> Iterator[list[Launch]]:
    """Note launches inside a ``with`` block instead of making them; what is allocated on the GPU lies in host memory.

    Args:
        device: for which Triton and the host code are to take the launches.
    """
    from triton.compiler.compiler import make_backend
    from triton.runtime.jit import JITFunction

    recorder = _Recorder(make_backend(compile_target(device.arch)))

    def run(self: Any, *arguments: Any, grid: Any, warmup: bool, **named: Any) -> None:
        recorder.note(self, arguments, grid, named)

    launch, hip = JITFunction.run, torch.version.hip
    JITFunction.run = run
    torch.version.hip = "simulated" if device.arch.vendor == "amd" else None
    try:
        with _host_memory():
            yield recorder.launches
    finally:
        JITFunction.run = launch
        torch.version.hip = hip


def _host_memory() -> Any:
    """Return a context in which tensors that are asked for on a GPU are made in host memory."""

    def on_host(value: Any) -> Any:
        where = value.type if isinstance(value, torch.device) else value
        return "cpu" if isinstance(where, str) and where.partition(":")[0] == "cuda" else value

    class Redirected(torch.overrides.TorchFunctionMode):  # type: ignore[misc, name-defined]
        def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if function is torch.device or getattr(function, "__name__", "") == "device":
                return function(*args, **(kwargs or {}))
            named = {name: on_host(value) for name, value in (kwargs or {}).items()}
            return function(*(on_host(value) for value in args), **named)

    return Redirected()


def launches_of_preparation(
    prepare: str, device: Device, problem: Any, rows: Sequence[int]
) -> tuple[tuple[Launch, ...], Callable[..., Any]]:
    """Return the launches that a kernel's preparation makes, one per build, and the callable that it returns.

    Args:
        prepare: ``module:attribute``, as a kernel names it.
        device: the planned device, simulated or not.
        problem: the place (`dspark_ops.selection.problem.Problem`).
        rows: row counts planned there.
    """
    module, _, attribute = prepare.partition(":")
    function = getattr(importlib.import_module(module), attribute)
    with recorded_launches(device) as launches:
        bound = function(device, problem, rows)
    return tuple({launch.key: launch for launch in launches}.values()), bound


def launches_of_call(function: Callable[..., Any], device: Device, inputs: Mapping[str, Any]) -> tuple[Launch, ...]:
    """Return the launches of one call, in order; its results hold nothing.

    Args:
        function: a kernel, or what its preparation returned.
        device: the planned device.
        inputs: arguments by name, tensors in host memory.
    """
    with recorded_launches(device) as launches:
        function(**inputs)
    return tuple(launches)


def build(launch: Launch, arch: str) -> CompiledKernel:
    """Return what the compiler makes of one launch for an architecture."""
    return compile_kernel(launch.function, arch, launch.signature, launch.constants, launch.options, launch.aligned)
