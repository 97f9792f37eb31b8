"""BoundOps: the frozen operators of a plan."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NoReturn, TypeVar

from dspark_ops.binding.checked import checked, device_type
from dspark_ops.binding.dispatch import row_dispatch
from dspark_ops.binding.regions import Regions, check_region
from dspark_ops.contracts.contract import Contract
from dspark_ops.errors import BindingError, UnplannedRowsError
from dspark_ops.selection.plan import Plan
from dspark_ops.selection.rows import rows_of, rows_text
from dspark_ops.suggest import did_you_mean

Function = Callable[..., Any]

#: Callables of one operator: by site, then by row count.
Table = Mapping[str, Mapping[int, Function]]


class OpsView:
    """Operators as attributes, frozen: what ``ops.at(...)`` gives.

    Reading an operator that has no single callable here raises `BindingError`; the text says how to ask. A name that is
    no operator raises `AttributeError`, to which Python adds the nearest name. (A ``__getattr__`` of our own would word
    that better, and slow down every read of every operator.)
    """

    __slots__ = ("_names",)
    _names: tuple[str, ...]

    def __iter__(self) -> Iterator[str]:
        """Yield the names of the operators."""
        return iter(self._names)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *self})

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise BindingError(f"cannot set {name!r}: bound operators are frozen; change the configuration and plan again")

    def __delattr__(self, name: str) -> NoReturn:
        raise BindingError(
            f"cannot delete {name!r}: bound operators are frozen; change the configuration and plan again"
        )

    def __reduce__(self) -> NoReturn:
        raise BindingError(
            "bound operators hold kernels of this process and cannot be pickled or copied: send the plan, and bind it "
            "in the other process"
        )

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {len([*self])} operators>"


_View = TypeVar("_View", bound=OpsView)


class BoundOps(OpsView):
    """The operators of a plan, ready to call; made by `dspark_ops.binding.bind`.

    ``ops.argmax_rows`` is the kernel's own function where one kernel serves every row count at every site. Where
    kernels differ by row count it is a function that looks at its argument's shape, and raises `UnplannedRowsError` for
    a count that is not planned. Where sites differ, ask through `at`.

    Bound with ``check=True``, every operator is a function that checks its arguments, against its contract and against
    the region of the kernel that was chosen, and raises `ContractError`.
    """

    __slots__ = ("_check", "_contracts", "_plan", "_tables")
    _plan: Plan
    _tables: Mapping[str, Table]
    _contracts: Mapping[str, Contract]
    _check: Regions | None

    @classmethod
    def freeze(
        cls, plan: Plan, tables: Mapping[str, Table], contracts: Mapping[str, Contract], check: Regions | None = None
    ) -> BoundOps:
        """Return the frozen operators of a plan from their callables by operator, site and row count.

        With `check`, the regions of the chosen kernels, every operator checks its arguments before it calls one.
        """
        functions, missing = _select(plan, tables, contracts, check, site=None, rows=None)
        return _frozen(cls, functions, missing, _plan=plan, _tables=tables, _contracts=contracts, _check=check)

    @property
    def plan(self) -> Plan:
        """The plan that these operators follow."""
        return self._plan

    def at(self, *, rows: int | None = None, site: str | None = None) -> OpsView:
        """Return the operators for one row count, for one site, or for both.

        With `rows`, every attribute is the kernel's own function: a caller that keeps it, as a captured graph does,
        pays nothing per call. It does not look at the row count again. `rows` counts the operator's own rows axis.

        Args:
            rows: a planned row count.
            site: a place of the model, such as ``verify`` or ``draft``.

        Raises:
            UnplannedRowsError: `rows` is not planned.
            BindingError: no operator has this site.
        """
        sites = list(dict.fromkeys(name for table in self._tables.values() for name in table))
        if site is not None and site not in sites:
            raise BindingError(
                f"no operator is called at site {site!r}: the plan has {', '.join(sites)}{did_you_mean(site, sites)}"
            )
        if rows is not None and rows not in rows_of(self._plan.rows):
            raise UnplannedRowsError(
                f"{rows} rows are not planned, planned are {self._plan.rows}: plan again with rows that include {rows}"
            )
        functions, missing = _select(self._plan, self._tables, self._contracts, self._check, site=site, rows=rows)
        return _frozen(OpsView, functions, missing)


def _frozen(base: type[_View], functions: Mapping[str, Function], missing: Mapping[str, str], **values: Any) -> _View:
    """Return an instance of a new class with one slot per operator: reads are as fast as can be, and writes raise."""
    refusals = {name: _refusal(text) for name, text in missing.items()}
    body = {"__slots__": tuple(functions), "__module__": base.__module__, "__doc__": base.__doc__, **refusals}
    view: _View = object.__new__(type(base.__name__, (base,), body))
    for name, value in {**functions, **values, "_names": tuple(sorted({*functions, *missing}))}.items():
        object.__setattr__(view, name, value)
    return view


def _refusal(text: str) -> property:
    """Return the attribute of an operator that has no single callable."""

    def refuse(view: OpsView) -> NoReturn:
        raise BindingError(text)

    return property(refuse)


def _select(
    plan: Plan,
    tables: Mapping[str, Table],
    contracts: Mapping[str, Contract],
    check: Regions | None,
    *,
    site: str | None,
    rows: int | None,
) -> tuple[dict[str, Function], dict[str, str]]:
    """Return one callable per operator, and for operators that have none here the text that says why."""
    functions: dict[str, Function] = {}
    missing: dict[str, str] = {}
    for name, table in tables.items():
        if site is not None and site not in table:
            missing[name] = f"{name} is not called at site {site!r}: its sites are {', '.join(table)}"
            continue
        here = [table[site]] if site is not None else [*table.values()]
        if rows is not None:
            here = [{rows: by_rows[rows]} for by_rows in here]
        if any(by_rows != here[0] for by_rows in here):
            missing[name] = _differs(plan, name)
            continue
        if check is not None:
            functions[name] = _checked(plan, contracts[name], site or next(iter(table)), here[0], check)
            continue
        distinct = list(dict.fromkeys(here[0].values()))
        functions[name] = distinct[0] if len(distinct) == 1 else row_dispatch(contracts[name], here[0], plan.rows)
    return functions, missing


def _checked(plan: Plan, contract: Contract, site: str, by_rows: Mapping[int, Function], regions: Regions) -> Function:
    selection = next(item for item in plan.of(contract.name) if item.site == site)
    kernels = {count: choice.kernel.id for count, choice in selection.by_rows.items() if count in by_rows}
    return checked(
        contract,
        by_rows,
        kernels,
        planned=rows_text([*kernels]),
        device_type=device_type(plan.device),
        region=lambda kernel, arguments: check_region(regions.get(kernel, ()), contract, arguments, selection.problem),
    )


def _differs(plan: Plan, operator: str) -> str:
    served = "; ".join(
        f"{selection.site}: {', '.join(f'{choice.kernel.id} for rows {choice.rows}' for choice in selection.choices)}"
        for selection in plan.of(operator)
    )
    return f"{operator} is bound differently at its sites ({served}): ask for one with  ops.at(site=...).{operator}"
