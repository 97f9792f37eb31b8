"""The tests that run in Triton's interpreter, in processes of their own: which file is run by which family."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from dspark_ops.conformance.interpreter import run_interpreted

#: Families of about equal length, so that several workers can share them.
FAMILIES = {
    "attention": (
        "attention", "compress", "index", "index_store", "kv_v41", "paged_logits", "plan", "products", "kernels",
    ),
    "decode": (
        "accept", "codes", "draft", "elementary", "inputs", "ordering", "row_parts", "sampled", "select", "topk",
    ),
    "layers": ("activation", "fused", "grids", "mhc", "mhc_mix", "moe", "moe_sort", "quantize", "routes"),
}  # fmt: skip
FOLDER = Path(__file__).parent / "interpreted"


@pytest.fixture
def families() -> Mapping[str, tuple[str, ...]]:
    """Return the files of each family, without ``test_`` and the ending."""
    return FAMILIES


@pytest.fixture
def pass_interpreted() -> Callable[[str], None]:
    """Return what runs a family and fails if one of its tests does."""

    def run(family: str) -> None:
        files = [str(FOLDER / f"test_{name}.py") for name in FAMILIES[family]]
        finished = run_interpreted(["-m", "pytest", "-q", *files])
        assert finished.returncode == 0, finished.stdout + finished.stderr
        assert " passed" in finished.stdout
        assert "skipped" not in finished.stdout

    return run
