"""Packages that kernels need: found by metadata, without importing them; their attributes only in another process."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import metadata
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec
from typing import Final

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion, Version

from dspark_ops.api.kernel import Package
from dspark_ops.api.reason import Reason, ReasonCode

__all__ = ["PackageCache", "PackageState", "check_package", "ending", "inspect_package", "version_matches"]

# The child gets the parent's module path, so that both find the same package. Its answer is a marked line: a package
# may print whatever it likes while it is imported.
_PROBE: Final = """
import importlib, json, sys
name, attributes, sys.path[:] = json.loads(sys.argv[1])
try:
    module = importlib.import_module(name)
    answer = {"missing": [entry for entry in attributes if not hasattr(module, entry)]}
except Exception as error:
    answer = {"error": f"{type(error).__name__}: {error}"}
print()
print("dspark-ops-probe " + json.dumps(answer), flush=True)
"""
_MARK: Final = "dspark-ops-probe "


@dataclass(frozen=True, slots=True)
class PackageState:
    """What is known of one needed package.

    Attributes:
        reason: why it will not do, or None.
        version: version of the distribution, empty if unknown.
        provider: distribution that provides the module, empty for a plain folder.
        note: a remark for people where it will do, such as a version that is not known.
    """

    reason: Reason | None
    version: str = ""
    provider: str = ""
    note: str = ""


@dataclass(slots=True)
class PackageCache:
    """What was found out so far, so that one planning looks at each package once.

    The caller owns it: two of them share nothing, and a new one sees what was installed meanwhile.
    """

    states: dict[tuple[Package, bool], PackageState] = field(default_factory=dict)
    providers: Mapping[str, Sequence[str]] | None = None

    def providers_of(self, module: str) -> tuple[str, ...]:
        """Return the distributions that provide a top-level module. The first call reads every distribution's files."""
        if self.providers is None:
            self.providers = metadata.packages_distributions()
        return tuple(sorted(set(self.providers.get(module, ()))))


def check_package(
    package: Package,
    *,
    cache: PackageCache | None = None,
    probe_attributes: bool = False,
    time_limit: float = 20.0,
) -> Reason | None:
    """Return why a needed package will not do, or None if it will; see `inspect_package`."""
    return inspect_package(package, cache=cache, probe_attributes=probe_attributes, time_limit=time_limit).reason


def inspect_package(
    package: Package,
    *,
    cache: PackageCache | None = None,
    probe_attributes: bool = False,
    time_limit: float = 20.0,
) -> PackageState:
    """Return what is known of a needed package.

    Without `probe_attributes` only metadata are read and nothing is imported: an import may take seconds, start a GPU
    context or end the process. With it, the module is imported in a child process, which proves that it is the right
    one and that its import works. Only that tells two installed distributions apart that ship a module of one name.

    Args:
        package: module, distribution, versions and attributes that are needed.
        cache: what earlier calls found; by default nothing is remembered.
        probe_attributes: import the module in a child process and look for the attributes.
        time_limit: seconds that the child may take.
    """
    cache = PackageCache() if cache is None else cache
    key = (package, probe_attributes)
    if key not in cache.states:
        state = _by_metadata(package, cache)
        if state.reason is None and probe_attributes:
            reason = _by_import(package, state, time_limit)
            state = PackageState(reason, state.version, state.provider, state.note)
        cache.states[key] = state
    return cache.states[key]


def version_matches(version: str, specifier: str) -> bool | None:
    """Return whether a version is in a range, or None if `version` is no version number.

    Numbers are compared as numbers (0.6.9 is before 0.6.18), a release candidate comes before its release, and a local
    suffix such as ``+cu130`` does not count.

    Raises:
        InvalidSpecifier: `specifier` is not a version range.
    """
    accepted = SpecifierSet(specifier)
    try:
        return accepted.contains(Version(version), prereleases=True)
    except InvalidVersion:
        return None


