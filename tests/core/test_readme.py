"""What README.md shows works: the plugin of 30 lines loads and is chosen, and the configuration is read."""

from __future__ import annotations

import re
from pathlib import Path
from types import ModuleType
from typing import Any

import dspark_ops
from dspark_ops.config import load_settings
from dspark_ops.selection.loading import build_registry
from dspark_ops.selection.settings import Settings

README = (Path(__file__).resolve().parents[2] / "README.md").read_text(encoding="utf-8")


def _block(language: str, containing: str) -> str:
    blocks: list[str] = re.findall(rf"^```{language}\n(.*?)^```", README, flags=re.MULTILINE | re.DOTALL)
    (block,) = [block for block in blocks if containing in block]
    return block


def test_the_plugin_of_the_readme_is_chosen_on_its_hardware_and_is_no_longer_than_30_lines() -> None:
    source = _block("python", "dspark_ops_manifest")
    module = ModuleType("acme_dspark_plugin")
    exec(source, module.__dict__)
    manifest: Any = module.__dict__["dspark_ops_manifest"]()
    registry = build_registry([manifest])
    device = dspark_ops.Device.simulate("sm_103")
    plan = dspark_ops.plan(
        device=device,
        model="deepseek-v4.1-flash/tp4",
        rows=[6],
        registry=registry,
        operators=["argmax_rows"],
        config=Settings(),
    )
    assert plan.of("argmax_rows")[0].choices[0].kernel.id == "acme/argmax_rows/two_pass"
    assert len(source.splitlines()) <= 30


def test_the_configuration_of_the_readme_is_read_as_it_stands(tmp_path: Path) -> None:
    file = tmp_path / "dspark-ops.toml"
    file.write_text(_block("toml", "[policy]"), encoding="utf-8")
    settings = load_settings(file, environ={})
    assert settings.policy.fallback == "fail"
    assert settings.of("argmax_rows").pin == "nvidia_sm10x/argmax_rows/one_launch"
    assert settings.of("argmax_rows").deny == ("triton/*",)


def test_every_file_that_the_readme_names_exists() -> None:
    root = Path(__file__).resolve().parents[2]
    named = re.findall(r"`((?:docs|examples|benchmarks)/[\w./-]+)`", README)
    assert named
    assert [name for name in named if not (root / name).exists()] == []
