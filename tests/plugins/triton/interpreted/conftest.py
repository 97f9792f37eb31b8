"""Tests of kernels in Triton's interpreter. It is chosen when a kernel is defined, so they run in their own process:
`test_interpreted.py` beside this folder starts it, and elsewhere nothing is collected here."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from dspark_ops import contracts
from dspark_ops.contracts import Case, Contract

collect_ignore_glob = [] if os.environ.get("TRITON_INTERPRET") == "1" else ["test_*.py"]


@pytest.fixture(autouse=True, scope="session")
def proved_interpreter() -> Iterator[None]:
    from dspark_ops.conformance.interpreter import prove, repaired_interpreter

    prove()
    with repaired_interpreter():
        yield


@pytest.fixture
def thinned() -> Callable[..., Contract]:
    """Return a function that gives an operator's contract with one in `every` of its cases, and all that it keeps."""

    def few(name: str, every: int, keep: Callable[[Case], bool] = lambda case: False) -> Contract:
        contract = contracts.get(name)

        def cases(scale: str, seed: int) -> Iterator[Case]:
            for index, case in enumerate(contract.cases(scale, seed)):
                # cases come in groups of forms: a step that divides them would always leave out the same ones
                if (index + index // every) % every == 0 or keep(case):
                    yield case

        return replace(contract, cases=cases)

    return few
