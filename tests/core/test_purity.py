"""Importing dspark-ops changes nothing and loads nothing heavy."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

_PROBE = """
import json, os, sys, logging, threading
before = dict(os.environ), list(sys.path), list(logging.getLogger().handlers)
import {module}
after = dict(os.environ), list(sys.path), list(logging.getLogger().handlers)
heavy = [name for name in ("torch", "triton", "pydantic", "typer", "rich", "numpy") if name in sys.modules]
print(json.dumps({{"heavy": heavy, "unchanged": before == after, "threads": threading.active_count()}}))
"""


def _import(module: str) -> dict[str, object]:
    result = subprocess.run(
        [sys.executable, "-c", _PROBE.format(module=module)], capture_output=True, text=True, check=True
    )
    loaded: dict[str, object] = json.loads(result.stdout)
    return loaded


@pytest.mark.parametrize("module", ["dspark_ops", "dspark_ops.api", "dspark_ops.contracts", "dspark_ops.errors"])
def test_import_loads_no_heavy_module_and_changes_no_process_state(module: str) -> None:
    assert _import(module) == {"heavy": [], "unchanged": True, "threads": 1}


def test_reading_every_contract_needs_no_torch() -> None:
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from dspark_ops import contracts\n"
        "shapes = contracts.model_shapes('deepseek-v4.1-flash/tp4')\n"
        "for contract in contracts.all_contracts().values():\n"
        "    contract.signature(); contract.axes; contract.rows_from; contract.sites(shapes)\n"
        "print(len(contracts.names()))\n"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(result.stdout) >= 1


@pytest.mark.parametrize(
    "plugin", ["dspark_ops_triton", "dspark_ops_nvidia_sm10x", "dspark_ops_nvidia_sm90", "dspark_ops_amd_gfx950"]
)
def test_a_plugin_manifest_loads_no_heavy_module(plugin: str) -> None:
    pytest.importorskip(plugin, reason="this environment installs core alone")
    loaded = _import(f"{plugin}.plugin")
    assert loaded["heavy"] == []
