"""What plugins call conformant: it is in a record of a run, and the kernels have not changed since."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import pytest

from dspark_ops.api import Evidence
from dspark_ops.conformance.sources import source_digest

ROOT = Path(__file__).parents[2]
CLAIMS = sorted((ROOT / "plugins").glob("*/src/*/conformant.json"))


def claims(file: Path) -> dict[str, dict[str, str]]:
    data: dict[str, dict[str, str]] = json.loads(file.read_text(encoding="utf-8"))
    return data


def kernels(file: Path) -> dict[str, Any]:
    manifest = importlib.import_module(f"{file.parent.name}.plugin").dspark_ops_manifest()
    return {f"{kernel.op}/{kernel.variant}": kernel for kernel in manifest.kernels}


def test_the_portable_plugin_has_a_record() -> None:
    assert "dspark_ops_triton" in [file.parent.name for file in CLAIMS]


@pytest.mark.parametrize("file", CLAIMS, ids=lambda file: file.parent.name)
def test_a_kernel_called_conformant_is_the_one_that_was_run(file: Path) -> None:
    changed = [
        name
        for passed in claims(file).values()
        for name, digest in passed.items()
        if source_digest(kernels(file)[name].prepare or kernels(file)[name].target) != digest
    ]
    assert changed == [], "run the GPU tests again, or: python benchmarks/record_gpu_tests.py --prune"


@pytest.mark.parametrize("file", CLAIMS, ids=lambda file: file.parent.name)
def test_a_kernel_called_conformant_passed_every_test_of_the_recorded_run(file: Path) -> None:
    plugin = file.parents[2].name
    for arch, passed in claims(file).items():
        record = json.loads((ROOT / "benchmarks" / "results" / f"gpu_tests_{arch}.json").read_text(encoding="utf-8"))
        assert record["machine"]["arch"] == arch
        for name, digest in passed.items():
            entry = record["kernels"][f"{plugin}/{name}"]
            assert (entry["outcome"], entry["tests_failed"], entry["sources"]) == ("passed", [], digest)
            assert entry["tests_passed"] >= 2


@pytest.mark.parametrize("file", CLAIMS, ids=lambda file: file.parent.name)
def test_nothing_else_is_called_conformant(file: Path) -> None:
    recorded = {(name, arch) for arch, passed in claims(file).items() for name in passed}
    claimed = {
        (name, arch)
        for name, kernel in kernels(file).items()
        for arch, level in kernel.evidence
        if level.order >= Evidence.CONFORMANT.order
    }
    assert claimed == recorded
