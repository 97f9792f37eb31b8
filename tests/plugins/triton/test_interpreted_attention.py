"""Numbers in Triton's interpreter, in a process of its own: the family ``attention``."""

from __future__ import annotations

from collections.abc import Callable

import pytest


@pytest.mark.slow
def test_the_interpreted_tests_of_the_family_pass(pass_interpreted: Callable[[str], None]) -> None:
    pass_interpreted("attention")
