"""Fingerprints: the facts of a device and an installation on which measured times and checked numbers depend."""

from __future__ import annotations

from importlib import metadata
from typing import Any

import dspark_ops
from dspark_ops.api.version import API_VERSION
from dspark_ops.selection.device import Device
from dspark_ops.selection.registry import PluginRecord
from dspark_ops.selection.sources import package_digest

__all__ = ["device_facts", "fingerprint", "plugin_facts", "triton_version", "version_facts"]

#: Core is listed among the plugins: torch references are its code.
_CORE = PluginRecord("core", "dspark-ops", dspark_ops.__version__, "dspark_ops", "", 0, modules=("dspark_ops",))
_TRITON = ("triton", "triton-rocm", "pytorch-triton-rocm")


def device_facts(device: Device) -> dict[str, Any]:
    """Return the facts of a device that a lock records; an empty text is what was not known."""
    return {
        "arch": device.arch.name,
        "name": device.name,
        "units": device.units,
        "driver": device.driver,
        "toolkit": device.toolkit,
        "torch": device.torch,
        "simulated": device.simulated,
    }


def version_facts() -> dict[str, str]:
    """Return the versions of this library, of its plugin interface, and of Triton (empty if it is not installed)."""
    return {"api": API_VERSION, "dspark_ops": dspark_ops.__version__, "triton": triton_version()}


def fingerprint(device: Device) -> str:
    """Return one line that names device, driver and versions: times with another fingerprint are of another machine."""
    facts = device_facts(device)
    parts = [f"{device.name} ({device.arch.name})", f"{device.units} units"]
    parts += [f"{name} {facts[name] or 'unknown'}" for name in ("driver", "toolkit", "torch")]
    return ", ".join([*parts, f"triton {triton_version() or 'none'}"])


def plugin_facts(plugins: tuple[PluginRecord, ...]) -> tuple[dict[str, str], ...]:
    """Return distribution, version and file hash of core and of each plugin; an empty hash: no files found."""
    return tuple(
        {
            "name": record.name,
            "distribution": record.distribution,
            "version": record.version,
            "files": package_digest(record.modules) if record.modules else "",
        }
        for record in (_CORE, *plugins)
    )


def triton_version() -> str:
    """Return the version of the distribution that provides Triton, or an empty text."""
    for name in _TRITON:
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return ""
