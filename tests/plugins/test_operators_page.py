"""docs/operators.md is what the contracts and the installed plugins say, and stands by itself."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from dspark_ops import contracts

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "operators.md").read_text(encoding="utf-8")


def test_the_page_of_operators_is_up_to_date() -> None:
    command = [sys.executable, ROOT / "docs" / "build_operators.py", "--check"]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0, f"run  python docs/build_operators.py\n{result.stderr}"


def test_every_operator_has_a_section_and_a_link_to_it_and_nothing_else_is_linked() -> None:
    sections = re.findall(r"^## (\w+)$", PAGE, flags=re.MULTILINE)
    assert sections == sorted(contracts.names())
    assert re.findall(r"\]\(([^)]*)\)", PAGE) == [f"#{name}" for name in sections]


def test_every_row_of_every_table_has_as_many_cells_as_its_table_has_columns() -> None:
    tables = re.findall(r"(?:^\|.*\n)+", PAGE, flags=re.MULTILINE)
    assert len(tables) > 3 * len(contracts.names())
    for table in tables:
        counts = {len(re.split(r"(?<!\\)\|", line)) for line in table.splitlines()}
        assert len(counts) == 1, table
