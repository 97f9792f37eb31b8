"""Discovery: which plugins are installed, which of them may load, and the registry of those that did."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from importlib import metadata
from typing import Final

from packaging.utils import canonicalize_name

from dspark_ops.api.version import ENTRY_POINT_GROUP
from dspark_ops.errors import PluginError
from dspark_ops.selection.loading import FoundPlugin, LoadedPlugin, assemble, build_registry, cause_line, load_plugin
from dspark_ops.selection.registry import PluginFailure, Registry
from dspark_ops.selection.settings import Settings
from dspark_ops.suggest import did_you_mean

__all__ = ["build_registry", "discover", "find_plugins", "survey"]

_log: Final = logging.getLogger("dspark_ops.plugins")


def discover(settings: Settings | None = None, path: Sequence[str] | None = None) -> Registry:
    """Return the registry of all installed plugins that the settings allow.

    A plugin that cannot be loaded is recorded in the registry's failures and logged; it never stops the others. The
    result does not depend on the order of installation.

    Args:
        settings: which plugins may load, and what a failure means; by default all may, and a failure is recorded.
        path: folders to look into; by default the module search path.

    Raises:
        PluginError: a plugin could not be loaded and ``policy.plugin_error`` is ``fail``.
    """
    settings = settings or Settings()
    registry = survey(settings, path)
    _report(registry, settings)
    return registry


def survey(settings: Settings, path: Sequence[str] | None = None) -> Registry:
    """Return the registry of all installed plugins that the settings allow, whatever failed, and report nothing."""
    found, failures = find_plugins(path)
    failures.extend(_absent(settings, found))
    allowed: list[FoundPlugin] = []
    for plugin in found:
        if blocked := _blocked(settings, plugin):
            failures.append(blocked)
        else:
            allowed.append(plugin)
    loaded: list[LoadedPlugin] = []
    for plugin in sorted(allowed, key=lambda plugin: (plugin.name, plugin.distribution)):
        claimants = [other for other in allowed if other.name == plugin.name]
        outcome = load_plugin(plugin) if len(claimants) == 1 else _duplicate(plugin, claimants)
        if isinstance(outcome, LoadedPlugin):
            loaded.append(outcome)
        else:
            failures.append(outcome)
    return assemble(loaded, failures)


def find_plugins(path: Sequence[str] | None = None) -> tuple[list[FoundPlugin], list[PluginFailure]]:
    """Return the plugins that installed distributions name, by metadata alone, and those whose metadata are broken.

    A distribution that is visible through two entries of the path counts once; the first one is taken, which is also
    the one that an import finds.
    """
    found: list[FoundPlugin] = []
    failures: list[PluginFailure] = []
    seen: set[str] = set()
    for distribution in metadata.distributions() if path is None else metadata.distributions(path=list(path)):
        try:
            entries = distribution.entry_points.select(group=ENTRY_POINT_GROUP)
            if not entries:
                continue
            name, version = distribution.metadata["Name"], distribution.version
            if not name:
                raise ValueError("its METADATA file names no distribution")
        except Exception as error:  # whatever is wrong with a foreign distribution, it must not stop the others
            if _speaks_of_plugins(distribution):
                where = str(distribution.locate_file(""))
                failures.append(PluginFailure("unknown", where, "", "entry_points.txt", "identity", cause_line(error)))
            continue
        if canonicalize_name(name) not in seen:
            seen.add(canonicalize_name(name))
            found.extend(FoundPlugin(entry.name, name, version, entry) for entry in entries)
    return sorted(found, key=lambda plugin: (plugin.name, plugin.distribution, plugin.entry_point.value)), failures


def _speaks_of_plugins(distribution: metadata.Distribution) -> bool:
    try:
        return ENTRY_POINT_GROUP in (distribution.read_text("entry_points.txt") or "")
    except Exception as error:  # unreadable, so whether it is a plugin cannot be known
        _log.warning("entry points of %s cannot be read: %s", distribution.locate_file(""), cause_line(error))
        return False


def _absent(settings: Settings, found: Iterable[FoundPlugin]) -> Iterable[PluginFailure]:
    """A name that is allowed and not installed is a failure: the list says that the plugin is counted on."""
    names = sorted({plugin.name for plugin in found})
    for name in settings.allow or ():
        if name not in names:
            origin = settings.origin("plugins.allow")
            installed = ", ".join(names) or "none"
            cause = f"plugins.allow names it ({origin}), but no distribution provides it: installed are {installed}"
            yield PluginFailure(name, "no distribution", "", "none", "identity", cause + did_you_mean(name, names))


def _blocked(settings: Settings, plugin: FoundPlugin) -> PluginFailure | None:
    if plugin.name in settings.deny:
        return plugin.failure("blocked", f"plugins.deny names it ({settings.origin('plugins.deny')})")
    if settings.allow is not None and plugin.name not in settings.allow:
        return plugin.failure("blocked", f"plugins.allow does not name it ({settings.origin('plugins.allow')})")
    return None


def _duplicate(plugin: FoundPlugin, claimants: Sequence[FoundPlugin]) -> PluginFailure:
    # Which of two was meant cannot be known, and the order of installation must not decide.
    claims = " and ".join(f"{other.distribution} {other.version} ({other.entry_point.value})" for other in claimants)
    cause = (
        f"the plugin name {plugin.name!r} is claimed by {claims}: none of them is loaded; uninstall or deny all but one"
    )
    return plugin.failure("duplicate", cause)


def _report(registry: Registry, settings: Settings) -> None:
    failed = [failure for failure in registry.failures if failure.stage != "blocked"]
    if failed and settings.policy.plugin_error == "fail":
        origin = settings.origin("policy.plugin_error")
        lines = "\n".join(f"  {failure}" for failure in failed)
        raise PluginError(f"policy.plugin_error is 'fail' ({origin}), and plugins could not be loaded:\n{lines}")
    for failure in failed:
        _log.warning("%s", failure)
