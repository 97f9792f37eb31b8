"""Loading: import one plugin, take its manifest whole, and turn every way to fail into a record with its full cause."""

from __future__ import annotations

import traceback
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.metadata import EntryPoint
from typing import Final

import pluggy

from dspark_ops.api import hooks
from dspark_ops.api.manifest import Manifest
from dspark_ops.errors import PluginError
from dspark_ops.selection.candidate import CORE
from dspark_ops.selection.manifest_check import api_fault, kernel_faults
from dspark_ops.selection.registry import PluginFailure, PluginRecord, RegisteredKernel, Registry

__all__ = ["FoundPlugin", "LoadedPlugin", "assemble", "build_registry", "load_plugin"]


@dataclass(frozen=True, slots=True)
class FoundPlugin:
    """One plugin that a distribution's metadata names; nothing of it is imported yet.

    Attributes:
        name: entry-point name, which must be the name in its manifest.
        distribution: distribution that provides it, and its `version`.
        entry_point: what is to be imported.
    """

    name: str
    distribution: str
    version: str
    entry_point: EntryPoint

    def failure(self, stage: str, cause: str, detail: str = "") -> PluginFailure:
        """Return the record of this plugin not being loaded."""
        return PluginFailure(self.name, self.distribution, self.version, self.entry_point.value, stage, cause, detail)


@dataclass(frozen=True, slots=True)
class LoadedPlugin:
    """A plugin whose manifest passed every check."""

    record: PluginRecord
    manifest: Manifest


class _RefusedError(Exception):
    """A plugin broke a rule of this library; `lines` say which."""

    def __init__(self, stage: str, lines: Sequence[str]) -> None:
        super().__init__("; ".join(lines))
        self.stage: Final = stage
        self.lines: Final = tuple(lines)


def load_plugin(found: FoundPlugin) -> LoadedPlugin | PluginFailure:
    """Import a plugin and check its manifest, or return why that failed.

    A manifest is taken whole: a plugin that fails leaves no kernel behind. The range of API versions is read before its
    kernels are looked at; the module and its hook have run by then, since the manifest is what declares the range.

    Raises:
        BaseException: other than `Exception` and `SystemExit`, such as `KeyboardInterrupt`, passes through.
    """
    # A manager of its own per plugin is the transaction: there is no shared state that a failure would have to restore.
    manager = pluggy.PluginManager(hooks.PROJECT)
    manager.add_hookspecs(hooks)
    stage = "import"
    try:
        plugin = found.entry_point.load()
        stage = "hook"
        manager.register(plugin, name=found.name)
        manager.check_pending()
        manifest = _one_manifest(manager.hook.dspark_ops_manifest(), found)
        _check(manifest, found)
    except _RefusedError as refused:
        return found.failure(refused.stage, str(refused), "\n".join(refused.lines))
    except (Exception, SystemExit) as error:
        return found.failure(stage, cause_line(error), "".join(traceback.format_exception(error)))
    record = PluginRecord(
        name=manifest.name,
        distribution=found.distribution,
        version=found.version,
        entry_point=found.entry_point.value,
        api=manifest.api,
        kernels=len(manifest.kernels),
        docs=manifest.docs,
        modules=_modules(found.entry_point.value, manifest),
    )
    return LoadedPlugin(record, manifest)


def _modules(entry_point: str, manifest: Manifest) -> tuple[str, ...]:
    """Return the top-level modules of a plugin's own code: packages that its kernels need are not its own."""
    own = {_top(entry_point)}
    for kernel in manifest.kernels:
        needed = {_top(package.module) for package in kernel.packages}
        own.update({_top(kernel.target), _top(kernel.prepare or kernel.target)} - needed)
    return tuple(sorted(own))


def _top(target: str) -> str:
    return target.partition(":")[0].partition(".")[0]


def cause_line(error: BaseException) -> str:
    """Return an error and what led to it in one line, the last error first."""
    parts: list[str] = []
    current: BaseException | None = error
    while current is not None:
        text = " ".join(str(current).split())
        parts.append(f"{type(current).__name__}: {text}" if text else type(current).__name__)
        current = current.__cause__ or (None if current.__suppress_context__ else current.__context__)
    return ", caused by ".join(parts)


def build_registry(manifests: Iterable[Manifest]) -> Registry:
    """Return a registry of the given manifests, without looking at installed plugins.

    Raises:
        PluginError: a manifest is wrong, or two have one name; the text lists every fault.
    """
    loaded: list[LoadedPlugin] = []
    faults: list[str] = []
    for manifest in manifests:
        if any(manifest.name == other.record.name for other in loaded):
            faults.append(f"two manifests are named {manifest.name!r}")
        if reserved := _name_fault(manifest.name):
            faults.append(reserved)
        api = api_fault(manifest.api)
        faults.extend([f"{manifest.name}: {api}"] if api else kernel_faults(manifest))
        record = PluginRecord(
            manifest.name, manifest.name, "", "given", manifest.api, len(manifest.kernels), manifest.docs
        )
        loaded.append(LoadedPlugin(record, manifest))
    if faults:
        raise PluginError("\n".join(["the given manifests cannot be used:", *(f"  {fault}" for fault in faults)]))
    return assemble(loaded, ())


def assemble(loaded: Iterable[LoadedPlugin], failures: Iterable[PluginFailure]) -> Registry:
    """Return the registry of what was loaded and what was not; the order in which they are given does not matter."""
    loaded = sorted(loaded, key=lambda plugin: plugin.record.name)
    kernels: dict[str, list[RegisteredKernel]] = {}
    for plugin in loaded:
        for kernel in plugin.manifest.kernels:
            name = plugin.manifest.name
            registered = RegisteredKernel(
                f"{name}/{kernel.op}/{kernel.variant}", name, plugin.record.distribution, kernel
            )
            kernels.setdefault(kernel.op, []).append(registered)
    return Registry(
        kernels={op: tuple(sorted(kernels[op], key=lambda registered: registered.id)) for op in sorted(kernels)},
        plugins=tuple(plugin.record for plugin in loaded),
        failures=tuple(sorted(failures, key=lambda failure: (failure.name, failure.distribution, failure.entry_point))),
    )


def _one_manifest(results: object, found: FoundPlugin) -> Manifest:
    given = results if isinstance(results, list) else [results]
    if not given:
        raise _RefusedError(
            "hook",
            [f"{found.entry_point.value} implements no hook: wanted dspark_ops_manifest() marked with @hookimpl"],
        )
    manifest = given[0]
    if not isinstance(manifest, Manifest):
        raise _RefusedError("hook", [f"dspark_ops_manifest() gave {type(manifest).__name__}: wanted a Manifest"])
    return manifest


def _name_fault(name: str) -> str | None:
    return f"the name {name!r} is reserved: core's own candidates have it in their ids" if name == CORE else None


def _check(manifest: Manifest, found: FoundPlugin) -> None:
    if api := api_fault(manifest.api):
        raise _RefusedError("api", [api])
    if manifest.name != found.name:
        raise _RefusedError(
            "identity", [f"its manifest is named {manifest.name!r}, its entry point {found.name!r}: they must be equal"]
        )
    if reserved := _name_fault(manifest.name):
        raise _RefusedError("identity", [reserved])
    if faults := kernel_faults(manifest):
        raise _RefusedError("manifest", faults)
