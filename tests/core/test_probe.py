"""The probe reads drivers, starts no device context, imports no torch, and gives every field an origin. Case O22."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dspark_ops.errors import DeviceError
from dspark_ops.selection.probe import ProbeSources, probe

H200 = ("NVIDIA H200", (9, 0), 16896, 143771 * 2**20)
B300 = ("NVIDIA B300 SXM6 AC", (10, 3), 18944, 275040 * 2**20)
GIB = 2**30


class FakeNvml:
    """NVML with the calls that the probe makes; it counts starts and stops."""

    class NVMLError(Exception):
        def __init__(self, value: int, text: str) -> None:
            super().__init__(text)
            self.value = value

    def __init__(
        self, *devices: tuple[Any, ...], init: Exception | None = None, cores: Exception | None = None
    ) -> None:
        self.devices = devices
        self.init, self.cores = init, cores
        self.open = 0

    def nvmlInit(self) -> None:
        if self.init:
            raise self.init
        self.open += 1

    def nvmlShutdown(self) -> None:
        self.open -= 1

    def nvmlSystemGetDriverVersion(self) -> bytes:
        return b"580.95.05"

    def nvmlDeviceGetCount(self) -> int:
        return len(self.devices)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def nvmlDeviceGetName(self, handle: int) -> bytes:
        return str(self.devices[handle][0]).encode()

    def nvmlDeviceGetCudaComputeCapability(self, handle: int) -> tuple[int, int]:
        capability: tuple[int, int] = self.devices[handle][1]
        return capability

    def nvmlDeviceGetNumGpuCores(self, handle: int) -> int:
        if self.cores:
            raise self.cores
        return int(self.devices[handle][2])

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> Any:
        return SimpleNamespace(total=self.devices[handle][3])


def no_nvml() -> Any:
    raise ImportError("No module named 'pynvml'")


def sources(root: Path, nvml: FakeNvml | None = None, modules: dict[str, Any] | None = None) -> ProbeSources:
    return ProbeSources(root=root, nvml=(lambda: nvml) if nvml else no_nvml, modules=modules or {})


def write(path: Path, text: str = "") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def proc_nvidia(root: Path, model: str = "NVIDIA H200", device_file: bool = True) -> None:
    base = root / "proc/driver/nvidia"
    version = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build  (dvs-builder)\nGCC\n"
    write(base / "version", version)
    write(base / "gpus/0000:19:00.0/information", f"Model: \t\t {model}\nIRQ:   \t\t 17\nDevice Minor: \t 0\n")
    if device_file:
        write(root / "dev/nvidia0")


@pytest.mark.parametrize(
    ("capability", "arch", "family"),
    [
        ((9, 0), "sm_90", "sm_9x"),
        ((10, 0), "sm_100", "sm_10x"),
        ((10, 3), "sm_103", "sm_10x"),
        ((11, 0), "sm_110", "sm_11x"),
        ((12, 0), "sm_120", "sm_12x"),
        ((12, 1), "sm_121", "sm_12x"),
    ],
)
def test_o22_a_capability_gives_the_exact_architecture(
    tmp_path: Path, capability: tuple[int, int], arch: str, family: str
) -> None:
    device = probe(sources=sources(tmp_path, FakeNvml(("a GPU", capability, 1280, GIB))))
    assert (device.arch.name, device.arch.family) == (arch, family)
    assert "mx_mma" in device.features or arch not in ("sm_100", "sm_103")
    assert "pdl" in device.features or arch not in ("sm_90", "sm_100", "sm_103")


def test_nvml_gives_every_fact_and_is_closed_again(tmp_path: Path) -> None:
    nvml = FakeNvml(H200)
    device = probe(sources=sources(tmp_path, nvml))
    assert (device.name, device.units, device.memory, device.driver) == (
        "NVIDIA H200",
        132,
        143771 * 2**20,
        "580.95.05",
    )
    assert not device.simulated
    assert device.origins["arch"] == "nvml"
    assert device.origins["units"] == "nvml, CUDA cores / 128"
    assert nvml.open == 0


def test_a_driver_that_cannot_count_cores_leaves_the_units_unknown_with_its_words(tmp_path: Path) -> None:
    device = probe(sources=sources(tmp_path, FakeNvml(B300, cores=FakeNvml.NVMLError(3, "Not Supported"))))
    assert device.units == 0
    assert device.origins["units"] == "unknown: NVML says Not Supported"


@pytest.mark.parametrize(("code", "text"), [(9, "Driver Not Loaded"), (12, "NVML Shared Library Not Found")])
def test_a_machine_without_an_nvidia_driver_is_a_cpu_and_says_what_was_looked_at(
    tmp_path: Path, code: int, text: str
) -> None:
    device = probe(sources=sources(tmp_path, FakeNvml(init=FakeNvml.NVMLError(code, text))))
    assert device.arch.name == "cpu"
    assert not device.is_accelerator
    assert f"NVML: {text}" in device.origins["arch"]
    assert "no KFD topology" in device.origins["arch"]


def test_a_driver_that_answers_with_an_error_does_not_become_a_cpu(tmp_path: Path) -> None:
    broken = FakeNvml(init=FakeNvml.NVMLError(18, "Driver/library version mismatch"))
    with pytest.raises(DeviceError, match="NVML says Driver/library version mismatch; run  nvidia-smi"):
        probe(sources=sources(tmp_path, broken))


def test_a_driver_that_fails_after_its_start_is_closed_and_reported(tmp_path: Path) -> None:
    nvml = FakeNvml(H200)
    nvml.nvmlDeviceGetName = lambda handle: (_ for _ in ()).throw(FakeNvml.NVMLError(15, "GPU is lost"))  # type: ignore[method-assign]
    with pytest.raises(DeviceError, match="GPU is lost"):
        probe(sources=sources(tmp_path, nvml))
    assert nvml.open == 0


def test_without_nvml_the_driver_files_name_the_product(tmp_path: Path) -> None:
    proc_nvidia(tmp_path)
    device = probe(sources=sources(tmp_path))
    assert (device.arch.name, device.name, device.driver, device.units) == ("sm_90", "NVIDIA H200", "580.95.05", 132)
    assert device.origins["arch"] == "catalogue, H200"
    assert device.origins["name"] == "/proc/driver/nvidia"


def test_a_product_whose_architecture_is_not_known_asks_for_nvml(tmp_path: Path) -> None:
    proc_nvidia(tmp_path, model="NVIDIA X9000")
    with pytest.raises(DeviceError, match=r"names 'NVIDIA X9000'.*pip install 'dspark-ops\[nvml\]'"):
        probe(sources=sources(tmp_path))


def test_a_container_without_the_device_file_has_no_gpu(tmp_path: Path) -> None:
    proc_nvidia(tmp_path, device_file=False)
    device = probe(sources=sources(tmp_path))
    assert device.arch.name == "cpu"
    assert "NVIDIA H200 without a device file /dev/nvidia0" in device.origins["arch"]


def test_equal_devices_need_no_index(tmp_path: Path) -> None:
    device = probe(sources=sources(tmp_path, FakeNvml(H200, H200)))
    assert (device.name, device.index) == ("NVIDIA H200", None)


def test_different_devices_must_be_named_and_the_error_lists_them(tmp_path: Path) -> None:
    mixed = FakeNvml(H200, B300)
    write(tmp_path / "dev/kfd")
    write(
        tmp_path / "sys/class/kfd/kfd/topology/nodes/1/properties",
        "simd_count 1024\nsimd_per_cu 4\ngfx_target_version 90500\n",
    )
    with pytest.raises(DeviceError, match="devices of this machine differ") as error:
        probe(sources=sources(tmp_path, mixed))
    assert "0: NVIDIA H200 (sm_90), 1: NVIDIA B300 SXM6 AC (sm_103), 2: AMD gfx950 (gfx950)" in str(error.value)
    assert probe(1, sources=sources(tmp_path, mixed)).arch.name == "sm_103"
    assert probe(1, sources=sources(tmp_path, mixed)).index == 1
    assert probe(2, sources=sources(tmp_path, mixed)).arch.name == "gfx950"


@pytest.mark.parametrize("which", [1, -1])
def test_an_index_that_does_not_exist_is_an_error_that_lists_the_devices(tmp_path: Path, which: int) -> None:
    with pytest.raises(DeviceError, match=rf"no device {which}: this machine has 0: NVIDIA H200 \(sm_90\)"):
        probe(which, sources=sources(tmp_path, FakeNvml(H200)))


def _torch(started: bool, **properties: Any) -> Any:
    def count() -> int:
        assert started, "asking for devices would start the runtime"
        return 1

    return SimpleNamespace(
        __version__="2.13.0",
        version=SimpleNamespace(cuda=None, hip="7.1.0"),
        cuda=SimpleNamespace(
            is_initialized=lambda: started,
            device_count=count,
            get_device_properties=lambda index: SimpleNamespace(**properties),
        ),
    )


def test_a_torch_that_has_started_its_runtime_is_asked_and_gives_the_feature_flags(tmp_path: Path) -> None:
    torch = _torch(
        True,
        gcnArchName="gfx950:sramecc+:xnack-",
        name="AMD Instinct MI355X",
        multi_processor_count=256,
        total_memory=288 * GIB,
    )
    device = probe(sources=sources(tmp_path, modules={"torch": torch}))
    assert (device.arch.name, dict(device.arch.flags)) == ("gfx950", {"sramecc": "+", "xnack": "-"})
    assert (device.units, device.torch, device.toolkit) == (256, "2.13.0", "7.1.0")
    assert device.origins["arch"] == "torch, already started"


def test_a_started_cuda_runtime_gives_the_capability(tmp_path: Path) -> None:
    torch = _torch(True, major=10, minor=3, name="NVIDIA GB300", multi_processor_count=152, total_memory=288 * GIB)
    device = probe(sources=sources(tmp_path, FakeNvml(H200), {"torch": torch}))
    assert (device.arch.name, device.units) == ("sm_103", 152)


def test_a_cuda_build_that_puts_the_product_name_in_the_amd_field_still_gives_the_capability(tmp_path: Path) -> None:
    torch = _torch(
        True,
        gcnArchName="NVIDIA H200",
        major=9,
        minor=0,
        name="NVIDIA H200",
        multi_processor_count=132,
        total_memory=141 * GIB,
    )
    assert probe(sources=sources(tmp_path, FakeNvml(H200), {"torch": torch})).arch.name == "sm_90"


def test_a_torch_that_has_not_started_its_runtime_is_not_asked(tmp_path: Path) -> None:
    device = probe(sources=sources(tmp_path, FakeNvml(H200), {"torch": _torch(False)}))
    assert (device.arch.name, device.torch, device.origins["torch"]) == ("sm_90", "2.13.0", "torch, already imported")


def test_probing_this_machine_imports_no_torch_and_gives_every_field_an_origin() -> None:
    code = (
        "import json, sys, dspark_ops\n"
        "device = dspark_ops.probe()\n"
        "print(json.dumps([device.to_json(), 'torch' in sys.modules, 'triton' in sys.modules]))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    device, torch_loaded, triton_loaded = json.loads(result.stdout)
    assert (torch_loaded, triton_loaded) == (False, False)
    facts = {"arch", "name", "features", "units", "memory", "driver", "toolkit", "torch"}
    assert set(device["origins"]) == facts
    assert all(device["origins"].values())
    assert device["simulated"] is False
