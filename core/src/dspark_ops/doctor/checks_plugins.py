"""Checks of what is installed: plugins that failed or are shadowed, packages of one name, missing device code."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from dspark_ops.api.arch import Arch
from dspark_ops.api.reason import ReasonCode
from dspark_ops.doctor.facts import DeviceCode, Facts
from dspark_ops.doctor.finding import Check, Severity

Found = Iterator[tuple[Severity, str, str, str]]

_CUDA: Final = re.compile(r"^(?P<kind>sm|compute)_(?P<major>\d+)(?P<minor>\d)(?P<suffix>[af]?)$")


def _failed(facts: Facts) -> Found:
    for failure in facts.registry.failures:
        if failure.stage == "blocked":
            continue
        source = f"{failure.distribution} {failure.version}, {failure.entry_point}".replace("  ", " ")
        evidence = f"{source}: {failure.cause}"
        if failure.stage == "duplicate":
            what = f"two distributions claim the plugin name {failure.name!r}, so neither is loaded"
            yield Severity.ERROR, what, evidence, "uninstall all but one of them, or deny it by plugins.deny"
        else:
            what = f"plugin {failure.name} did not load (at {failure.stage}), so none of its kernels can be chosen"
            fix = "see  dspark-ops plugins --traceback ; repair or uninstall it"
            yield Severity.ERROR, what, evidence, fix
    for shadow in facts.shadows:
        what = f"plugin {shadow.plugin} is shadowed: another {shadow.module} comes first on the module path"
        evidence = f"{shadow.distribution} has {shadow.wanted}, an import finds {shadow.found}"
        yield Severity.ERROR, what, evidence, f"remove or rename {shadow.found}, or take its folder off PYTHONPATH"


def _names(facts: Facts) -> Found:
    for item in facts.named_modules:
        severity = Severity.ERROR if item.vendor == facts.vendor else Severity.WARNING
        providers = ", ".join(item.providers)
        if not item.found:
            if item.providers:
                what = f"{providers} is a placeholder without the module {item.module}"
                fix = f"pip uninstall {_name_of(item.providers[0])} ; {item.install}"
                yield severity, what, "package metadata: it is installed, and the module cannot be found", fix
            continue
        if set(item.marks) <= set(item.present):
            if not item.providers:
                what = f"{item.module} is a folder without a distribution: its version is not known"
                yield Severity.NOTE, what, f"{', '.join(item.present)} are there", "install it by its packaging"
            continue
        missing = ", ".join(mark for mark in item.marks if mark not in item.present)
        whose = providers or "a folder without a distribution"
        what = f"wrong package: module {item.module} comes from {whose} and is not {item.wanted}"
        fix = f"pip uninstall {_name_of(item.providers[0])} ; {item.install}" if item.providers else item.install
        yield severity, what, f"it lacks {missing}", fix


def _name_of(provider: str) -> str:
    return provider.split(" ")[0]


def _vendor(facts: Facts) -> Found:
    for item in facts.packages:
        reason = item.state.reason
        count = (
            f"{len(item.kernels)} kernel{'s' if len(item.kernels) > 1 else ''} for {facts.device and facts.device.arch}"
        )
        who = ", ".join(item.kernels[:3]) + (", ..." if len(item.kernels) > 3 else "")
        if reason is None:
            if item.state.note:
                yield Severity.NOTE, item.state.note, f"needed by {who}", "install it by its packaging"
            continue
        evidence = f"wanted {reason.wanted}, got {reason.got}; needed by {who}"
        severity = Severity.WARNING if reason.code is ReasonCode.PKG_MISSING else Severity.ERROR
        what = f"{count} cannot serve: package {reason.field} {_state(reason.code)}"
        yield severity, what, evidence, reason.hint or f"install {reason.wanted}"
    for code in facts.device_code:
        if facts.device is not None and not _has_code(code, facts.device.arch):
            what = f"{code.distribution} holds no device code for {facts.device.arch}: its kernels cannot start"
            fix = f"install a build of {code.distribution} for {facts.device.arch}, or build it from source for it"
            yield Severity.ERROR, what, f"{code.source}: {', '.join(code.architectures)}", fix


def _state(code: ReasonCode) -> str:
    return {
        ReasonCode.PKG_MISSING: "is not installed",
        ReasonCode.PKG_VERSION: "has the wrong version",
        ReasonCode.PKG_WRONG: "is another one of that name",
    }.get(code, "is not usable")


def _has_code(code: DeviceCode, arch: Arch) -> bool:
    """Whether some of the code runs on an architecture; no code at all is no evidence of any lack.

    CUDA: a cubin runs on later minor versions of its major version, one with suffix ``a`` on its own version alone, one
    with ``f`` on its family; PTX is compiled for anything later, with a suffix as for cubins (CUDA Programming Guide).
    """
    if not code.architectures:
        return True
    if arch.vendor == "amd":
        return any(Arch.parse(name).name == arch.name for name in code.architectures if name.startswith("gfx"))
    own = _CUDA.match(arch.name)
    return own is None or any(_runs(found, own) for name in code.architectures if (found := _CUDA.match(name)))


def _runs(code: re.Match[str], own: re.Match[str]) -> bool:
    version, device = (tuple(int(item[part]) for part in ("major", "minor")) for item in (code, own))
    if code["suffix"] == "a":
        return version == device
    same_major = version[0] == device[0] and version[1] <= device[1]
    return same_major or (code["kind"] == "compute" and not code["suffix"] and version <= device)


def _no_accelerator(facts: Facts) -> str:
    return "" if facts.device is not None and facts.device.is_accelerator else "no accelerator to plan for"


FAILED = Check("plugins", "Did every plugin load, and from its own place?", _failed)
NAMES = Check("package_names", "Are modules with ambiguous names the right ones?", _names)
VENDOR = Check(
    "packages", "Do the packages that kernels need fit, with code for this device?", _vendor, _no_accelerator
)
CHECKS = (FAILED, NAMES, VENDOR)
