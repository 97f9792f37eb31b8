"""A machine on which nothing is wrong, into which each test plants its fault."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from dspark_ops.doctor import CHECKS, Facts, Finding
from dspark_ops.doctor.facts import Adapter, CacheFolder, CudaLibrary, DeviceCode, Tool, TorchFacts, Trial, TritonFacts
from dspark_ops.doctor.finding import answer
from dspark_ops.selection.device import Device


class Ask:
    """Asks one check about a sound H200 machine with some facts replaced."""

    @staticmethod
    def device(name: str) -> Device:
        """The device of the catalogue as if it had been probed."""
        origins = {"arch": "no /proc/driver/nvidia" if name == "cpu" else "nvml"}
        return replace(Device.simulate(name), simulated=False, origins=origins)

    @property
    def sound(self) -> Facts:
        return Facts(
            device=self.device("H200"),
            adapters=(Adapter("0000:19:00.0", "nvidia", "0x2335"),),
            torch=TorchFacts("2.13.0", "cuda 13.0"),
            triton=TritonFacts("3.9.0", ("amd", "nvidia"), Trial("a small kernel for cuda 90", 0, "")),
            cuda_library=CudaLibrary(Trial("cc main.c -lcuda", 0, "")),
            start_method="spawn",
            device_code=(DeviceCode("torch", ("sm_80", "sm_90", "compute_90"), "torch"),),
            tools=(Tool("nvcc", "/usr/local/cuda/bin/nvcc", "CUDA_HOME", "13.0"),),
            caches=(CacheFolder("Triton", "/home/a/.triton/cache", "default", "TRITON_CACHE_DIR", "", "ext4", "/"),),
        )

    def found(self, check: str, *, device: Device | str | None = "H200", **fields: Any) -> list[Finding]:
        """Return the findings of one check, which must be asked."""
        (asked,) = [item for item in CHECKS if item.name == check]
        real = self.device(device) if isinstance(device, str) else device
        got = answer(asked, replace(self.sound, device=real, **fields))
        assert not got.not_asked, got.not_asked
        return list(got.findings)

    def one(self, check: str, **fields: Any) -> Finding:
        """Return the only finding of one check."""
        (finding,) = self.found(check, **fields)
        assert finding.check == check and finding.evidence and finding.fix
        return finding


@pytest.fixture
def ask() -> Ask:
    return Ask()
