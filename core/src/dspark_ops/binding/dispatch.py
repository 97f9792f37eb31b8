"""Row dispatch: a function with an operator's exact signature that picks a kernel by row count with two look-ups."""

from __future__ import annotations

import linecache
from collections.abc import Callable, Mapping
from typing import Any

from dspark_ops.contracts.contract import REQUIRED, Contract
from dspark_ops.errors import UnplannedRowsError

# `*args` alone would cost 90 ns per call, so the parameters are written out. The look-up is apart from the call: an
# IndexError that a kernel raises is the kernel's.
_SOURCE = """\
def {name}({parameters}):
    try:
        kernel = table[{rows_from}.shape[{dimension}]]
    except IndexError:
        raise unplanned({rows_from}.shape[{dimension}]) from None
    return kernel({arguments})
"""


def row_dispatch(contract: Contract, by_rows: Mapping[int, Callable[..., Any]], planned: str) -> Callable[..., Any]:
    """Return a function with the contract's signature that calls ``by_rows[count]`` for the row count of its argument.

    Two index operations per call, and nothing is allocated that lives on.

    Args:
        contract: the operator.
        by_rows: callable for each planned row count.
        planned: the planned row counts as a text, for the error.

    The function raises `UnplannedRowsError` for a row count that is not planned.
    """
    index, dimension = contract.rows_from
    names = [parameter.name for parameter in contract.parameters]
    defaults = {f"default_{parameter.name}": parameter.default for parameter in contract.parameters}
    source = _SOURCE.format(
        name=contract.name,
        parameters=", ".join(
            name if defaults[f"default_{name}"] is REQUIRED else f"{name}=default_{name}" for name in names
        ),
        rows_from=names[index],
        dimension=dimension,
        arguments=", ".join(names),
    )

    def unplanned(count: int) -> UnplannedRowsError:
        return unplanned_rows(contract.name, count, planned)

    def refuse(*arguments: Any) -> Any:
        raise unplanned(arguments[index].shape[dimension])

    namespace: dict[str, Any] = {
        "table": tuple(by_rows.get(count, refuse) for count in range(max(by_rows) + 1)),
        "unplanned": unplanned,
        **{name: value for name, value in defaults.items() if value is not REQUIRED},
    }
    file = f"<dspark_ops row dispatch of {contract.name}>"
    exec(compile(source, file, "exec"), namespace)
    # So that tracebacks and debuggers show the line.
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    function: Callable[..., Any] = namespace[contract.name]
    function.__module__ = __name__
    function.__doc__ = contract.summary
    return function


def unplanned_rows(operator: str, count: int, planned: str) -> UnplannedRowsError:
    """Return the error for a row count that an operator has no plan for."""
    return UnplannedRowsError(
        f"{operator} was called with {count} rows, planned are {planned}: plan again with rows that include {count}"
    )
