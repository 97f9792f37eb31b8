"""What a kernel requires whatever the shapes are: architecture, features, packages, contract version."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from dspark_ops.api.arch import Arch, ArchSet
from dspark_ops.api.kernel import Kernel, Package
from dspark_ops.api.reason import Reason, ReasonCode
from dspark_ops.contracts.contract import Contract
from dspark_ops.selection.device import Device

#: Returns why a package is not usable, or None.
PackageCheck = Callable[[Package], "Reason | None"]


def requirement_reasons(kernel: Kernel, contract: Contract, device: Device, packages: PackageCheck) -> Iterator[Reason]:
    """Yield every requirement that this device and installation do not meet."""
    if kernel.arch is not None and not kernel.arch.matches(device.arch):
        yield _arch_reason(kernel.arch, device)
    for feature in kernel.features:
        if feature not in device.features:
            has = ", ".join(sorted(device.features)) or "none"
            yield Reason(ReasonCode.FEATURE, "features", feature, has, origin=device.origins.get("features", ""))
    for package in kernel.packages:
        reason = packages(package)
        if reason is not None:
            yield reason
    if contract.version not in kernel.contract_versions:
        written_for = " or ".join(map(str, kernel.contract_versions))
        yield Reason(
            ReasonCode.CONTRACT, "contract_versions", f"contract {contract.name} {written_for}", str(contract.version),
            hint="install a version of the plugin that implements this contract",
        )  # fmt: skip


def _arch_reason(wanted: ArchSet, device: Device) -> Reason:
    got = device.arch
    vendors = _vendors(wanted)
    origin = device.origins.get("arch", "")
    if got.vendor not in vendors:
        return Reason(
            ReasonCode.DEVICE_VENDOR,
            "vendor",
            f"{' or '.join(vendors)} ({wanted.text})",
            f"{got.vendor} ({got.name})",
            origin=origin,
        )
    return Reason(ReasonCode.DEVICE_ARCH, "arch", wanted.text, got.name, origin=origin)


def _vendors(wanted: ArchSet) -> tuple[str, ...]:
    if wanted.any_of_vendor == "*":
        return ("nvidia", "amd")
    if wanted.any_of_vendor is not None:
        return (wanted.any_of_vendor,)
    return tuple(sorted({Arch.parse(name).vendor for name in wanted.names}))
