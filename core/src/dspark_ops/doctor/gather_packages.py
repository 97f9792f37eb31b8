"""What is installed: packages that kernels need, modules with ambiguous names, shadowed plugins, device code."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import metadata
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Final

from packaging.utils import canonicalize_name

from dspark_ops.api.kernel import Package
from dspark_ops.api.version import ENTRY_POINT_GROUP
from dspark_ops.doctor.facts import DeviceCode, NamedModule, PackageFact, Shadow
from dspark_ops.doctor.gather_tools import attempt
from dspark_ops.selection.device import Device
from dspark_ops.selection.packages import PackageCache, inspect_package
from dspark_ops.selection.registry import Registry


@dataclass(frozen=True, slots=True)
class _Name:
    """A module that several distributions ship: what it should be, and what proves it."""

    module: str
    vendor: str
    distributions: tuple[str, ...]
    marks: tuple[str, ...]
    wanted: str
    install: str


#: A20: PyPI's ``aiter`` is a library of asynchronous iterators; its ``flash-mla`` is a placeholder without code.
_NAMES: Final = (
    _Name("aiter", "amd", ("aiter", "amd-aiter"), ("aiter.ops", "aiter.jit"), "AMD's AITER",
          "install amd-aiter from AMD's channel, or from source: https://github.com/ROCm/aiter"),
    _Name("flash_mla", "nvidia", ("flash-mla",), ("flash_mla.flash_mla_interface",), "DeepSeek's FlashMLA",
          "install FlashMLA from source: https://github.com/deepseek-ai/FlashMLA"),
)  # fmt: skip

#: Distributions that build for the device when they run, or are looked at by other means.
_BUILD_THEMSELVES: Final = ("torch", "triton", "pytorch-triton", "pytorch-triton-rocm", "triton-rocm")
_TORCH_BUILD: Final = re.compile(r"^(cuda|hip)\b[^=\n]*=\s*['\"]([^'\"]+)['\"]", re.MULTILINE)
_TORCH_CODE: Final = "import torch; print('dspark-ops-flags ' + torch._C._cuda_getArchFlags())"
_GFX: Final = re.compile(rb"amdgcn-amd-amdhsa--(gfx[0-9a-f]{3,5})")
_CUBIN: Final = re.compile(r"\b(sm_\d+[af]?)\b")
_PTX: Final = re.compile(r"\bsm_(\d+[af]?)\.ptx")


def needed(registry: Registry, device: Device | None) -> tuple[PackageFact, ...]:
    """Return the packages that kernels for a device need, and what is known of each; sorted by module."""
    if device is None:
        return ()
    users: dict[Package, list[str]] = {}
    for registered in (item for kernels in registry.kernels.values() for item in kernels):
        kernel = registered.kernel
        if kernel.arch is not None and kernel.arch.matches(device.arch):
            for package in kernel.packages:
                users.setdefault(package, []).append(registered.id)
    cache = PackageCache()
    return tuple(
        PackageFact(
            package.module,
            tuple(sorted(kernels)),
            inspect_package(package, cache=cache, probe_attributes=bool(package.attributes)),
        )
        for package, kernels in sorted(users.items(), key=lambda item: (item[0].module, item[0].versions))
    )


def named_modules() -> tuple[NamedModule, ...]:
    """Return what stands under each name that several distributions ship, and is installed under it."""
    providers = metadata.packages_distributions()
    found = []
    for name in _NAMES:
        owners = {*providers.get(name.module, ())} | {item for item in name.distributions if _version(item) is not None}
        canonical = sorted({canonicalize_name(owner) for owner in owners})
        present = tuple(mark for mark in name.marks if _exists(mark))
        known = _exists(name.module)
        if known or canonical:
            texts = tuple(f"{owner} {_version(owner) or ''}".strip() for owner in canonical)
            found.append(
                NamedModule(name.module, name.wanted, name.install, name.vendor, known, name.marks, present, texts)
            )
    return tuple(found)


def shadows(registry: Registry) -> tuple[Shadow, ...]:
    """Return the plugins of which an import finds another copy than the distribution that names them has."""
    found = [*_shadowed_distributions()]
    for record in registry.plugins:
        module = record.entry_point.partition(":")[0]
        try:
            distribution = metadata.distribution(record.distribution)
        except metadata.PackageNotFoundError:  # a manifest that was given, not installed
            continue
        top = module.split(".")[0]
        own = [file for file in distribution.files or () if str(file) in (f"{top}/__init__.py", f"{top}.py")]
        spec = PathFinder.find_spec(top, sys.path)
        if not own or spec is None or spec.origin is None:
            continue
        wanted = str(distribution.locate_file(own[0]))
        if os.path.realpath(wanted) != os.path.realpath(spec.origin):
            found.append(Shadow(record.name, record.distribution, f"module {top}", wanted, spec.origin))
    return tuple(found)


def _shadowed_distributions() -> Iterator[Shadow]:
    """Yield plugins' distributions that are installed twice with two versions: the first on the path counts."""
    first: dict[str, metadata.Distribution] = {}
    for distribution in metadata.distributions():
        try:
            name = distribution.metadata["Name"]
            entries = distribution.entry_points.select(group=ENTRY_POINT_GROUP) if name else ()
        except Exception:  # metadata that cannot be read: discovery records it where it is a plugin's
            continue
        if not entries:
            continue
        other = first.setdefault(canonicalize_name(name), distribution)
        if other.version != distribution.version:
            yield Shadow(
                next(iter(entries)).name,
                name,
                f"version of {name}",
                f"{distribution.version} in {distribution.locate_file('')}",
                f"{other.version} in {other.locate_file('')}",
            )


