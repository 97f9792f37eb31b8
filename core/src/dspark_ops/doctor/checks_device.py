"""Checks of the device: an accelerator that nobody uses, an FP8 flavour that its units do not read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from dspark_ops.doctor.facts import Facts
from dspark_ops.doctor.finding import Check, Severity
from dspark_ops.selection.candidate import CORE

Found = Iterator[tuple[Severity, str, str, str]]

_VISIBLE: Final = {
    "nvidia": ("CUDA_VISIBLE_DEVICES",),
    "amd": ("HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"),
}
_BUILD: Final = {"nvidia": "cuda", "amd": "hip"}
_INSTALL: Final = {
    "nvidia": "install a CUDA build of torch: see https://pytorch.org/get-started",
    "amd": "install a ROCm build of torch: see https://pytorch.org/get-started",
}


def _unused(facts: Facts) -> Found:
    device = facts.device
    if device is None:
        yield Severity.ERROR, "the device cannot be probed", facts.device_problem, "see  dspark-ops devices"
        return
    if device.simulated:
        if facts.adapters:
            origin = "device.simulate or --device"
            what = f"plans are for a simulated {device.name}, and this machine has a GPU"
            yield (
                Severity.WARNING,
                what,
                f"{_adapters(facts)}; {origin}",
                "remove device.simulate from the configuration",
            )
        return
    if not device.is_accelerator:
        if facts.adapters:
            why = device.origins.get("arch", "no driver answers")
            what = "a GPU is on the bus and the device that is planned for is the CPU"
            fix = "load the driver; in a container pass the device in (--gpus all, or --device /dev/kfd /dev/dri)"
            yield Severity.ERROR, what, f"{_adapters(facts)}; {why}", fix
        return
    yield from _hidden(facts)
    wanted = _BUILD.get(facts.vendor, "")
    if not facts.torch.version:
        what = f"torch is not installed, so no operator can run on this {device.arch.name}"
        yield Severity.ERROR, what, f"package metadata; device {device.name}", _INSTALL[facts.vendor]
    elif not facts.torch.built_for.startswith(wanted):
        built = facts.torch.built_for or "the CPU alone"
        what = f"torch cannot use this {device.arch.name}: it is built for {built}"
        yield Severity.ERROR, what, f"torch {facts.torch.version}, device {device.name}", _INSTALL[facts.vendor]
    if facts.environment.get("TRITON_INTERPRET", "").lower() in ("1", "true", "on", "yes", "y"):
        what = "Triton interprets its kernels on the CPU, a thousand times slower, though there is a GPU"
        value = f"TRITON_INTERPRET={facts.environment['TRITON_INTERPRET']}, device {device.name}"
        yield Severity.ERROR, what, value, "unset TRITON_INTERPRET"


def _hidden(facts: Facts) -> Found:
    for name in _VISIBLE.get(facts.vendor, ()):
        value = facts.environment.get(name)
        if value is not None and value.strip() in ("", "-1", "none", "NoDevFiles"):
            what = f"{name} hides every GPU from this process"
            yield Severity.ERROR, what, f"{name}={value!r}", f"unset {name}, or name the GPUs:  {name}=0"


def _adapters(facts: Facts) -> str:
    return "PCI " + ", ".join(f"{item.address} {item.vendor} {item.device}" for item in facts.adapters)


def _flavour(facts: Facts) -> Found:
    plan, device = facts.plan, facts.device
    if plan is None or device is None:
        return
    reads = device.arch.fp8_dtype
    touched: dict[str, list[str]] = {}
    for selection in plan.selections:
        dtypes = {*selection.problem.dtypes.values()}
        dtypes |= {*facts.output_dtypes.get(selection.operator, ())}
        for dtype in sorted(item for item in dtypes if item.startswith("float8_e4m3") and item != reads):
            for choice in selection.choices:
                # core's references convert by arithmetic, whatever the device's units read
                if not choice.kernel.id.startswith(f"{CORE}/"):
                    touched.setdefault(dtype, []).append(f"{selection.operator} ({choice.kernel.id})")
    for dtype, served in touched.items():
        units = f"its units read {reads}" if reads else "its units read no 8-bit floats"
        # The bytes of one flavour are numbers of half the size, or NaN, in the other.
        what = f"kernels take {dtype} data on {device.arch.name}, and {units}"
        names = ", ".join(dict.fromkeys(served))
        fix = "refuse these kernels by ops.<operator>.deny unless their authors say that they convert"
        yield Severity.ERROR, what, names, fix


UNUSED = Check("accelerator", "Is an accelerator present and unused?", _unused)
FLAVOUR = Check(
    "fp8_flavour",
    "Do the device's units read the FP8 flavour of the operators?",
    _flavour,
    lambda facts: "" if facts.device and facts.device.is_accelerator and facts.plan else "no plan for an accelerator",
)
CHECKS = (UNUSED, FLAVOUR)
