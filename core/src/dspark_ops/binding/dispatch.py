"""Row dispatch: a function with an operator's exact signature that picks a kernel by its argument's row count."""

from __future__ import annotations

import linecache
from collections.abc import Callable, Mapping
from typing import Any

from dspark_ops._lazy import torch
from dspark_ops.contracts.contract import REQUIRED, Contract
from dspark_ops.errors import MissingDependencyError, UnplannedRowsError

# `*args` alone would cost 90 ns per call, so the parameters are written out. The call stands inside the `try`, which
# costs 10 ns less than a look-up of its own: an IndexError at a row count that the table has is the kernel's.
_SOURCE = """\
def {name}({parameters}):
    try:
        return _table[{size}]({arguments})
    except IndexError:
        if {size} < {end}:
            raise
        raise _unplanned({size}) from None
"""


def row_dispatch(contract: Contract, by_rows: Mapping[int, Callable[..., Any]], planned: str) -> Callable[..., Any]:
    """Return a function with the contract's signature that calls ``by_rows[count]`` for the row count of its argument.

    One size is read and one table indexed per call, and nothing is allocated that lives on.

    Args:
        contract: the operator.
        by_rows: callable for each planned row count.
        planned: the planned row counts as a text, for the error.

    The function raises `UnplannedRowsError` for a row count that is not planned.
    """
    index, dimension = contract.rows_from
    length = _tensor_length() if dimension == 0 else None
    names = [parameter.name for parameter in contract.parameters]
    defaults = {f"_default_{parameter.name}": parameter.default for parameter in contract.parameters}
    source = _SOURCE.format(
        name=contract.name,
        parameters=", ".join(
            name if defaults[f"_default_{name}"] is REQUIRED else f"{name}=_default_{name}" for name in names
        ),
        size=f"_length({names[index]})" if length else f"{names[index]}.shape[{dimension}]",
        arguments=", ".join(names),
        end=max(by_rows) + 1,
    )

    def unplanned(count: int) -> UnplannedRowsError:
        return unplanned_rows(contract.name, count, planned)

    def refuse(*arguments: Any) -> Any:
        raise unplanned(arguments[index].shape[dimension])

    namespace: dict[str, Any] = {
        "_table": tuple(by_rows.get(count, refuse) for count in range(max(by_rows) + 1)),
        "_unplanned": unplanned,
        "_length": length,
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


def _tensor_length() -> Callable[[Any], int] | None:
    """Return what reads a tensor's first size fastest, or None without torch.

    ``x.shape[0]`` builds a tuple of all sizes, which takes longer than the rest of a dispatched call, and ``len(x)``
    goes through a Python function of `torch.Tensor`. The C function below that one gives the same.
    """
    try:
        base: Any = torch.Tensor.__base__
    except MissingDependencyError:
        return None
    length: Callable[[Any], int] = base.__len__
    return length


def unplanned_rows(operator: str, count: int, planned: str) -> UnplannedRowsError:
    """Return the error for a row count that an operator has no plan for."""
    return UnplannedRowsError(
        f"{operator} was called with {count} rows, planned are {planned}: plan again with rows that include {count}"
    )
