"""What the operating system tells: GPUs on the bus, open device files, cache folders and what they are mounted on."""

from __future__ import annotations

import getpass
import os
import re
import tempfile
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Final

from dspark_ops.doctor.facts import Adapter, CacheFolder

_VENDORS: Final = {"0x10de": "nvidia", "0x1002": "amd"}
#: PCI classes. NVIDIA: display controllers of all kinds. AMD: Instinct parts alone, since every Ryzen has a display.
_CLASSES: Final = {"nvidia": ("0x0300", "0x0302", "0x0380", "0x1200"), "amd": ("0x0380", "0x1200")}
_DEVICE_FILES: Final = re.compile(r"^/dev/(nvidia\d+|nvidia-uvm|kfd)$")


def adapters(root: Path) -> tuple[Adapter, ...]:
    """Return the GPUs on the bus, in the order of their addresses."""
    found = []
    for folder in sorted((root / "sys/bus/pci/devices").glob("*")):
        vendor = _VENDORS.get(_word(folder / "vendor"), "")
        if vendor and _word(folder / "class")[:6] in _CLASSES[vendor]:
            found.append(Adapter(folder.name, vendor, _word(folder / "device")))
    return tuple(found)


def _word(file: Path) -> str:
    try:
        return file.read_text(encoding="ascii", errors="replace").strip()
    except OSError:  # a device that went away, or one that a container hides
        return ""


def open_devices(root: Path) -> tuple[str, ...]:
    """Return the device files of GPUs that this process holds open, each once."""
    found = set()
    for link in (root / "proc/self/fd").glob("*"):
        try:
            found.add(str(link.readlink()))
        except OSError:  # closed meanwhile, as the folder's own descriptor is
            continue
    return tuple(sorted(path for path in found if _DEVICE_FILES.match(path)))


def caches(
    environ: Mapping[str, str], vendor: str, owners: Collection[str], root: Path = Path("/")
) -> tuple[CacheFolder, ...]:
    """Return the folders in which compiled kernels are kept, for the installed owners."""
    home = Path(environ.get("HOME") or Path.home())
    base = Path(environ.get("XDG_CACHE_HOME") or home / ".cache")
    places = [
        ("Triton", "TRITON_CACHE_DIR", "", Path(environ.get("TRITON_HOME") or home) / ".triton/cache"),
        ("TorchInductor", "TORCHINDUCTOR_CACHE_DIR", "", Path(tempfile.gettempdir()) / f"torchinductor_{_user()}"),
        ("torch extensions", "TORCH_EXTENSIONS_DIR", "", base / "torch_extensions"),
        ("FlashInfer", "FLASHINFER_WORKSPACE_BASE", ".cache/flashinfer", home / ".cache/flashinfer"),
        ("AITER", "AITER_JIT_DIR", "", home / ".aiter"),
    ]
    if vendor == "nvidia":
        places.append(("CUDA driver", "CUDA_CACHE_PATH", "", home / ".nv/ComputeCache"))
        owners = {*owners, "CUDA driver"}
    mounts = mount_table(_read(root / "proc/self/mounts"))
    found = []
    for owner, variable, below, default in places:
        if owner in owners:
            named = bool(environ.get(variable))
            path = Path(environ[variable]) / below if named else default
            found.append(cache_folder(owner, variable, path, mounts, named=named))
    return tuple(found)


def cache_folder(
    owner: str, variable: str, path: Path, mounts: Iterable[tuple[str, str]], named: bool = False
) -> CacheFolder:
    """Return what is known of a cache folder; nothing is created there.

    Args:
        owner: whose cache it is.
        variable: the variable that moves it.
        path: the folder.
        mounts: from `mount_table`.
        named: the variable names it.
    """
    filesystem, mount = filesystem_of(path, mounts)
    origin = variable if named else "default"
    return CacheFolder(owner, str(path), origin, variable, _write_problem(path), filesystem, mount)


def _write_problem(path: Path) -> str:
    """Return why a folder can be neither written nor created, or an empty text."""
    nearest = next((folder for folder in (path, *path.parents) if folder.exists()), Path("/"))
    if not nearest.is_dir():
        return f"{nearest} is a file, not a folder"
    if os.statvfs(nearest).f_flag & os.ST_RDONLY:
        return f"{nearest} is on a read-only file system"
    if not os.access(nearest, os.W_OK | os.X_OK):
        return f"{_user()} may not write in {nearest}"
    return ""


def mount_table(text: str) -> tuple[tuple[str, str], ...]:
    """Return ``(folder, file system)`` of each line of ``/proc/self/mounts``; a space in a folder is octal there."""
    rows = [line.split() for line in text.splitlines()]
    return tuple((re.sub(r"\\(\d{3})", _octal, row[1]), row[2]) for row in rows if len(row) > 2)


def _octal(match: re.Match[str]) -> str:
    return chr(int(match[1], 8))


def filesystem_of(path: Path, mounts: Iterable[tuple[str, str]]) -> tuple[str, str]:
    """Return the type of the file system that a path is on, and where that is mounted; empty texts if unknown."""
    real = Path(os.path.realpath(path))
    best = ("", "")
    for folder, kind in mounts:
        # Of two mounts on one folder the later one is seen.
        if (real == Path(folder) or Path(folder) in real.parents) and len(folder) >= len(best[1]):
            best = (kind, folder)
    return best


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container may run as a number without a name
        return str(os.getuid())
