"""The guides are exact: their Python runs in order in one namespace, and their `dspark-ops` lines end with code 0."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dspark_ops.cli import main

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "tests" / "packaging" / "example_plugin"
_BLOCK = re.compile(r"^```(?P<language>\w*)\n(?P<text>.*?)^```", flags=re.MULTILINE | re.DOTALL)


def steps(page: Path) -> Iterator[tuple[int, str, str]]:
    """Yield the first line number, the language and the text of each block of a page that is to be run."""
    text = page.read_text(encoding="utf-8")
    for match in _BLOCK.finditer(text):
        line = text.count("\n", 0, match.start()) + 1
        if match["language"] == "python":
            yield line, "python", match["text"]
        elif not match["language"]:
            for offset, command in enumerate(match["text"].splitlines(), start=1):
                if command.startswith("dspark-ops "):
                    yield line + offset, "command", command.partition("#")[0]


def follow(page: Path) -> tuple[int, int]:
    """Do what a page says, and return how many blocks of Python and how many commands that were."""
    names: dict[str, Any] = {"__name__": f"guide_{page.stem}"}
    counts = {"python": 0, "command": 0}
    for line, kind, text in steps(page):
        counts[kind] += 1
        if kind == "python":
            exec(compile("\n" * line + text, str(page), "exec", dont_inherit=True), names)
        else:
            assert main(shlex.split(text)[1:]) == 0, f"{page.name}:{line}: {text}"
    return counts["python"], counts["command"]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory in which the paths that the guides name are there."""
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_guide_for_engines_does_what_it_says(place: Path) -> None:
    blocks, commands = follow(ROOT / "docs" / "engines.md")
    assert (blocks, commands) == (16, 4)
    assert (place / "tiny.lock").is_file()


def test_the_guide_for_plugin_authors_does_what_it_says_with_the_example_installed(
    place: Path, site: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.distribution("dspark-ops-example", "0.1.0", {"example": "dspark_ops_example.plugin"}, ("dspark_ops_example",))
    monkeypatch.syspath_prepend(str(EXAMPLE / "src"))
    monkeypatch.setenv("DSPARK_OPS_PLUGINS", "example")
    blocks, commands = follow(ROOT / "docs" / "plugins.md")
    assert (blocks, commands) == (8, 3)


def test_every_page_stands_once_in_the_navigation_of_the_site() -> None:
    named = re.findall(r"^ +- [^:\n]+: ([\w-]+\.md)$", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(named) == sorted(page.name for page in (ROOT / "docs").glob("*.md"))
