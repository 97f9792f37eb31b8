"""NVIDIA devices, by NVML or by what the driver writes under /proc. Neither creates a CUDA context."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from dspark_ops.api.arch import Arch
from dspark_ops.errors import DeviceError
from dspark_ops.selection.catalogue import features_of, product_of
from dspark_ops.selection.device import Device

__all__ = ["nvidia_devices"]

# NVML return codes that mean "no NVIDIA driver here": 9 driver not loaded, 12 library not found (nvml.h, nvmlReturn_t).
_NO_DRIVER: Final = (9, 12)
# CUDA cores per multiprocessor, by which NVML's core count becomes a unit count (white papers of the architectures).
_CORES_PER_UNIT: Final = {
    "sm_80": 64,
    "sm_86": 128,
    "sm_89": 128,
    "sm_90": 128,
    "sm_100": 128,
    "sm_103": 128,
    "sm_120": 128,
}


def nvidia_devices(root: Path, import_nvml: Callable[[], Any], notes: list[str]) -> tuple[Device, ...]:
    """Return the machine's NVIDIA devices; what was looked at in vain is added to `notes`.

    Raises:
        DeviceError: the driver answers with an error, or an architecture cannot be found out without NVML.
    """
    try:
        nvml = import_nvml()
    except ImportError:
        notes.append("NVML: the package nvidia-ml-py is not installed")
        nvml = None
    devices = tuple(_by_nvml(nvml, notes)) if nvml is not None else ()
    return devices or tuple(_by_proc(root, notes))


def _by_nvml(nvml: Any, notes: list[str]) -> Iterator[Device]:
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        if error.value in _NO_DRIVER:
            notes.append(f"NVML: {error}")
            return
        raise DeviceError(
            f"the NVIDIA driver cannot be asked: NVML says {error}; run  nvidia-smi  to see more"
        ) from error
    try:
        driver = _text(nvml.nvmlSystemGetDriverVersion())
        count = nvml.nvmlDeviceGetCount()
        if not count:
            notes.append("NVML: no device")
        for index in range(count):
            yield _nvml_device(nvml, index, driver)
    except nvml.NVMLError as error:
        raise DeviceError(
            f"the NVIDIA driver cannot be asked: NVML says {error}; run  nvidia-smi  to see more"
        ) from error
    finally:
        nvml.nvmlShutdown()


def _nvml_device(nvml: Any, index: int, driver: str) -> Device:
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    major, minor = nvml.nvmlDeviceGetCudaComputeCapability(handle)
    arch = Arch.parse(f"{major}.{minor}")
    origins = dict.fromkeys(("arch", "name", "memory", "driver"), "nvml")
    units = 0
    if per_unit := _CORES_PER_UNIT.get(arch.name):
        try:
            units = nvml.nvmlDeviceGetNumGpuCores(handle) // per_unit
            origins["units"] = f"nvml, CUDA cores / {per_unit}"
        except nvml.NVMLError as error:  # an old driver does not count cores; no choice depends on it
            origins["units"] = f"unknown: NVML says {error}"
    return Device(
        arch=arch,
        name=_text(nvml.nvmlDeviceGetName(handle)),
        features=features_of(arch),
        units=units,
        memory=int(nvml.nvmlDeviceGetMemoryInfo(handle).total),
        driver=driver,
        origins=origins,
    )


def _by_proc(root: Path, notes: list[str]) -> Iterator[Device]:
    """Yield the devices that the driver lists under /proc and whose device file this container has."""
    base = root / "proc/driver/nvidia"
    driver = _proc_driver(base)
    found = False
    for information in sorted(base.glob("gpus/*/information")):
        facts = dict(_pairs(information.read_text(encoding="utf-8", errors="replace")))
        minor = facts.get("Device Minor", "")
        if not (root / f"dev/nvidia{minor}").exists():
            notes.append(f"/proc/driver/nvidia: {facts.get('Model', 'a GPU')} without a device file /dev/nvidia{minor}")
            continue
        found = True
        model = facts.get("Model", "")
        product = product_of(model)
        if product is None:
            raise DeviceError(
                f"{information} names {model!r}, whose architecture cannot be told from its name: "
                "run  pip install 'dspark-ops[nvml]'  so that the driver can be asked"
            )
        arch = Arch.parse(product.arch)
        known = f"catalogue, {product.name}"
        source = "/proc/driver/nvidia"
        yield Device(
            arch=arch,
            name=model,
            features=features_of(arch),
            units=product.units,
            memory=product.memory,
            driver=driver,
            origins={"arch": known, "units": known, "memory": known, "name": source, "driver": source},
        )
    if not found and not base.exists():
        notes.append("no /proc/driver/nvidia")


def _proc_driver(base: Path) -> str:
    try:
        line = (base / "version").read_text(encoding="utf-8", errors="replace").splitlines()[0]
    except (OSError, IndexError):
        return ""
    # NVRM version: NVIDIA UNIX ... Kernel Module for x86_64  580.95.05  Release Build ...
    return next((word for word in line.split() if word[0].isdigit() and word.count(".") >= 1), "")


def _pairs(text: str) -> Iterator[tuple[str, str]]:
    for line in text.splitlines():
        key, separator, value = line.partition(":")
        if separator:
            yield key.strip(), value.strip()


def _text(value: str | bytes) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value
