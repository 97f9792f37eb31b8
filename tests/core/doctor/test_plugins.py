"""The doctor on what is installed: plugins, modules of one name, packages and their device code. Case O27."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from dspark_ops.api.reason import Reason, ReasonCode
from dspark_ops.doctor import Severity
from dspark_ops.doctor.facts import (
    DeviceCode,
    NamedModule,
    PackageFact,
    Shadow,
)
from dspark_ops.selection.packages import PackageState
from dspark_ops.selection.registry import PluginFailure, Registry


def test_a_plugin_that_failed_is_found_with_its_cause(ask: Any) -> None:
    failure = PluginFailure("acme", "acme-ops", "0.3", "acme.plugin", "import", "OSError: libfoo.so.2")
    finding = ask.one("plugins", registry=Registry({}, failures=(failure,)))
    assert finding.finding == "plugin acme did not load (at import), so none of its kernels can be chosen"
    assert finding.evidence == "acme-ops 0.3, acme.plugin: OSError: libfoo.so.2"


def test_a_blocked_plugin_is_no_fault(ask: Any) -> None:
    failure = PluginFailure("acme", "acme-ops", "0.3", "acme.plugin", "blocked", "plugins.deny names it")
    assert ask.found("plugins", registry=Registry({}, failures=(failure,))) == []


def test_two_distributions_with_one_plugin_name_are_found(ask: Any) -> None:
    failures = tuple(PluginFailure("acme", name, "1", "acme.plugin", "duplicate", "both") for name in ("a", "b"))
    assert [item.finding for item in ask.found("plugins", registry=Registry({}, failures=failures))] == [
        "two distributions claim the plugin name 'acme', so neither is loaded"
    ] * 2


def test_a_shadowed_plugin_is_found(ask: Any) -> None:
    shadow = Shadow("acme", "acme-ops", "module acme", "/site/acme/__init__.py", "/home/me/acme.py")
    finding = ask.one("plugins", shadows=(shadow,))
    assert finding.finding == "plugin acme is shadowed: another module acme comes first on the module path"
    assert finding.evidence == "acme-ops has /site/acme/__init__.py, an import finds /home/me/acme.py"


def aiter(**fields: Any) -> NamedModule:
    values: dict[str, Any] = {
        "module": "aiter", "wanted": "AMD's AITER", "install": "install amd-aiter", "vendor": "amd", "found": True,
        "marks": ("aiter.ops", "aiter.jit"), "present": (), "providers": ("aiter 0.13.20191203",),
    }  # fmt: skip
    return NamedModule(**(values | fields))


@pytest.mark.parametrize(("device", "severity"), [("MI355X", Severity.ERROR), ("cpu", Severity.WARNING)])
def test_o27_the_unrelated_aiter_is_found(ask: Any, device: str, severity: Severity) -> None:
    finding = ask.one("package_names", device=device, named_modules=(aiter(),))
    assert finding.severity is severity
    assert finding.finding == "wrong package: module aiter comes from aiter 0.13.20191203 and is not AMD's AITER"
    assert finding.evidence == "it lacks aiter.ops, aiter.jit"
    assert finding.fix == "pip uninstall aiter ; install amd-aiter"


def test_o27_the_right_aiter_is_fine_and_a_folder_of_it_is_noted(ask: Any) -> None:
    right = aiter(present=("aiter.ops", "aiter.jit"), providers=("amd-aiter 0.1.7",))
    assert ask.found("package_names", named_modules=(right,)) == []
    folder = ask.one("package_names", named_modules=(replace(right, providers=()),))
    assert folder.severity is Severity.NOTE and "its version is not known" in folder.finding


def test_a_folder_without_what_is_needed_is_the_wrong_package(ask: Any) -> None:
    assert (
        "comes from a folder without a distribution"
        in ask.one("package_names", named_modules=(aiter(providers=()),)).finding
    )


def test_the_placeholder_of_flash_mla_is_found(ask: Any) -> None:
    placeholder = NamedModule(
        "flash_mla", "DeepSeek's FlashMLA", "install it from source", "nvidia", False,
        ("flash_mla.flash_mla_interface",), (), ("flash-mla 1.0.0.dev0",),
    )  # fmt: skip
    finding = ask.one("package_names", named_modules=(placeholder,))
    assert finding.severity is Severity.ERROR
    assert finding.finding == "flash-mla 1.0.0.dev0 is a placeholder without the module flash_mla"
    assert finding.fix == "pip uninstall flash-mla ; install it from source"


def needs(code: ReasonCode, got: str, hint: str = "") -> PackageFact:
    return PackageFact(
        "flashinfer", ("acme/argmax_rows/fast",), PackageState(Reason(code, "flashinfer", ">=0.6", got, hint))
    )


@pytest.mark.parametrize(
    ("code", "severity", "text"),
    [
        (ReasonCode.PKG_MISSING, Severity.WARNING, "is not installed"),
        (ReasonCode.PKG_VERSION, Severity.ERROR, "has the wrong version"),
        (ReasonCode.PKG_WRONG, Severity.ERROR, "is another one of that name"),
        (ReasonCode.UNAVAILABLE, Severity.ERROR, "is not usable"),
    ],
)
def test_a_package_that_will_not_do_is_found_with_the_kernels_that_need_it(
    ask: Any, code: ReasonCode, severity: Severity, text: str
) -> None:
    finding = ask.one("packages", packages=(needs(code, "0.5", "pip install flashinfer"),))
    assert (finding.severity, finding.fix) == (severity, "pip install flashinfer")
    assert finding.finding == f"1 kernel for sm_90 cannot serve: package flashinfer {text}"
    assert finding.evidence == "wanted >=0.6, got 0.5; needed by acme/argmax_rows/fast"


def test_a_package_of_unknown_version_is_noted(ask: Any) -> None:
    fact = PackageFact("flashinfer", ("acme/argmax_rows/fast",), PackageState(None, note="its version is not known"))
    assert ask.one("packages", packages=(fact,)).severity is Severity.NOTE


@pytest.mark.parametrize(
    ("device", "architectures", "runs"),
    [
        ("H200", ("sm_90a",), True),
        ("H200", ("sm_80", "compute_80"), True),  # PTX is compiled for later parts
        ("H200", ("sm_80", "sm_86"), False),
        ("H200", ("sm_80", "compute_100"), False),
        ("B300", ("sm_100a",), False),  # for that part alone
        ("B300", ("sm_100f",), True),
        ("B300", ("sm_100",), True),
        ("B300", ("sm_90a", "compute_90a"), False),
        ("B300", ("sm_120",), False),
        ("MI355X", ("gfx942", "gfx950"), True),
        ("MI355X", ("gfx90a", "gfx942"), False),
        ("H200", (), True),
    ],
)
def test_binaries_without_code_for_the_device_are_found(
    ask: Any, device: str, architectures: tuple[str, ...], runs: bool
) -> None:
    findings = ask.found("packages", device=device, device_code=(DeviceCode("vendor-ops", architectures, "cuobjdump"),))
    assert [item.finding for item in findings] == (
        [] if runs else [f"vendor-ops holds no device code for {ask.device(device).arch}: its kernels cannot start"]
    )
