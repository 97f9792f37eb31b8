"""The conventions of other packages, against the packages where they are installed: read from their sources, since an
import asks for a GPU. ``tox run -e nvidia_sm10x-deps`` installs them."""

from __future__ import annotations

import ast
from importlib import metadata

import pytest

from dspark_ops.api import ReasonCode
from dspark_ops.selection.packages import check_package
from dspark_ops_nvidia_sm10x.kernels_adapters import FLASH_MLA, FLASHINFER, KERNELS
from dspark_ops_nvidia_sm10x.signatures import CONVENTIONS, Convention


def parameters_of(convention: Convention) -> tuple[str, ...]:
    """Return the parameters of a function in the installed distribution's source."""
    name = convention.read_in.split()[0]
    try:
        distribution = metadata.distribution(name)
    except metadata.PackageNotFoundError:
        pytest.skip(f"{name} is not installed: tox run -e nvidia_sm10x-deps installs it")
    tree = ast.parse(distribution.locate_file(convention.source).read_text(encoding="utf-8"))
    function = next(
        node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name == convention.function
    )
    return tuple(argument.arg for argument in (*function.args.posonlyargs, *function.args.args))


@pytest.mark.parametrize("convention", CONVENTIONS, ids=lambda convention: convention.function)
def test_the_installed_package_has_the_recorded_parameters(convention: Convention) -> None:
    assert parameters_of(convention) == convention.parameters


@pytest.mark.parametrize("convention", CONVENTIONS, ids=lambda convention: convention.function)
def test_the_release_that_was_read_lies_in_the_range_that_is_accepted(convention: Convention) -> None:
    name, release = convention.read_in.split()
    package = next(package for package in (FLASHINFER, FLASH_MLA) if package.distribution == name)
    assert convention.module == package.module
    assert convention.function in package.attributes
    from packaging.specifiers import SpecifierSet

    assert SpecifierSet(package.versions).contains(release, prereleases=True)


def test_each_adapter_needs_its_package_and_says_how_to_get_it() -> None:
    assert {kernel.op for kernel in KERNELS} == {"mxfp8_quantize", "sparse_mla_decode"}
    for package in (FLASHINFER, FLASH_MLA):
        reason = check_package(package)
        if reason is not None:
            assert reason.code in (ReasonCode.PKG_MISSING, ReasonCode.PKG_VERSION)
            assert "dspark-ops-nvidia-sm10x[" in reason.hint
