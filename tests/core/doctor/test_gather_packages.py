"""Gathering what is installed: distributions planted on the module path. Case O27."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dspark_ops.api.reason import ReasonCode
from dspark_ops.doctor import gather_packages
from dspark_ops.doctor.facts import DeviceCode, PackageFact, Shadow
from dspark_ops.selection.discovery import survey
from dspark_ops.selection.packages import PackageState
from dspark_ops.selection.settings import Settings


def record(folder: Path, *files: str) -> None:
    (folder / "RECORD").write_text("".join(f"{file},,\n" for file in files))


def named(module: str) -> Any:
    found = [item for item in gather_packages.named_modules() if item.module == module]
    return found[0] if found else None


def test_o27_the_unrelated_aiter_is_told_by_what_it_lacks(site: Any) -> None:
    site.module("aiter.asynctools", "")
    site.distribution("aiter", "0.13.20191203", modules=("aiter",))
    found = named("aiter")
    assert (found.found, found.present, found.providers) == (True, (), ("aiter 0.13.20191203",))


def test_o27_amds_own_is_told_by_what_it_has_and_not_imported(site: Any) -> None:
    site.module("aiter.ops.topk", "raise SystemExit('imported')")
    site.module("aiter.jit.core", "")
    site.distribution("amd-aiter", "0.1.7", modules=("aiter",))
    found = named("aiter")
    assert (found.present, found.providers) == (("aiter.ops", "aiter.jit"), ("amd-aiter 0.1.7",))


def test_a_distribution_without_its_module_is_a_placeholder(site: Any) -> None:
    site.distribution("flash-mla", "1.0.0.dev0")
    found = named("flash_mla")
    assert (found.found, found.providers) == (False, ("flash-mla 1.0.0.dev0",))


def test_what_is_not_installed_at_all_is_no_finding(site: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.path", [str(site.path)])
    assert gather_packages.named_modules() == ()


KERNEL = """name='acme', api='>=1,<2', kernels=[Kernel('argmax_rows', 'fast', 'acme_plugin:run', arch=family('sm_9x'),
    packages=(Package('vendorlib', 'vendorlib', '>=2', install='pip install vendorlib'),))]"""


def test_a_package_of_the_wrong_version_is_found_for_the_devices_that_need_it(site: Any, ask: Any) -> None:
    site.plugin("acme", KERNEL, before="from dspark_ops.api import Package")
    site.module("vendorlib", "")
    site.distribution("vendorlib", "1.4", modules=("vendorlib",))
    registry = survey(Settings(allow=("acme",)), [str(site.path)])
    assert [failure.cause for failure in registry.failures] == []
    (fact,) = gather_packages.needed(registry, ask.device("H200"))
    assert fact.kernels == ("acme/argmax_rows/fast",) and fact.state.reason is not None
    assert (fact.state.reason.code, fact.state.reason.got) == (ReasonCode.PKG_VERSION, "1.4")
    assert gather_packages.needed(registry, ask.device("MI355X")) == ()


def test_a_module_that_comes_before_the_plugins_own_is_found(site: Any, tmp_path: Path, monkeypatch: Any) -> None:
    site.plugin("acme")
    record(site.path / "dist_acme-1.0.dist-info", "acme_plugin.py")
    registry = survey(Settings(allow=("acme",)), [str(site.path)])
    assert gather_packages.shadows(registry) == ()
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/acme_plugin.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path / "mine"))
    assert gather_packages.shadows(registry) == (
        Shadow(
            "acme", "dist-acme", "module acme_plugin", str(site.path / "acme_plugin.py"),
            str(tmp_path / "mine/acme_plugin.py"),
        ),
    )  # fmt: skip


def test_a_plugin_that_is_installed_twice_is_found_with_both_versions(
    site: Any, tmp_path: Path, monkeypatch: Any
) -> None:
    site.plugin("acme", version="2.0")
    older = type(site)(tmp_path / "older", monkeypatch.syspath_prepend)
    older.distribution("dist-acme", "1.0", {"acme": "acme_plugin"})
    (shadow,) = gather_packages.shadows(survey(Settings(allow=("acme",)), [str(site.path)]))
    assert (shadow.plugin, shadow.module) == ("acme", "version of dist-acme")
    assert shadow.found.startswith("1.0 in ") and shadow.wanted.startswith("2.0 in ")


def fact(provider: str) -> PackageFact:
    return PackageFact("vendorlib", ("acme/argmax_rows/fast",), PackageState(None, "2.0", provider))


def test_device_code_of_nvidia_is_read_by_cuobjdump(site: Any, tmp_path: Path, monkeypatch: Any) -> None:
    folder = site.distribution("vendorlib", "2.0")
    (site.path / "vendorlib.so").write_bytes(b"\x7fELF")
    record(folder, "vendorlib.so", "vendorlib.py")
    reader = tmp_path / "bin/cuobjdump"
    reader.parent.mkdir()
    reader.write_text(
        "#!/bin/sh\n"
        'case "$1" in\n'
        '--list-elf) echo "ELF file    1: vendorlib.1.sm_80.cubin"; echo "ELF file    2: vendorlib.2.sm_90a.cubin";;\n'
        '*) echo "PTX file    1: vendorlib.1.sm_90.ptx";;\n'
        "esac\n"
    )
    reader.chmod(0o755)
    monkeypatch.setenv("PATH", f"{reader.parent}:/bin:/usr/bin")
    assert gather_packages.device_code((fact("vendorlib"),), "nvidia", "", 10) == (
        DeviceCode("vendorlib", ("compute_90", "sm_80", "sm_90a"), "cuobjdump of 1 binaries"),
    )


def test_device_code_of_amd_is_read_from_the_binaries(site: Any) -> None:
    folder = site.distribution("vendorlib", "2.0")
    (site.path / "a.so").write_bytes(b"..hipv4-amdgcn-amd-amdhsa--gfx942\0..hipv4-amdgcn-amd-amdhsa--gfx90a:xnack-\0")
    record(folder, "a.so")
    (code,) = gather_packages.device_code((fact("vendorlib"),), "amd", "", 10)
    assert code.architectures == ("gfx90a", "gfx942")


def test_packages_that_build_for_the_device_or_hold_no_binaries_are_left_out(site: Any) -> None:
    record(site.distribution("vendorlib", "2.0"), "vendorlib.py")
    assert gather_packages.device_code((fact("vendorlib"), fact("triton")), "amd", "", 10) == ()


@pytest.mark.parametrize(
    ("text", "built_for"),
    [
        ("cuda: Optional[str] = '13.0'\nhip: Optional[str] = None\n", "cuda 13.0"),
        ("cuda: Optional[str] = None\nhip: Optional[str] = '7.0.51831'\n", "hip 7.0.51831"),
        ("cuda: Optional[str] = None\nhip: Optional[str] = None\n", ""),
    ],
)
def test_what_torch_is_built_for_is_read_without_importing_it(site: Any, text: str, built_for: str) -> None:
    (site.path / "torch").mkdir()
    (site.path / "torch/version.py").write_text(text)
    (site.path / "torch/__init__.py").write_text("raise SystemExit('imported')")
    site.distribution("torch", "2.13.0")
    assert gather_packages.torch_build() == ("2.13.0", built_for)


def test_tritons_backends_are_read_without_importing_it(site: Any) -> None:
    site.module("triton.backends.amd.compiler", "raise SystemExit('imported')")
    site.module("triton.backends.driver", "")
    site.distribution("triton", "3.9.0", modules=("triton",))
    assert gather_packages.triton_installation() == ("3.9.0", ("amd",))
    assert "Triton" in gather_packages.cache_owners()
