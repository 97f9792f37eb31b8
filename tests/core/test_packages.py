"""Needed packages: by metadata, by version number, and by what the module really offers. Case O27."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from dspark_ops.api import Package, ReasonCode
from dspark_ops.selection.packages import PackageCache, check_package, inspect_package, version_matches

INSTALL = "pip install amd-aiter --index-url https://example.invalid/simple"
NEEDED = Package("aiter", "amd-aiter", ">=0.1", ("rmsnorm2d_fwd", "mla"), INSTALL)
HELPERS = "def borrow(iterator): return iterator\n"
KERNELS = "print('loading kernels')\ndef rmsnorm2d_fwd(): ...\ndef mla(): ...\n"


@pytest.mark.parametrize(
    ("version", "specifier", "matches"),
    [
        ("0.6.16+cu130", "==0.6.16", True),
        ("0.6.16+cu130", "!=0.6.16", False),
        ("0.6.16+cu130", "<=0.6.16", True),
        ("0.6.9", ">=0.6.18", False),
        ("0.6.18", ">=0.6.9", True),
        ("0.6.18rc3", ">=0.6.18", False),
        ("0.7.0rc1", ">=0.6.18", True),
        ("0.8rc1", ">=0.6,<0.8", False),
        ("1.0.0.dev0", "", True),
        ("main-2026", ">=0.1", None),
    ],
)
def test_o27_versions_are_compared_as_versions(version: str, specifier: str, matches: bool | None) -> None:
    assert version_matches(version, specifier) is matches


def test_o27_a_module_of_another_distribution_is_the_wrong_package(site: Any) -> None:
    site.module("aiter", HELPERS)
    site.distribution("aiter", "0.13.20", modules=("aiter",))
    reason = check_package(NEEDED)
    assert reason is not None
    assert (reason.code, reason.field) == (ReasonCode.PKG_WRONG, "aiter")
    assert reason.wanted == "amd-aiter>=0.1"
    assert reason.got == "module aiter of another distribution, aiter"
    assert reason.hint == f"install it with  {INSTALL}"


def test_o27_the_right_distribution_with_the_needed_functions_will_do(site: Any) -> None:
    site.module("aiter", KERNELS)
    site.distribution("amd-aiter", "0.1.7.post2.dev18", modules=("aiter",))
    state = inspect_package(NEEDED, probe_attributes=True)
    assert (state.reason, state.version, state.provider, state.note) == (None, "0.1.7.post2.dev18", "amd-aiter", "")


@pytest.mark.parametrize("installed", ["triton", "pytorch-triton-rocm"])
def test_any_of_the_named_distributions_may_provide_the_module(site: Any, installed: str) -> None:
    site.module("tritium", "")
    site.distribution(f"{installed}-x", "3.6.1", modules=("tritium",))
    state = inspect_package(Package("tritium", "triton-x|pytorch-triton-rocm-x", ">=3.6"))
    assert (state.reason, state.version, state.provider) == (None, "3.6.1", f"{installed}-x")
    old = check_package(Package("tritium", "triton-x|pytorch-triton-rocm-x", ">=3.7"))
    assert old is not None
    assert (old.code, old.wanted, old.got) == (ReasonCode.PKG_VERSION, f"{installed}-x>=3.7", "3.6.1")


def test_where_none_of_the_named_distributions_is_installed_all_are_named() -> None:
    reason = check_package(Package("no_such_module", "one-such|other-such", ">=2"))
    assert reason is not None
    assert (reason.code, reason.wanted, reason.got) == (
        ReasonCode.PKG_MISSING,
        "one-such or other-such>=2",
        "not installed",
    )


def test_o27_a_folder_without_a_distribution_will_do_with_the_note_that_its_version_is_unknown(site: Any) -> None:
    site.module("aiter", KERNELS)
    state = inspect_package(NEEDED, probe_attributes=True)
    assert state.reason is None
    assert state.note == "aiter is a folder without a distribution: its version is not known"


def test_o27_a_folder_without_the_needed_functions_is_the_wrong_package(site: Any) -> None:
    site.module("aiter", HELPERS)
    assert check_package(NEEDED) is None, "its metadata say nothing against it"
    reason = check_package(NEEDED, probe_attributes=True)
    assert reason is not None
    assert reason.code is ReasonCode.PKG_WRONG
    assert reason.wanted == "module aiter with rmsnorm2d_fwd, mla"
    assert reason.got == "a folder without a distribution, without rmsnorm2d_fwd, mla"


def test_o27_the_name_alone_proves_nothing(site: Any) -> None:
    site.module("aiter", HELPERS)
    site.distribution("amd-aiter", "0.2", modules=("aiter",))
    reason = check_package(NEEDED, probe_attributes=True)
    assert reason is not None
    assert (reason.code, reason.got) == (ReasonCode.PKG_WRONG, "amd-aiter, without rmsnorm2d_fwd, mla")


def test_o27_an_absent_package_is_not_installed(site: Any) -> None:
    reason = check_package(NEEDED)
    assert reason is not None
    assert (reason.code, reason.got) == (ReasonCode.PKG_MISSING, "not installed")
    assert str(reason).endswith(f"install it with  {INSTALL}")


def test_a_distribution_without_its_module_is_missing_too(site: Any) -> None:
    site.distribution("amd-aiter", "0.2")
    reason = check_package(NEEDED)
    assert reason is not None
    assert (reason.code, reason.got) == (ReasonCode.PKG_MISSING, "amd-aiter 0.2 without module aiter")


@pytest.mark.parametrize(
    ("body", "got"),
    [
        ("import os; os.abort()\n", "an import that ended its process by signal SIGABRT"),
        ("import os; os._exit(7)\n", "an import that ended its process with exit code 7"),
        ("raise OSError('libamdhip64.so: not found')\n", "an import that raised OSError: libamdhip64.so: not found"),
    ],
)
def test_o27_an_import_that_crashes_is_reported_and_this_process_lives(site: Any, body: str, got: str) -> None:
    site.module("aiter", body)
    site.distribution("amd-aiter", "0.2", modules=("aiter",))
    assert check_package(NEEDED) is None
    reason = check_package(NEEDED, probe_attributes=True)
    assert reason is not None
    assert (reason.code, reason.got) == (ReasonCode.UNAVAILABLE, got)
    assert "aiter" not in sys.modules


def test_an_import_that_hangs_is_cut_off(site: Any) -> None:
    site.module("aiter", "import time; time.sleep(60)\n")
    site.distribution("amd-aiter", "0.2", modules=("aiter",))
    reason = check_package(NEEDED, probe_attributes=True, time_limit=0.5)
    assert reason is not None
    assert (reason.code, reason.got) == (ReasonCode.UNAVAILABLE, "an import that took more than 0.5 s")


@pytest.mark.parametrize(
    ("version", "versions", "got"),
    [
        ("0.6.9", ">=0.6.18,<0.8", "0.6.9"),
        ("main", ">=0.6.18", "'main', which is no version number"),
        ("0.7", "0.7", "0.7, and the range '0.7' cannot be read"),
    ],
)
def test_a_version_outside_the_range_is_refused(site: Any, version: str, versions: str, got: str) -> None:
    site.module("flashinfer", "")
    site.distribution("flashinfer-python", version, modules=("flashinfer",))
    reason = check_package(Package("flashinfer", "flashinfer-python", versions))
    assert reason is not None
    assert (reason.code, reason.wanted, reason.got) == (ReasonCode.PKG_VERSION, f"flashinfer-python{versions}", got)


def test_a_local_suffix_does_not_count(site: Any) -> None:
    site.module("flashinfer", "")
    site.distribution("flashinfer-python", "0.6.18+cu130", modules=("flashinfer",))
    assert check_package(Package("flashinfer", "flashinfer-python", "==0.6.18")) is None


def test_a_submodule_is_found_without_importing_its_parents(site: Any) -> None:
    site.module("vendor.kernels.mla", "raise RuntimeError('imported')")
    (site.path / "vendor/__init__.py").write_text("raise RuntimeError('imported')")
    site.distribution("vendor-kernels", "1.0", modules=("vendor",))
    assert check_package(Package("vendor.kernels.mla", "vendor-kernels")) is None
    reason = check_package(Package("vendor.kernels.nothing", "vendor-kernels"))
    assert reason is not None
    assert reason.code is ReasonCode.PKG_MISSING
    assert "vendor" not in sys.modules


def test_a_cache_remembers_for_its_owner_only(site: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = PackageCache()
    assert check_package(NEEDED, cache=cache) is not None
    site.module("aiter", KERNELS)
    site.distribution("amd-aiter", "0.2", modules=("aiter",))
    assert check_package(NEEDED, cache=cache) is not None, "its owner asked for one consistent picture"
    assert check_package(NEEDED, cache=PackageCache()) is None
    assert check_package(NEEDED) is None
    monkeypatch.setattr(subprocess, "run", None)
    assert check_package(NEEDED, cache=PackageCache()) is None, "no process is started unless it is asked for"
