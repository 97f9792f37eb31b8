"""Evidence that a plugin does not write down but reads: the record of a run on hardware, shipped with the plugin."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from importlib import resources

from dspark_ops.api.kernel import Evidence, Kernel

__all__ = ["with_recorded_evidence"]


def with_recorded_evidence(package: str, kernels: Iterable[Kernel]) -> tuple[Kernel, ...]:
    """Return the kernels, each ``conformant`` on the architectures where the package's record says that it passed.

    The record is the file ``conformant.json`` in `package`: for each architecture, ``operator/variant`` with the digest
    of the sources that were run. Whoever keeps the plugin makes the file from a run and checks the digests in a test;
    here they are not looked at, since a manifest must not read the sources of kernels. Without a file nothing changes.

    Args:
        package: import name of the plugin's package.
        kernels: the kernels with the evidence that their manifest declares.
    """
    file = resources.files(package) / "conformant.json"
    if not file.is_file():
        return tuple(kernels)
    passed = json.loads(file.read_text(encoding="utf-8"))
    return tuple(_raised(kernel, passed) for kernel in kernels)


def _raised(kernel: Kernel, passed: dict[str, dict[str, str]]) -> Kernel:
    levels = dict(kernel.evidence)
    for arch, names in passed.items():
        if f"{kernel.op}/{kernel.variant}" in names and kernel.evidence_on(arch).order < Evidence.CONFORMANT.order:
            levels[arch] = Evidence.CONFORMANT
    return replace(kernel, evidence=tuple(levels.items())) if levels != dict(kernel.evidence) else kernel
