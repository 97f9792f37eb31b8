"""Gathering: what the doctor looks at, read without starting the device runtime in this process."""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import dspark_ops
from dspark_ops import contracts
from dspark_ops.config import load_configuration
from dspark_ops.doctor import gather_packages, gather_system, gather_tools
from dspark_ops.doctor.facts import CudaLibrary, Facts, TorchFacts, TritonFacts
from dspark_ops.errors import ConfigError, DeviceError, DsparkOpsError
from dspark_ops.selection.device import Device
from dspark_ops.selection.discovery import survey
from dspark_ops.selection.named_model import named_shapes
from dspark_ops.selection.packages import check_package
from dspark_ops.selection.plan import Plan
from dspark_ops.selection.planner import make_plan
from dspark_ops.selection.registry import Registry
from dspark_ops.selection.rows import row_counts
from dspark_ops.selection.settings import Settings

#: Variables of earlier versions: name, and what stands in their place. No release has removed one yet.
REMOVED: Final[Mapping[str, str]] = {}

#: Variables of other programs that the checks speak of.
_LOOKED_AT: Final = (
    "CUDA_VISIBLE_DEVICES",
    "HIP_VISIBLE_DEVICES",
    "ROCR_VISIBLE_DEVICES",
    "TRITON_INTERPRET",
)


@dataclass(frozen=True, slots=True)
class Request:
    """What the facts are gathered for.

    Attributes:
        device: what to plan for; None: the configured simulated device, else this machine's.
        which: index of this machine's device, where they differ.
        model: name of the model's shapes.
        rows: row counts.
        config: configuration file; None: the default files and the environment.
        environ: the environment; by default that of the process.
        root: the folder that holds ``proc`` and ``sys``.
        removed: variables that earlier versions had.
        time_limit: seconds that one child process may take.
    """

    device: Device | None = None
    which: int | None = None
    model: str = "deepseek-v4.1-flash/tp4"
    rows: Iterable[int] = range(1, 65)
    config: Path | None = None
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ)
    root: Path = Path("/")
    removed: Mapping[str, str] = field(default_factory=lambda: REMOVED)
    time_limit: float = 60.0


def gather(request: Request | None = None) -> Facts:
    """Return what is to be known of this machine, this installation and this configuration.

    Nothing is written but temporary files, and no device context is created in this process. Compilers and packages are
    asked in child processes with a time limit.

    Raises:
        ModelError: the model is unknown.
    """
    request = request or Request()
    environ = request.environ
    open_devices = gather_system.open_devices(request.root)
    started = _runtime_runs()
    settings, configuration_problem = _settings(request)
    registry = survey(settings)
    started_by_plugins = _runtime_runs() and not started
    device, device_problem = _device(request, settings)
    vendor = device.arch.vendor if device else ""
    # A simulated device's compilers and driver are those of another machine.
    here = vendor if device and not device.simulated else ""
    plan, plan_problem, start_problem = _plans(request, settings, registry, device)
    packages = gather_packages.needed(registry, device)
    version, built_for = gather_packages.torch_build()
    return Facts(
        device=device,
        device_problem=device_problem,
        adapters=gather_system.adapters(request.root),
        torch=TorchFacts(version, built_for, started, started_by_plugins, _in_forked_child()),
        triton=_triton(request, device),
        cuda_library=gather_tools.cuda_library(environ, request.time_limit) if here == "nvidia" else CudaLibrary(),
        start_method=multiprocessing.get_start_method(allow_none=True) or "",
        open_devices=open_devices,
        environment={name: environ[name] for name in (*_LOOKED_AT, *request.removed) if name in environ},
        configuration_problem=configuration_problem,
        removed_variables=request.removed,
        registry=registry,
        shadows=gather_packages.shadows(registry),
        packages=packages,
        named_modules=gather_packages.named_modules(),
        device_code=gather_packages.device_code(packages, here, built_for, request.time_limit),
        tools=gather_tools.compilers(here, environ, request.time_limit),
        caches=gather_system.caches(environ, here, gather_packages.cache_owners(), request.root),
        output_dtypes={
            name: tuple(output.dtype for output in contract.outputs)
            for name, contract in contracts.all_contracts().items()
        },
        plan=plan,
        plan_problem=plan_problem,
        start_problem=start_problem,
    )


def _settings(request: Request) -> tuple[Settings, str]:
    environ = {name: value for name, value in request.environ.items() if name not in request.removed}
    try:
        return load_configuration(request.config, environ=environ).settings, ""
    except ConfigError as error:
        # The rest is examined as if nothing were configured.
        return Settings(), str(error)


def _device(request: Request, settings: Settings) -> tuple[Device | None, str]:
    try:
        if request.device is not None:
            return request.device, ""
        if settings.simulate is not None and request.which is None:
            return Device.simulate(settings.simulate), ""
        return dspark_ops.probe(request.which), ""
    except DeviceError as error:
        return None, str(error)


def _plans(
    request: Request, settings: Settings, registry: Registry, device: Device | None
) -> tuple[Plan | None, str, str]:
    """Return the plan that shows all that is weak, why there is none, and what the policy in force says at start."""
    if device is None:
        return None, "", ""
    shapes = named_shapes(request.model)
    lenient = replace(settings, policy=replace(settings.policy, fallback="allow"))
    try:
        plan = make_plan(
            device=device,
            shapes=shapes,
            rows=row_counts(request.rows),
            settings=lenient,
            registry=registry,
            contracts=contracts.all_contracts(),
            packages=check_package,
        )
    except DsparkOpsError as error:
        return None, str(error), ""
    try:
        dspark_ops.plan(device=device, model=request.model, rows=request.rows, config=settings, registry=registry)
    except DsparkOpsError as error:
        return plan, "", str(error)
    return plan, "", ""


def _triton(request: Request, device: Device | None) -> TritonFacts:
    version, backends = gather_packages.triton_installation()
    if not version or device is None or not device.is_accelerator:
        return TritonFacts(version, backends)
    trial = gather_tools.triton_compiles(device.arch, request.environ, request.time_limit)
    return TritonFacts(version, backends, trial)


def _runtime_runs() -> bool:
    cuda: Any = getattr(sys.modules.get("torch"), "cuda", None)
    return cuda is not None and bool(cuda.is_initialized())


def _in_forked_child() -> bool:
    cuda: Any = getattr(sys.modules.get("torch"), "cuda", None)
    asks = getattr(cuda, "_is_in_bad_fork", None)
    return asks is not None and bool(asks())
