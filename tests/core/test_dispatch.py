"""The generated row dispatch: the contract's signature, two look-ups, nothing allocated."""

from __future__ import annotations

import gc
import inspect
import sys
import traceback
import tracemalloc
from typing import Any

import pytest

from dspark_ops import contracts
from dspark_ops.binding.dispatch import row_dispatch
from dspark_ops.errors import UnplannedRowsError


def _dispatch(contract: Any, rows: range = range(1, 9)) -> tuple[Any, list[tuple[Any, ...]]]:
    calls: list[tuple[Any, ...]] = []
    by_rows = {count: lambda *arguments, count=count: calls.append((count, *arguments)) for count in rows}
    return row_dispatch(contract, by_rows, "1-8"), calls


@pytest.mark.parametrize("name", contracts.names())
def test_every_operator_s_dispatch_has_the_contract_s_signature_and_passes_all_arguments(name: str, fakes: Any) -> None:
    contract = contracts.get(name)
    function, calls = _dispatch(contract)
    wanted = contract.signature()
    assert inspect.signature(function) == wanted
    index, dimension = contract.rows_from
    given = [f"argument {position}" for position in range(len(contract.parameters))]
    given[index] = fakes.tensor(*(5 if item == dimension else 7 for item in range(4)))
    function(*given)
    function(**dict(zip(wanted.parameters, given, strict=True)))
    required = [
        value for value, item in zip(given, wanted.parameters.values(), strict=True) if item.default is item.empty
    ]
    function(*required)
    defaults = [item.default for item in wanted.parameters.values()][len(required) :]
    assert calls == [(5, *given), (5, *given), (5, *required, *defaults)]


def test_an_error_inside_shows_the_generated_line_in_the_traceback(fakes: Any) -> None:
    function = row_dispatch(fakes.contracts["pick"], {1: lambda x, top: 1 / 0, 2: print}, "1-2")
    try:
        function(fakes.tensor(1, 8))
    except ZeroDivisionError:
        text = traceback.format_exc()
    assert "return _table[" in text


def test_an_uncovered_row_count_names_operator_rows_and_plan(fakes: Any) -> None:
    function, calls = _dispatch(fakes.contracts["pick"], range(2, 4))
    for rows in (0, 1, 4, 2**40):
        with pytest.raises(UnplannedRowsError, match=f"pick was called with {rows} rows, planned are 1-8"):
            function(fakes.tensor(rows, 8))
    assert calls == []


def test_a_dispatched_call_allocates_nothing(fakes: Any) -> None:
    def kernel(x: Any, top: int) -> Any:
        return x

    function = row_dispatch(fakes.contracts["pick"], {1: kernel, 6: kernel}, "1,6")
    x = fakes.tensor(6, 8)
    loop = [None] * 1000
    for _ in loop:
        function(x)
    gc.collect()
    before = sys.getallocatedblocks()
    for _ in loop:
        function(x)
    assert sys.getallocatedblocks() - before < 10  # the interpreter's own few; a thousand calls would leave a thousand
    tracemalloc.start()
    try:
        tracemalloc.reset_peak()
        base = tracemalloc.get_traced_memory()[0]
        for _ in loop:
            function(x)
        peak = tracemalloc.get_traced_memory()[1] - base
    finally:
        tracemalloc.stop()
    assert peak < 256  # frames come from the interpreter's own stack; nothing is kept per call