def _by_metadata(package: Package, cache: PackageCache) -> PackageState:
    names = package.distribution.split("|")
    here = next((name for name in names if _installed_version(name) is not None), " or ".join(names))
    package = replace(package, distribution=here)
    found = _spec_without_import(package.module)
    version = _installed_version(package.distribution)
    if found is None:
        got = (
            "not installed" if version is None else f"{package.distribution} {version} without module {package.module}"
        )
        return PackageState(_reason(ReasonCode.PKG_MISSING, package, _wanted(package), got), version or "")
    if version is None:
        return _foreign_or_folder(package, cache)
    return _check_version(package, version)


def _check_version(package: Package, version: str) -> PackageState:
    try:
        matches = version_matches(version, package.versions)
    except InvalidSpecifier:
        got = f"{version}, and the range {package.versions!r} cannot be read"
        return PackageState(
            _reason(ReasonCode.PKG_VERSION, package, _wanted(package), got), version, package.distribution
        )
    if matches or (matches is None and not package.versions):
        return PackageState(None, version, package.distribution)
    got = version if matches is not None else f"{version!r}, which is no version number"
    return PackageState(_reason(ReasonCode.PKG_VERSION, package, _wanted(package), got), version, package.distribution)


def _foreign_or_folder(package: Package, cache: PackageCache) -> PackageState:
    """The module can be imported, but the distribution that should provide it is not installed."""
    providers = cache.providers_of(package.module.split(".")[0])
    if providers:
        got = f"module {package.module} of another distribution, {', '.join(providers)}"
        reason = _reason(ReasonCode.PKG_WRONG, package, _wanted(package), got)
        return PackageState(reason, provider=", ".join(providers))
    note = f"{package.module} is a folder without a distribution: its version is not known"
    return PackageState(None, note=note)


def _by_import(package: Package, state: PackageState, time_limit: float) -> Reason | None:
    wanted = f"module {package.module}"
    if package.attributes:
        wanted += f" with {', '.join(package.attributes)}"
    query = json.dumps([package.module, package.attributes, sys.path])
    try:
        child = subprocess.run(
            [sys.executable, "-c", _PROBE, query],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=time_limit,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return _reason(ReasonCode.UNAVAILABLE, package, wanted, f"an import that took more than {time_limit:g} s")
    answers = [line[len(_MARK) :] for line in child.stdout.splitlines() if line.startswith(_MARK)]
    if not answers:
        return _reason(ReasonCode.UNAVAILABLE, package, wanted, f"an import that {ending(child.returncode)}")
    answer = json.loads(answers[-1])
    if "error" in answer:
        return _reason(ReasonCode.UNAVAILABLE, package, wanted, f"an import that raised {answer['error']}")
    if answer["missing"]:
        whose = state.provider or "a folder without a distribution"
        return _reason(ReasonCode.PKG_WRONG, package, wanted, f"{whose}, without {', '.join(answer['missing'])}")
    return None


def ending(code: int) -> str:
    """Return how a process ended, by its exit code, in words that follow its name."""
    if code >= 0:
        return f"ended its process with exit code {code}"
    known = {entry.value: entry.name for entry in signal.Signals}
    return f"ended its process by signal {known.get(-code, -code)}"


def _reason(code: ReasonCode, package: Package, wanted: str, got: str) -> Reason:
    hint = f"install it with  {package.install}" if package.install else ""
    return Reason(code, package.module, wanted, got, hint, "package metadata")


def _wanted(package: Package) -> str:
    return f"{package.distribution}{package.versions}" if package.versions else package.distribution


def _installed_version(distribution: str) -> str | None:
    try:
        version: str | None = metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None
    return version or ""


def _spec_without_import(module: str) -> ModuleSpec | None:
    """Find a module by its path: `find_spec` of a dotted name would import the parents."""
    first, *rest = module.split(".")
    find: Callable[[str], ModuleSpec | None] = find_spec
    try:
        spec = find(first)
    except (ValueError, ImportError):  # a half-removed module in sys.modules has no spec
        return None
    for index, _ in enumerate(rest):
        if spec is None or spec.submodule_search_locations is None:
            return None
        spec = PathFinder.find_spec(".".join((first, *rest[: index + 1])), list(spec.submodule_search_locations))
    return spec
