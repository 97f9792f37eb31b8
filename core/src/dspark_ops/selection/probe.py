"""The probe: which device this machine has, found without creating a device context and without importing torch."""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from importlib import metadata
from pathlib import Path
from typing import Any, Final

from dspark_ops.api.arch import Arch
from dspark_ops.errors import DeviceError
from dspark_ops.selection.catalogue import features_of
from dspark_ops.selection.device import Device
from dspark_ops.selection.probe_amd import amd_devices
from dspark_ops.selection.probe_nvidia import nvidia_devices

__all__ = ["ProbeSources", "probe", "probe_all"]

_FACTS: Final = ("units", "memory", "driver", "toolkit", "torch")
_TOOLKIT: Final = re.compile(r"^(?P<kind>cuda|hip)\b[^=\n]*=\s*['\"](?P<version>[^'\"]+)['\"]", re.MULTILINE)


def _import_nvml() -> Any:
    return importlib.import_module("pynvml")


@dataclass(frozen=True, slots=True)
class ProbeSources:
    """Where the probe looks; tests give their own.

    Attributes:
        root: the folder that holds ``proc``, ``sys`` and ``dev``.
        nvml: returns the NVML binding, or raises ImportError.
        modules: modules that are already imported. torch is only ever taken from here.
    """

    root: Path = Path("/")
    nvml: Callable[[], Any] = _import_nvml
    modules: Mapping[str, Any] = field(default_factory=lambda: sys.modules)


def probe(which: int | None = None, *, sources: ProbeSources | None = None) -> Device:
    """Return this machine's device, with the origin of every field; the CPU if it has no accelerator.

    Where torch is imported and has started its device runtime already, it is asked, since it knows which devices are
    visible to this process. Otherwise the drivers are read (NVML or ``/proc/driver/nvidia``; KFD in ``/sys``), which
    starts nothing, leaves a later fork free, and lists all devices of the machine.

    Args:
        which: index into the list that `probe_all` returns; needed only where the devices differ.
        sources: where to look.

    Raises:
        DeviceError: the devices differ and none is named, there is no such index, or a driver answers with an error.
            A driver that fails does not make a GPU machine a CPU.
    """
    devices = probe_all(sources=sources)
    if which is not None:
        if not 0 <= which < len(devices):
            raise DeviceError(f"no device {which}: this machine has {_listed(devices)}")
        return replace(devices[which], index=which)
    kinds = {(device.arch, device.name, device.units, device.memory) for device in devices}
    if len(kinds) > 1:
        raise DeviceError(
            f"the devices of this machine differ, so one must be named: {_listed(devices)}; "
            "give its index, as in probe(0) or --which 0"
        )
    return devices[0]


def probe_all(*, sources: ProbeSources | None = None) -> tuple[Device, ...]:
    """Return every device of this machine in the order of its drivers, or the CPU alone.

    Raises:
        DeviceError: a driver answers with an error.
    """
    sources = sources or ProbeSources()
    notes: list[str] = []
    devices = tuple(_torch_devices(sources))
    if not devices:
        devices = (*nvidia_devices(sources.root, sources.nvml, notes), *amd_devices(sources.root, notes))
    if not devices:
        devices = (_cpu("; ".join(notes)),)
    facts, origins = _torch_facts(sources)
    origins = {**dict.fromkeys(_FACTS, "no source gave it"), **origins, "features": "catalogue, by architecture"}
    return tuple(
        replace(device, torch=facts["torch"], toolkit=facts["toolkit"], origins={**origins, **device.origins})
        for device in devices
    )


def _cpu(why: str) -> Device:
    arch = Arch.parse("cpu")
    return Device(
        arch, "cpu", features_of(arch), origins=dict.fromkeys(("arch", "name"), why or "no accelerator found")
    )


def _listed(devices: tuple[Device, ...]) -> str:
    return ", ".join(f"{index}: {device.name} ({device.arch})" for index, device in enumerate(devices))


def _torch_facts(sources: ProbeSources) -> tuple[dict[str, str], dict[str, str]]:
    """Return torch's version and the toolkit it was built for, and their origins."""
    torch = sources.modules.get("torch")
    built_for = getattr(torch, "version", None)
    if built_for is not None:
        toolkit = built_for.cuda or getattr(built_for, "hip", None) or ""
        facts = {"torch": str(getattr(torch, "__version__", "")), "toolkit": toolkit}
        return facts, dict.fromkeys(facts, "torch, already imported")
    try:
        distribution = metadata.distribution("torch")
    except metadata.PackageNotFoundError:
        return {"torch": "", "toolkit": ""}, {"torch": "not installed"}
    facts, origins = {"torch": distribution.version, "toolkit": ""}, {"torch": "package metadata"}
    version_file = Path(str(distribution.locate_file("torch/version.py")))
    if version_file.is_file():
        found = _TOOLKIT.search(version_file.read_text(encoding="utf-8", errors="replace"))
        if found:
            facts["toolkit"] = found["version"]
            origins["toolkit"] = "torch/version.py, not imported"
    return facts, origins


def _torch_devices(sources: ProbeSources) -> Iterator[Device]:
    """Yield torch's devices if it has started its runtime already: asking then costs nothing and starts nothing."""
    cuda = getattr(sources.modules.get("torch"), "cuda", None)
    if cuda is None or not cuda.is_initialized():
        return
    for index in range(cuda.device_count()):
        properties = cuda.get_device_properties(index)
        gcn = getattr(properties, "gcnArchName", "")  # a CUDA build of torch puts the product's name there
        arch = Arch.parse(gcn if gcn.startswith("gfx") else f"{properties.major}.{properties.minor}")
        yield Device(
            arch=arch,
            name=properties.name,
            features=features_of(arch),
            units=properties.multi_processor_count,
            memory=properties.total_memory,
            origins=dict.fromkeys(("arch", "name", "units", "memory"), "torch, already started"),
        )
