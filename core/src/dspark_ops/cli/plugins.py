"""``dspark-ops plugins``: which plugins are installed, which loaded, and why the others did not."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from dspark_ops.api.version import API_VERSION
from dspark_ops.cli._options import ConfigOption, JsonOption, configured
from dspark_ops.cli._show import console, print_json, table
from dspark_ops.selection.discovery import survey
from dspark_ops.selection.registry import Registry

TracebackOption = Annotated[bool, typer.Option("--traceback", help="Show the full cause of each failure.")]


def plugins(config: ConfigOption = None, traceback: TracebackOption = False, as_json: JsonOption = False) -> None:
    """Show installed plugins and why some did not load.

    Exit code 1 means that a plugin failed; one that the configuration blocks has not failed.
    """
    settings = configured(config).settings
    # Failures are what this verb shows, so none of them may end it, whatever the policy is.
    registry = survey(settings)
    if as_json:
        print_json(_json(registry))
    else:
        _print(registry, traceback)
    if any(failure.stage != "blocked" for failure in registry.failures):
        raise typer.Exit(1)


def _json(registry: Registry) -> object:
    kernels = [kernel for entries in registry.kernels.values() for kernel in entries]
    return {
        "api": API_VERSION,
        "plugins": [
            {**asdict(record), "kernels": sorted(kernel.id for kernel in kernels if kernel.plugin == record.name)}
            for record in registry.plugins
        ],
        "failures": [asdict(failure) for failure in registry.failures],
    }


def _print(registry: Registry, traceback: bool) -> None:
    out = console()
    rows = [
        (record.name, record.distribution, record.version, record.api, str(record.kernels), record.entry_point)
        for record in registry.plugins
    ]
    title = f"plugins (this core offers API {API_VERSION})"
    out.print(table(title, ("plugin", "distribution", "version", "needs API", "#kernels", "entry point"), rows))
    if not rows:
        out.print("none loaded: operators are served by core's torch references alone", markup=False)
    kernels = [kernel for entries in registry.kernels.values() for kernel in entries]
    if kernels:
        out.print()
        listed = [
            (
                kernel.id,
                kernel.kernel.rank.value,
                kernel.kernel.arch.text if kernel.kernel.arch else "any device",
                ", ".join(f"{arch} {level.value}" for arch, level in kernel.kernel.evidence) or "declared",
                kernel.kernel.note,
            )
            for kernel in sorted(kernels, key=lambda kernel: kernel.id)
        ]
        out.print(table("kernels", ("id", "class", "runs on", "evidence", "note"), listed, whole=("id",)))
    if registry.failures:
        out.print()
        failed = [(item.name, item.distribution, item.version, item.stage, item.cause) for item in registry.failures]
        out.print(table("not loaded", ("plugin", "distribution", "version", "stage", "cause"), failed))
    if traceback:
        for item in registry.failures:
            if item.detail:
                out.print(f"\n{item.name} ({item.distribution}):\n{item.detail}", markup=False)
    elif any(item.detail for item in registry.failures):
        out.print("dspark-ops plugins --traceback  shows the full causes", markup=False)
