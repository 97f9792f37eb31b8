"""AMD devices, by the topology that the KFD driver writes under /sys. Reading it starts no HIP runtime."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from dspark_ops.api.arch import Arch
from dspark_ops.selection.catalogue import catalogue, features_of
from dspark_ops.selection.device import Device

__all__ = ["amd_devices", "gfx_name"]

# Heaps of a GPU's own memory: 1 visible to the host, 2 private (kfd_ioctl.h / hsakmttypes.h, HSA_HEAPTYPE).
_DEVICE_HEAPS = (1, 2)


def gfx_name(version: int) -> str:
    """Return the architecture name of a KFD ``gfx_target_version``, such as ``gfx950`` for 90500 and gfx90a for 90010.

    The number holds major, minor and stepping as decimal pairs; the name writes the last two as single hex digits.
    """
    major, minor, stepping = version // 10000, version // 100 % 100, version % 100
    return f"gfx{major}{minor:x}{stepping:x}"


def amd_devices(root: Path, notes: list[str]) -> tuple[Device, ...]:
    """Return the machine's AMD GPUs in the order of their KFD nodes; what was looked at in vain is added to `notes`."""
    nodes = root / "sys/class/kfd/kfd/topology/nodes"
    if not nodes.is_dir():
        notes.append("no KFD topology in /sys/class/kfd")
        return ()
    if not (root / "dev/kfd").exists():
        notes.append("KFD topology without a device file /dev/kfd")
        return ()
    numbers = sorted(int(node.name) for node in nodes.iterdir() if node.name.isdigit())
    devices = tuple(_devices(root, [nodes / str(number) for number in numbers]))
    if not devices:
        notes.append("KFD topology without a GPU that this process may see")
    return devices


def _devices(root: Path, nodes: list[Path]) -> Iterator[Device]:
    driver = _line(root / "sys/module/amdgpu/version")
    for node in nodes:
        facts = _properties(node / "properties")
        version = facts.get("gfx_target_version", 0)
        if not version:  # a CPU node, or a GPU that the container's device rules hide
            continue
        arch = Arch.parse(gfx_name(version))
        units = facts.get("simd_count", 0) // max(facts.get("simd_per_cu", 0), 1)
        banks = [_properties(bank) for bank in sorted((node / "mem_banks").glob("*/properties"))]
        memory = sum(bank.get("size_in_bytes", 0) for bank in banks if bank.get("heap_type") in _DEVICE_HEAPS)
        name, name_origin = _name(arch, units, memory)
        source = f"kfd node {node.name}"
        yield Device(
            arch=arch,
            name=name,
            features=features_of(arch),
            units=units,
            memory=memory,
            driver=driver,
            origins={
                "arch": f"{source}, gfx_target_version {version}",
                "units": source,
                "memory": source,
                "name": name_origin,
                "driver": "/sys/module/amdgpu/version" if driver else "unknown: the amdgpu module states no version",
            },
        )


def _name(arch: Arch, units: int, memory: int) -> tuple[str, str]:
    """KFD gives no product name. One product of the catalogue may fit; of two that fit, neither is claimed."""
    fitting = [
        product
        for product in catalogue()
        if product.arch == arch.name and product.units == units and abs(product.memory - memory) < product.memory // 20
    ]
    if len(fitting) == 1:
        return fitting[0].full_name, "catalogue, by architecture, unit count and memory"
    return f"AMD {arch.name}", "architecture"


def _properties(path: Path) -> dict[str, int]:
    try:
        lines = path.read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:  # KFD answers EPERM for nodes that the container's device rules hide
        return {}
    pairs = (line.split() for line in lines)
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdigit()}


def _line(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return ""
