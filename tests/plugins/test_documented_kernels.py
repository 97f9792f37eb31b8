"""Kernels that the documents name are there: a renamed one leaves no command that fails."""

from __future__ import annotations

import re
from pathlib import Path

from dspark_ops.selection.discovery import survey
from dspark_ops.selection.settings import Settings

ROOT = Path(__file__).resolve().parents[2]
PLUGINS = ("triton", "nvidia_sm10x", "nvidia_sm90", "amd_gfx950")


def test_every_kernel_id_in_the_documents_is_that_of_a_kernel() -> None:
    ids = {kernel.id for kernels in survey(Settings()).kernels.values() for kernel in kernels}
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md"), *ROOT.glob("plugins/*/README.md")]
    pattern = re.compile(rf"\b(?:{'|'.join(PLUGINS)})/[a-z0-9_]+/[a-z0-9_]+")
    named = {(page.name, name) for page in pages for name in pattern.findall(page.read_text(encoding="utf-8"))}
    assert len(named) > 100
    assert [item for item in sorted(named) if item[1] not in ids] == []
