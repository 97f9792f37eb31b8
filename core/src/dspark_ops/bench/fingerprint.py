"""The fingerprint of a launch: machine, versions, code, environment; and the conditions that change by the minute."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import platform
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from dspark_ops.config.ambient import ambient

__all__ = ["code_fingerprint", "conditions", "differing_fields", "flat", "machine_fingerprint"]

#: Distributions whose version may change a kernel or its choice.
_PACKAGES = (
    "dspark-ops", "dspark-ops-triton", "dspark-ops-nvidia-sm10x", "dspark-ops-nvidia-sm90", "dspark-ops-amd-gfx950",
    "torch", "triton", "numpy", "flashinfer-python", "flash-mla", "amd-aiter",
)  # fmt: skip


def machine_fingerprint(variables: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Return what a record has of the machine, versions and environment; nested tables with plain values.

    Args:
        variables: the environment; by default that of the process.
    """
    return {
        "machine": {
            "host": hashlib.sha256(platform.node().encode()).hexdigest()[:12],
            "processor": _processor(),
            "cores": os.cpu_count() or 0,
            "usable_cores": len(os.sched_getaffinity(0)),
            "system": platform.platform(),
            "python": platform.python_version(),
        },
        "versions": {name: found for name in _PACKAGES if (found := _version(name))},
        "environment": ambient(variables),
    }


def code_fingerprint(modules: Iterable[str]) -> tuple[dict[str, str], dict[str, str]]:
    """Return a hash of the source files of each package, and apart from it where they were checked out.

    The hash is what runs are compared by: it holds for an edited checkout and for an installed wheel alike. Commit and
    dirty flag are for people, since a commit may change no file of these packages.

    Args:
        modules: names of top-level packages; those that are not installed are left out.
    """
    digests: dict[str, str] = {}
    places: dict[str, str] = {}
    for name in sorted(set(modules)):
        spec = importlib.util.find_spec(name)
        if spec is None or not spec.submodule_search_locations:
            continue
        folder = Path(next(iter(spec.submodule_search_locations)))
        digest = hashlib.sha256()
        for file in sorted(folder.rglob("*.py")):
            digest.update(f"{file.relative_to(folder)}\0".encode() + file.read_bytes() + b"\0")
        digests[name] = digest.hexdigest()[:16]
        if commit := _git(folder, "rev-parse", "HEAD"):
            dirty = bool(_git(folder, "status", "--porcelain", "--", "."))
            places[name] = f"{commit[:12]}{' with changes' if dirty else ''}"
    return digests, places


def conditions(root: Path = Path("/")) -> dict[str, Any]:
    """Return what changes by the minute and is recorded, not compared: load, processor clock, GPU clocks and limits.

    Args:
        root: the folder that holds ``sys``.
    """
    found: dict[str, Any] = {"load": round(os.getloadavg()[0], 2)}
    governor = root / "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"
    if governor.is_file():
        found["cpu_governor"] = governor.read_text(encoding="ascii").strip()
    query = "name,driver_version,clocks.sm,clocks.mem,power.limit,temperature.gpu"
    nvidia = _output(["nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader"]).splitlines()
    if gpus := [*nvidia, *_amd_conditions(root)]:
        found["gpus"] = gpus
    return found


def flat(table: Mapping[str, Any], lead: str = "") -> dict[str, Any]:
    """Return nested tables as dotted names and their values; lists stay values."""
    result: dict[str, Any] = {}
    for key, value in table.items():
        name = f"{lead}{key}"
        if isinstance(value, Mapping):
            result.update(flat(value, f"{name}."))
        else:
            result[name] = value
    return result


def differing_fields(left: Mapping[str, Any], right: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Return the dotted names whose values differ, with both values; None stands for an absent one."""
    first, second = flat(left), flat(right)
    names = sorted({*first, *second})
    return {name: (first.get(name), second.get(name)) for name in names if first.get(name) != second.get(name)}


def _amd_conditions(root: Path) -> Iterator[str]:
    """Yield a line per AMD GPU from the kernel's sensors: clock (Hz), power limit and draw (uW), temperature (mC)."""
    sensors = ("freq1_input", "power1_cap", "power1_average", "temp1_input")
    for monitor in sorted((root / "sys/class/drm").glob("card*/device/hwmon/hwmon*")):
        if _text(monitor / "name") == "amdgpu":
            values = [f"{name} {text}" for name in sensors if (text := _text(monitor / name))]
            yield ", ".join([monitor.parts[-4], *values])


def _text(path: Path) -> str:
    """Return what a file of the kernel says, or nothing where it is missing or cannot be read."""
    try:
        return path.read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return ""


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


def _version(distribution: str) -> str:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return ""


def _git(folder: Path, *words: str) -> str:
    return _output(["git", "-C", str(folder), *words])


def _output(words: list[str]) -> str:
    """Return what a program prints, or nothing where it is missing or fails: then the fact is not in the record."""
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
