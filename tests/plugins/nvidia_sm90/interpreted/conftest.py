"""Tests of kernels in Triton's interpreter. It is chosen when a kernel is defined, so they run in their own process:
`test_interpreted.py` beside this folder starts it, and elsewhere nothing is collected here."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

collect_ignore_glob = [] if os.environ.get("TRITON_INTERPRET") == "1" else ["test_*.py"]


@pytest.fixture(autouse=True, scope="session")
def proved_interpreter() -> Iterator[None]:
    from dspark_ops.conformance.interpreter import prove, repaired_interpreter

    prove()
    with repaired_interpreter():
        yield
