"""Numbers in Triton's interpreter, in a process of its own: the family ``decode``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest


def test_every_interpreted_file_is_of_one_family(families: Mapping[str, tuple[str, ...]]) -> None:
    named = sorted(f"test_{name}.py" for names in families.values() for name in names)
    assert named == sorted(file.name for file in (Path(__file__).parent / "interpreted").glob("test_*.py"))


@pytest.mark.slow
def test_the_interpreted_tests_of_the_family_pass(pass_interpreted: Callable[[str], None]) -> None:
    pass_interpreted("decode")