def torch_build() -> tuple[str, str]:
    """Return torch's version and what it is built for, such as ``cuda 13.0``; torch is not imported."""
    version = _version("torch")
    if version is None:
        return "", ""
    file = Path(str(metadata.distribution("torch").locate_file("torch/version.py")))
    text = file.read_text(encoding="utf-8", errors="replace") if file.is_file() else ""
    match = _TORCH_BUILD.search(text)
    return version, f"{match[1]} {match[2]}" if match else ""


def triton_installation() -> tuple[str, tuple[str, ...]]:
    """Return Triton's version and the vendors that it has a backend for; Triton is not imported."""
    spec = PathFinder.find_spec("triton", sys.path)
    if spec is None or spec.origin is None:
        return "", ()
    names = ("triton", "pytorch-triton", "pytorch-triton-rocm", "triton-rocm")
    version = next((found for name in names if (found := _version(name))), "of unknown version")
    folder = Path(spec.origin).parent / "backends"
    return version, tuple(sorted(item.parent.name for item in folder.glob("*/compiler.py")))


def cache_owners() -> frozenset[str]:
    """Return whose caches matter: the installed packages that compile kernels."""
    modules = {"Triton": "triton", "TorchInductor": "torch", "FlashInfer": "flashinfer", "AITER": "aiter.jit"}
    owners = {owner for owner, module in modules.items() if _exists(module)}
    return frozenset(owners | ({"torch extensions"} if "FlashInfer" in owners or "AITER" in owners else set()))


def device_code(
    packages: Sequence[PackageFact], vendor: str, torch_built_for: str, time_limit: float
) -> tuple[DeviceCode, ...]:
    """Return which architectures the binaries of torch and of the needed packages hold code for.

    Distributions whose binaries hold none, or cannot be looked into here, are left out.
    """
    found = []
    if vendor in ("nvidia", "amd") and torch_built_for:
        trial = attempt([sys.executable, "-c", _TORCH_CODE], time_limit)
        flags = next((line for line in trial.output.splitlines() if line.startswith("dspark-ops-flags ")), "")
        found.append(DeviceCode("torch", tuple(flags.split()[1:]), "torch._C._cuda_getArchFlags()"))
    names = {item.state.provider for item in packages if item.state.reason is None and item.state.provider}
    for name in sorted(names - {*_BUILD_THEMSELVES}):
        files = [
            Path(str(file.locate())) for file in metadata.files(name) or () if file.suffix in (".so", ".co", ".hsaco")
        ]
        found.append(_amd_code(name, files) if vendor == "amd" else _nvidia_code(name, files, time_limit))
    return tuple(item for item in found if item.architectures)


def _amd_code(name: str, files: Sequence[Path]) -> DeviceCode:
    architectures = {match.decode() for file in files if file.is_file() for match in _GFX.findall(file.read_bytes())}
    return DeviceCode(name, tuple(sorted(architectures)), f"{len(files)} binaries, read")


def _nvidia_code(name: str, files: Sequence[Path], time_limit: float) -> DeviceCode:
    reader = _cuobjdump()
    architectures: set[str] = set()
    for file in files if reader else ():
        for option in ("--list-elf", "--list-ptx"):
            output = attempt([reader, option, str(file)], time_limit).output
            ptx = {f"compute_{match}" for match in _PTX.findall(output)}
            architectures |= ptx if option == "--list-ptx" else {*_CUBIN.findall(output)}
    return DeviceCode(name, tuple(sorted(architectures)), f"cuobjdump of {len(files)} binaries")


def _cuobjdump() -> str:
    """Return NVIDIA's reader of device code: that of the path, else the one in Triton's wheel, else an empty text."""
    spec = PathFinder.find_spec("triton", sys.path)
    own = Path(spec.origin).parent / "backends/nvidia/bin/cuobjdump" if spec and spec.origin else Path()
    return shutil.which("cuobjdump") or (str(own) if own.is_file() else "")


def _version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def _exists(module: str) -> bool:
    """Whether a module can be found, without importing it or its parents."""
    path: Sequence[str] | None = sys.path
    for depth, _ in enumerate(parts := module.split(".")):
        spec = PathFinder.find_spec(".".join(parts[: depth + 1]), path)
        if spec is None:
            return False
        path = spec.submodule_search_locations or ()
    return True
