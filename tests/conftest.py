"""Distributions made up in a temporary folder, so that discovery is tested without installing anything."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from textwrap import dedent

import hypothesis
import pytest

# What a machine needs for one example says nothing about the code: a busy one is not a failure.
hypothesis.settings.register_profile("any machine", deadline=None)
hypothesis.settings.load_profile("any machine")

GROUP = "dspark_ops.plugins"

#: A plugin module whose hook returns a manifest with the given fields.
PLUGIN = """
from dspark_ops.api import Evidence, Kernel, Manifest, RankClass, Traits, axis, dtype, family, hookimpl, option

{before}

@hookimpl
def dspark_ops_manifest():
    {inside}
    return Manifest({fields})
"""


class SiteFolder:
    """One folder of the module search path, filled with made-up distributions."""

    def __init__(self, path: Path, on_path: Callable[[str], None]) -> None:
        self.path = path
        path.mkdir(parents=True, exist_ok=True)
        on_path(str(path))

    def module(self, name: str, text: str) -> None:
        """Write a module ``a.b``, with its parent packages."""
        target = self.path.joinpath(*name.split("."))
        target.parent.mkdir(parents=True, exist_ok=True)
        for parent in target.parents:
            if parent == self.path:
                break
            (parent / "__init__.py").touch()
        target.with_suffix(".py").write_text(dedent(text))
        importlib.invalidate_caches()

    def distribution(
        self, name: str, version: str = "1.0", entries: Mapping[str, str] | None = None, modules: tuple[str, ...] = ()
    ) -> Path:
        """Write the metadata of a distribution: its entry points in the plugins' group, and its top-level modules."""
        folder = self.path / f"{name.replace('-', '_')}-{version}.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        (folder / "top_level.txt").write_text("".join(f"{module}\n" for module in modules))
        if entries:
            lines = "".join(f"{key} = {value}\n" for key, value in entries.items())
            (folder / "entry_points.txt").write_text(f"[{GROUP}]\n{lines}")
        importlib.invalidate_caches()
        return folder

    def plugin(self, name: str, fields: str = "", *, before: str = "", inside: str = "", version: str = "1.0") -> None:
        """Write a plugin: distribution ``dist-<name>``, module ``<name>_plugin``, and a manifest with `fields`."""
        given = fields or f"name={name!r}, api='>=1,<2'"
        self.module(f"{name}_plugin", PLUGIN.format(before=before, inside=inside, fields=given))
        self.distribution(f"dist-{name}", version, {name: f"{name}_plugin"}, (f"{name}_plugin",))


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SiteFolder]:
    """An empty folder at the head of the module search path; what is imported from it is forgotten afterwards."""
    before = set(sys.modules)
    yield SiteFolder(tmp_path / "site", monkeypatch.syspath_prepend)
    for name in set(sys.modules) - before:
        file = getattr(sys.modules[name], "__file__", None)
        if file and Path(file).is_relative_to(tmp_path):
            del sys.modules[name]
