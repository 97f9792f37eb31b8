"""Builds of a kernel for a device that need not be present: does it compile there, and does it fit?"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from dspark_ops import contracts
from dspark_ops.api.kernel import Kernel
from dspark_ops.conformance.failure import Finding
from dspark_ops.conformance.places import needs_triton
from dspark_ops.conformance.prepared import Launch, build, launches_of_preparation
from dspark_ops.conformance.subject import Subject
from dspark_ops.contracts.contract import Contract, Site
from dspark_ops.selection.device import Device
from dspark_ops.selection.packages import check_package
from dspark_ops.selection.problem import Problem

__all__ = ["MODEL", "ROWS", "PlacePlan", "check_builds", "places_built", "why_not_built"]

#: The model whose places kernels are built for, and the row counts that are planned there.
MODEL: Final = "deepseek-v4.1-flash/tp4"
ROWS: Final = (1, 6, 8, 32, 64)

_KIB: Final = 1024
#: Bytes of shared memory (LDS) that a program may have, by architecture.
_SHARED: Final = {"sm_90": 227 * _KIB, "sm_100": 227 * _KIB, "sm_103": 227 * _KIB,
                  "gfx942": 64 * _KIB, "gfx950": 160 * _KIB}  # fmt: skip


@dataclass(frozen=True, slots=True)
class PlacePlan:
    """What a kernel's preparation asks for at one place of the model.

    Attributes:
        site: the place.
        launches: one per build.
        bound: what the preparation returned.
    """

    site: Site
    launches: tuple[Launch, ...]
    bound: Callable[..., Any]


def places_built(
    kernel: Kernel, contract: Contract, device: Device, rows: Sequence[int] = ROWS, model: str = MODEL
) -> Iterator[PlacePlan]:
    """Yield what a kernel's preparation asks for at each place of a model that lies in its region.

    Args:
        kernel: has a preparation, whose host code runs here with tensors in host memory.
        contract: its operator.
        device: the planned device, simulated or not.
        rows: row counts planned at each place.
        model: whose places.
    """
    for site in contract.sites(contracts.model_shapes(model)):
        problem = Problem.at(contract, site)
        if not any(constraint.check(problem.with_rows(contract.rows, 6)) for constraint in kernel.region):
            yield PlacePlan(site, *launches_of_preparation(kernel.prepare, device, problem, rows))


def why_not_built(subject: Subject) -> str:
    """Return why a kernel has no builds on the device of a check; empty where it has."""
    kernel, device = subject.registered.kernel, subject.device
    if not device.is_accelerator:
        return "builds are for a GPU, which need not be here: name one, such as --device sm_103"
    if not kernel.prepare or not needs_triton(kernel):
        return "it has no preparation that builds Triton kernels"
    if kernel.arch is not None and not kernel.arch.matches(device.arch):
        return f"it is for {kernel.arch.text}, and this is {device.arch.name}"
    missing = [reason for package in kernel.packages if (reason := check_package(package)) is not None]
    return "; ".join(map(str, missing))


def check_builds(subject: Subject) -> Iterator[tuple[str, Finding | None]]:
    """Yield each build's name, and what is wrong with it: it fails, spills registers, or wants too much shared memory.

    Args:
        subject: a kernel for which `why_not_built` is empty.
    """
    arch, seen = subject.device.arch.name, set()
    for place in places_built(subject.registered.kernel, subject.contract, subject.device):
        for launch in place.launches:
            if launch.key in seen:
                continue
            seen.add(launch.key)
            name = f"{launch.name.partition(':')[2]} at {place.site.name}, build {len(seen)}"
            yield name, _fault(launch, arch)


def _fault(launch: Launch, arch: str) -> Finding | None:
    constants = ", ".join(f"{name}={value}" for name, value in launch.constants.items())
    try:
        made = build(launch, arch)
    except Exception as error:  # whatever a compiler raises is what is wrong
        return Finding(f"cannot be built for {arch} with {constants}: {type(error).__name__}: {error}")
    if made.spilled:
        return Finding(f"spills {made.spilled} bytes per thread on {arch} with {constants}: wanted 0")
    limit = _SHARED.get(arch, made.shared)
    if made.shared > limit:
        return Finding(f"wants {made.shared} bytes of shared memory on {arch} with {constants}: there are {limit}")
    return None
