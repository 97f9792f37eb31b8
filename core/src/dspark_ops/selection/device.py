"""Devices: what is known of the machine that a plan is for, and from where each fact came."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from dspark_ops.api.arch import Arch


@dataclass(frozen=True, slots=True)
class Device:
    """One device, real or simulated.

    Attributes:
        arch: exact architecture.
        name: marketing name, such as ``NVIDIA H200``.
        features: named abilities: ``pdl``, ``mx_mma``, ``fp8_e4m3fn``, ``fp8_e4m3fnuz``.
        units: streaming multiprocessors or compute units.
        memory: bytes of device memory.
        driver: driver version, empty if unknown.
        toolkit: CUDA or ROCm version that torch was built for, empty if unknown.
        torch: version of torch, empty if it is not installed.
        simulated: comes from the catalogue, not from a probe.
        origins: for each field that was found out, where from (``nvml``, ``torch``, ``catalogue``, ...).
        index: its place in the list of `dspark_ops.selection.probe.probe_all`, where it was named by that; None stands
            for the device that is current in the process.
    """

    arch: Arch
    name: str
    features: frozenset[str] = frozenset()
    units: int = 0
    memory: int = 0
    driver: str = ""
    toolkit: str = ""
    torch: str = ""
    simulated: bool = False
    origins: Mapping[str, str] = field(default_factory=dict)
    index: int | None = None

    @classmethod
    def simulate(cls, name: str) -> Device:
        """Return the catalogue's device of a product or architecture name, such as ``sm_103`` or ``H200``.

        Raises:
            DeviceError: the catalogue has no such device.
        """
        from dspark_ops.selection.catalogue import simulated_device

        return simulated_device(name)

    @property
    def is_accelerator(self) -> bool:
        """Whether this is a GPU, simulated or not."""
        return self.arch.vendor != "cpu"

    def to_json(self) -> dict[str, Any]:
        """Return the facts that a plan records, with plain types only."""
        return {
            "arch": self.arch.name,
            "vendor": self.arch.vendor,
            "family": self.arch.family,
            "flags": dict(self.arch.flags),
            "name": self.name,
            "features": sorted(self.features),
            "units": self.units,
            "memory": self.memory,
            "driver": self.driver,
            "toolkit": self.toolkit,
            "torch": self.torch,
            "simulated": self.simulated,
            "origins": dict(sorted(self.origins.items())),
        }
