"""Which files a kernel is made of."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from dspark_ops.api import Evidence, Kernel, with_recorded_evidence
from dspark_ops.conformance.sources import kernel_sources, source_digest
from dspark_ops.errors import EvidenceError


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "made_plugin"
    (folder / "blocks").mkdir(parents=True)
    for name in ("__init__", "blocks/__init__", "unused"):
        (folder / f"{name}.py").write_text("")
    (folder / "kernel.py").write_text(
        "import json\nfrom made_plugin.blocks.order import first\nfrom made_plugin import tables\n"
    )
    (folder / "blocks" / "order.py").write_text("def first():\n    import made_plugin.blocks.pairs\n")
    (folder / "blocks" / "pairs.py").write_text("A = 1\n")
    (folder / "tables.py").write_text("B = 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in [name for name in sys.modules if name.partition(".")[0] == "made_plugin"]:
        monkeypatch.delitem(sys.modules, name)
    return folder


def test_a_kernel_is_made_of_what_its_module_imports_of_its_own_package(package: Path) -> None:
    assert kernel_sources("made_plugin.kernel:run") == (
        "made_plugin",
        "made_plugin.blocks.order",
        "made_plugin.blocks.pairs",
        "made_plugin.kernel",
        "made_plugin.tables",
    )


@pytest.mark.parametrize(
    ("file", "changes"), [("blocks/pairs.py", True), ("tables.py", True), ("kernel.py", True), ("unused.py", False)]
)
def test_the_digest_changes_with_those_files_only(package: Path, file: str, changes: bool) -> None:
    before = source_digest("made_plugin.kernel:run")
    (package / file).write_text((package / file).read_text() + "\nC = 2\n")
    assert (source_digest("made_plugin.kernel:run") != before) == changes


def test_line_ends_do_not_change_it(package: Path) -> None:
    before = source_digest("made_plugin.kernel:run")
    file = package / "tables.py"
    file.write_bytes(file.read_bytes().replace(b"\n", b"\r\n"))
    assert source_digest("made_plugin.kernel:run") == before


def test_a_plugin_that_is_not_installed_is_named() -> None:
    with pytest.raises(EvidenceError, match=r"there is no module no_such_plugin\.kernel here; install the plugin"):
        source_digest("no_such_plugin.kernel:run")


def test_a_record_raises_what_a_manifest_declares_and_only_where_it_says(package: Path) -> None:
    (package / "conformant.json").write_text('{"sm_90": {"argmax_rows/a": "sha256:0"}, "sm_80": {}}')
    levels = (("sm_90", Evidence.INTERPRETED), ("sm_100", Evidence.COMPILED))
    declared = [Kernel("argmax_rows", variant, "made_plugin.kernel:run", evidence=levels) for variant in ("a", "b")]
    a, b = with_recorded_evidence("made_plugin", declared)
    assert a.evidence == (("sm_90", Evidence.CONFORMANT), ("sm_100", Evidence.COMPILED))
    assert b == declared[1]


def test_without_a_record_nothing_changes(package: Path) -> None:
    declared = Kernel("argmax_rows", "a", "made_plugin.kernel:run")
    assert with_recorded_evidence("made_plugin", [declared]) == (declared,)


def test_a_plan_that_counts_records_imports_neither_torch_nor_triton() -> None:
    code = (
        "import sys, dspark_ops; device = dspark_ops.Device.simulate('H200'); "
        "dspark_ops.plan(device=device, rows=[6], config={'policy': {'evidence': 'conformant'}}); "
        "sys.exit(', '.join({'torch', 'triton'} & set(sys.modules)) or None)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_building_blocks_of_the_portable_plugin_are_among_a_vendor_kernel_s_sources() -> None:
    found = kernel_sources("dspark_ops_nvidia_sm10x.argmax:argmax_rows")
    assert "dspark_ops_nvidia_sm10x.argmax" in found
    assert "dspark_ops_triton.blocks.row_argmax" in found
