"""The machine of a measurement: whether there is a GPU, what a figure has to be read with, and what is the floor."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from typing import Any, Final

import dspark_ops
from dspark_ops._lazy import torch
from dspark_ops.bench.floors import MachineFloor
from dspark_ops.errors import DeviceError
from dspark_ops.selection.device import Device

__all__ = ["OWN", "add_floor", "cache_bytes", "machine_facts", "require_gpu"]

#: Name of the planned kernel's arm.
OWN: Final = "own"


def require_gpu() -> Device:
    """Return this machine's GPU.

    Raises:
        DeviceError: there is none that torch can use.
    """
    if not torch.cuda.is_available():
        raise DeviceError(
            f"bench times kernels on a GPU, and torch {torch.__version__} finds none here: run it on a machine with "
            f"one (dspark-ops devices lists what is seen); timings of a CPU would say nothing about kernels"
        )
    return dspark_ops.probe()


def machine_facts(device: Device) -> dict[str, Any]:
    """Return what a recorded figure has to be read with: the GPU, its driver, and the versions of what ran."""

    def version_of(package: str) -> str:
        try:
            return version(package)
        except PackageNotFoundError:
            return ""

    properties = torch.cuda.get_device_properties(torch.cuda.current_device())
    return {
        "device": device.name,
        "arch": device.arch.name,
        "units": properties.multi_processor_count,
        "l2_bytes": cache_bytes(),
        "memory_bytes": properties.total_memory,
        "driver": device.driver,
        "toolkit": torch.version.cuda or torch.version.hip or "",
        "torch": torch.__version__,
        "triton": version_of("triton"),
        "dspark_ops": dspark_ops.__version__,
    }


def add_floor(record: dict[str, Any], floor: MachineFloor) -> dict[str, Any]:
    """Return a group's record with the machine's floor for it, and the own arm's time over that."""
    if "bytes" in record:
        record["floor_us"] = round(floor.of(record["op"], record["bytes"]), 3)
        own = record["arms"].get(OWN, {})
        if "median_us" in own:
            record["over_floor"] = round(own["median_us"] / record["floor_us"], 3)
    return record


def cache_bytes() -> int:
    """Return the bytes of the GPU's last cache."""
    return int(getattr(torch.cuda.get_device_properties(torch.cuda.current_device()), "L2_cache_size", 64 << 20))
