"""Where kernels are checked: on this machine's GPU, on its CPU, in Triton's interpreter, or nowhere (simulated)."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import dspark_ops
from dspark_ops._lazy import torch
from dspark_ops.api.kernel import Evidence, Kernel
from dspark_ops.api.reason import ReasonCode
from dspark_ops.config.environment import triton_interprets
from dspark_ops.conformance.report import KernelRecord
from dspark_ops.conformance.subject import Subject
from dspark_ops.contracts.contract import Contract
from dspark_ops.errors import DeviceError
from dspark_ops.selection.device import Device
from dspark_ops.selection.packages import check_package
from dspark_ops.selection.registry import RegisteredKernel
from dspark_ops.selection.requirements import requirement_reasons

__all__ = ["Machine", "machine_for", "make_current", "needs_triton", "subject_on"]

#: What the interpreter stands in for: it runs on a CPU what was written for a GPU.
_STANDS_IN = (ReasonCode.DEVICE_VENDOR, ReasonCode.DEVICE_ARCH, ReasonCode.FEATURE)
INTERPRETER = "triton_interpreter"


@dataclass(frozen=True, slots=True)
class Machine:
    """The device of a check.

    Attributes:
        device: its facts.
        place: torch device on which kernels run; empty where none can.
        interprets: Triton interprets kernels in this process.
        refused: why interpreted numbers prove nothing here, or empty.
    """

    device: Device
    place: str
    interprets: bool = False
    refused: str = ""

    def must_interpret(self, kernels: Iterable[RegisteredKernel]) -> bool:
        """Whether some kernel can be checked only in another process, in which Triton interprets."""
        if self.place != "cpu" or self.interprets:
            return False
        return any(needs_triton(entry.kernel) and not _package_reasons(entry.kernel) for entry in kernels)

    def arch_of(self, subject: Subject) -> str:
        """Return the architecture that a record of a kernel is about."""
        return "cpu" if subject.interpreted else self.device.arch.name

    def award(self, record: KernelRecord, subject: Subject, levels: Sequence[str]) -> None:
        """Write into a record the level of evidence that it supports. Nothing in it has failed."""
        passed = {name for name, level in record.levels.items() if level.status == "passed"}
        if "numbers" not in passed:
            if "builds" in passed:
                record.level, record.note = Evidence.COMPILED.value, "built, and not run"
            return
        record.level = (Evidence.INTERPRETED if subject.interpreted else Evidence.CONFORMANT).value
        missing = [level for level in ("claims", "traits") if level not in levels]
        notes = [f"{' and '.join(missing)} not checked"] if missing else []
        if subject.interpreted:
            arch = subject.registered.kernel.arch
            notes.insert(0, f"numbers in Triton's interpreter, for {arch.text if arch else 'any device'}")
        record.note = "; ".join(notes)


def machine_for(name: str | None) -> Machine:
    """Return the machine that a device's name means; ``cuda:N`` becomes the current device of the process.

    Args:
        name: ``cpu``, ``cuda``, ``cuda:N``, a name of the catalogue, or None for this machine's GPU, else its CPU.

    Raises:
        DeviceError: there is no such device here, or in the catalogue.
    """
    if name is None:
        found = dspark_ops.probe()
        if found.is_accelerator and torch.cuda.is_available():
            return Machine(found, "cuda")
        return _cpu(found)
    if name == "cpu":
        return _cpu(None)
    if name == "cuda" or name.startswith("cuda:"):
        index = name.partition(":")[2]
        if not torch.cuda.is_available() or (index and not index.isdigit()):
            raise DeviceError(f"--device {name}: torch {torch.__version__} sees no such device here")
        found = dspark_ops.probe(int(index) if index else None)
        make_current(found)
        return Machine(found, name)
    return Machine(Device.simulate(name), "")


def make_current(device: Device) -> None:
    """Make a device that was named by its index the one on which this process launches.

    A launch goes to the current device wherever its arguments are. A device without an index, and a CPU, change
    nothing.

    Raises:
        DeviceError: torch does not see it, or sees another architecture under this index.
    """
    if device.index is None or not device.is_accelerator:
        return
    count = torch.cuda.device_count()
    if device.index >= count:
        raise DeviceError(
            f"device {device.index} ({device.name}): torch {torch.__version__} sees {count} devices here; a variable "
            "such as CUDA_VISIBLE_DEVICES may hide it"
        )
    torch.cuda.set_device(device.index)
    torch.cuda.init()
    seen = dspark_ops.probe(device.index)  # torch is asked, now that it has started
    if seen.arch != device.arch:
        raise DeviceError(
            f"device {device.index} is a {device.name} ({device.arch}) to the driver and a {seen.name} ({seen.arch}) "
            "to torch: their lists differ; set CUDA_DEVICE_ORDER=PCI_BUS_ID, and hide no device"
        )


def subject_on(registered: RegisteredKernel, contract: Contract, machine: Machine) -> Subject:
    """Return a kernel as it can be checked on a machine."""
    kernel = registered.kernel
    if not machine.place:
        why = f"{machine.device.arch.name} is simulated: only claims and builds can be checked"
        return Subject(registered, contract, machine.device, why_not=why)
    reasons = list(requirement_reasons(kernel, contract, machine.device, check_package))
    interpreted = machine.place == "cpu" and needs_triton(kernel)
    if interpreted and machine.interprets:
        reasons = [reason for reason in reasons if reason.code not in _STANDS_IN]
    if interpreted and machine.refused:
        return Subject(registered, contract, machine.device, interpreted=True, why_not=machine.refused)
    if reasons:
        return Subject(registered, contract, machine.device, why_not="; ".join(map(str, reasons)))
    return Subject(registered, contract, machine.device, machine.place, interpreted)


def needs_triton(kernel: Kernel) -> bool:
    """Whether a kernel says that it needs Triton."""
    return any(package.module.split(".")[0] == "triton" for package in kernel.packages)


def _package_reasons(kernel: Kernel) -> bool:
    return any(check_package(package) is not None for package in kernel.packages)


def _cpu(found: Device | None) -> Machine:
    device = found if found is not None and not found.is_accelerator else Device.simulate("cpu")
    interprets = triton_interprets(os.environ)
    if interprets:
        device = replace(device, features=device.features | {INTERPRETER})
    return Machine(device, "cpu", interprets)
