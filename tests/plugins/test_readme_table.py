"""The table of operators in README.md is what the installed plugins give."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_the_table_of_operators_is_up_to_date() -> None:
    result = subprocess.run(
        [sys.executable, ROOT / "docs" / "build_tables.py", "--check"], capture_output=True, text=True
    )
    assert result.returncode == 0, f"run  python docs/build_tables.py\n{result.stderr}"
