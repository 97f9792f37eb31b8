"""Binding: chosen targets only, signatures to the letter, prepared, frozen, and nothing between caller and kernel."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any

import pytest

from dspark_ops import Plan
from dspark_ops.api import RankClass, axis
from dspark_ops.errors import BindingError, UnplannedRowsError
from dspark_ops.suggest import nearest


def planned(fakes: Any, *kernels: Any, **given: Any) -> Any:
    """A plan that can be bound here: made-up kernels accept any device, the CPU included."""
    return fakes.plan(*kernels, **{"device": fakes.cpu, **given})


def kernel_function(name: str) -> Any:
    def function(x: Any, top: int = 1) -> Any:
        return (name, x, top)

    return function


@pytest.fixture
def few_and_many(fakes: Any) -> Plan:
    """Rows 1 to 8 go to `few`, 9 to 64 to `many`, at both sites."""
    fakes.function("few", kernel_function("few"))
    fakes.function("many", kernel_function("many"))
    few = fakes.kernel(variant="few", rank=RankClass.FUSED, region=[axis("R").at_most(8)])
    plan: Plan = planned(fakes, few, fakes.kernel(variant="many"))
    return plan


def test_one_kernel_for_every_bucket_is_bound_as_the_function_itself(fakes: Any) -> None:
    function = fakes.function("one", kernel_function("one"))
    ops = fakes.bind(planned(fakes, fakes.kernel()))
    assert ops.pick is function
    assert ops.at(rows=6, site="draft").pick is function


def test_references_are_bound_like_kernels(fakes: Any) -> None:
    ops = fakes.bind(planned(fakes))
    assert ops.pick is fakes.contracts["pick"].reference


def test_kernels_that_differ_by_rows_are_picked_by_the_argument_s_row_count(fakes: Any, few_and_many: Plan) -> None:
    ops = fakes.bind(few_and_many)
    for rows in range(1, 65):
        x = fakes.tensor(rows, 4096)
        assert ops.pick(x, top=3) == ("few" if rows <= 8 else "many", x, 3)
        assert ops.pick(x)[2] == 1


def test_a_view_for_a_row_count_gives_the_function_itself(fakes: Any, few_and_many: Plan) -> None:
    ops = fakes.bind(few_and_many)
    module = sys.modules["fake_kernels"]
    assert ops.at(rows=8).pick is module.few
    assert ops.at(rows=9, site="verify").pick is module.many


def test_row_counts_that_are_not_planned_are_an_error(fakes: Any) -> None:
    for name in ("few", "many"):
        fakes.function(name, kernel_function(name))
    few = fakes.kernel(variant="few", rank=RankClass.FUSED, region=[axis("R").at_most(8)])
    ops = fakes.bind(planned(fakes, few, fakes.kernel(variant="many"), rows=[4, 6, 8, 16]))
    for rows in (0, 5, 17, 10**9):
        with pytest.raises(UnplannedRowsError, match=rf"pick was called with {rows} rows, planned are 4-8/2,16"):
            ops.pick(fakes.tensor(rows, 4096))
    with pytest.raises(UnplannedRowsError, match="5 rows are not planned, planned are 4-8/2,16"):
        ops.at(rows=5)


def test_an_index_error_of_a_kernel_is_its_own(fakes: Any) -> None:
    def raises(x: Any, top: int = 1) -> Any:
        return [][top]

    fakes.function("few", raises)
    fakes.function("many", kernel_function("many"))
    few = fakes.kernel(variant="few", rank=RankClass.FUSED, region=[axis("R").at_most(8)])
    ops = fakes.bind(planned(fakes, few, fakes.kernel(variant="many")))
    with pytest.raises(IndexError, match="list index out of range"):
        ops.pick(fakes.tensor(1, 4096))


def test_sites_with_different_kernels_have_to_be_asked_for(fakes: Any) -> None:
    fakes.function("wide", kernel_function("wide"))
    ops = fakes.bind(planned(fakes, fakes.kernel(variant="wide", region=[axis("V").at_least(4096)])))
    message = (
        r"pick is bound differently at its sites \(verify: plug/pick/wide for rows 1-64; "
        r"draft: core/pick/reference for rows 1-64\): ask for one with  ops.at\(site=...\).pick"
    )
    for view in (ops, ops.at(rows=6)):
        with pytest.raises(BindingError, match=message):
            view.pick  # noqa: B018 - reading it is the point
    assert ops.at(site="verify").pick is sys.modules["fake_kernels"].wide
    assert ops.at(site="draft").pick is fakes.contracts["pick"].reference


def test_a_site_that_does_not_exist_and_an_operator_without_it_are_told_apart(fakes: Any) -> None:
    ops = fakes.bind(planned(fakes, operators=None))
    with pytest.raises(BindingError, match=r"no operator is called at site 'draf'.*did you mean 'draft'"):
        ops.at(site="draf")
    with pytest.raises(BindingError, match="tidy is not called at site 'draft': its sites are verify"):
        ops.at(site="draft").tidy  # noqa: B018


def test_a_name_that_is_no_operator_is_an_attribute_error_with_python_s_suggestion(fakes: Any) -> None:
    ops = fakes.bind(planned(fakes))
    with pytest.raises(AttributeError, match="'BoundOps' object has no attribute 'pikc'") as caught:
        ops.pikc  # noqa: B018
    # What the interpreter suggests when it prints the traceback comes from these two.
    assert caught.value.obj is ops
    assert nearest("pikc", dir(ops)) == "pick"
    assert not hasattr(ops, "pikc")
    assert list(ops) == ["pick"]


def test_bound_operators_are_frozen(fakes: Any) -> None:
    ops = fakes.bind(planned(fakes))
    for view in (ops, ops.at(rows=6)):
        for change in (
            lambda v: setattr(v, "pick", print),
            lambda v: setattr(v, "new", 1),
            lambda v: delattr(v, "pick"),
        ):
            with pytest.raises(BindingError, match="frozen"):
                change(view)
        assert not hasattr(view, "__dict__")
    assert ops.pick is fakes.contracts["pick"].reference


def test_only_what_was_chosen_is_imported(fakes: Any) -> None:
    fakes.function("one", kernel_function("one"))
    refused = fakes.kernel(variant="refused", target="no_such_module:f", region=[axis("R").at_least(1000)])
    standby = fakes.kernel(variant="two", target="no_such_module:f")
    ops = fakes.bind(planned(fakes, fakes.kernel(rank=RankClass.FUSED), refused, standby))
    assert ops.pick.__name__ == "function"


def test_a_target_that_does_not_import_is_an_error_with_its_cause_and_a_way_out(fakes: Any) -> None:
    plan = planned(fakes, fakes.kernel(target="no_such_module:f"))
    with pytest.raises(BindingError) as caught:
        fakes.bind(plan)
    assert str(caught.value) == (
        "plug/pick/one: cannot import no_such_module:f: ModuleNotFoundError: No module named 'no_such_module'; "
        'repair its plugin, or refuse it with  ops.pick.deny = ["plug/pick/one"]  and plan again'
    )
    assert isinstance(caught.value.__cause__, ModuleNotFoundError)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("def f(x, top=2): ...", "parameter top has the default 2, wanted 1"),
        ("def f(x, top): ...", "parameter top has the default none at all, wanted 1"),
        ("def f(x, top=True): ...", "parameter top has the default True, wanted 1"),
        ("def f(top=1, x=None): ...", "parameter 1 is named 'top', wanted 'x'"),
        ("def f(x): ...", r"parameter 2 \(top\) is missing"),
        ("def f(x, top=1, out=None): ...", "parameter out is none of the contract's"),
        ("def f(x, *, top=1): ...", "parameter top is keyword-only, wanted positional or keyword"),
        ("def f(*args, **kwargs): ...", "parameter 1 is named 'args', wanted 'x'"),
        ("f = min", r"its signature cannot be read|parameter 1"),
        ("f = 3", "target fake_kernels:one is a int, wanted a callable"),
    ],
)
def test_a_signature_that_is_not_the_contract_s_is_refused(fakes: Any, source: str, message: str) -> None:
    namespace: dict[str, Any] = {}
    exec(source, namespace)
    fakes.function("one", namespace["f"])
    with pytest.raises(BindingError, match=message):
        fakes.bind(planned(fakes, fakes.kernel()))


def test_a_plan_for_another_version_of_a_contract_is_refused(fakes: Any) -> None:
    newer = {**fakes.contracts, "pick": replace(fakes.contracts["pick"], version=2)}
    with pytest.raises(BindingError, match="the plan is for version 1 of its contract, this is version 2: plan again"):
        fakes.bind(planned(fakes), contracts=newer)


def test_prepare_is_called_once_per_site_with_the_rows_that_the_kernel_serves(fakes: Any) -> None:
    calls: list[tuple[Any, ...]] = []
    fakes.function("few", kernel_function("few"))
    fakes.function(
        "prepare", lambda device, problem, rows: calls.append((device, problem.site, problem.axes["V"], rows))
    )
    fakes.bind(
        planned(fakes, fakes.kernel(variant="few", region=[axis("R").at_most(3)], prepare="fake_kernels:prepare"))
    )
    assert calls == [(fakes.cpu, "verify", 4096, (1, 2, 3)), (fakes.cpu, "draft", 64, (1, 2, 3))]


def test_what_a_preparation_returns_is_bound_at_its_site_and_none_keeps_the_target(fakes: Any) -> None:
    fakes.function("one", kernel_function("one"))
    own = kernel_function("prepared for verify")
    fakes.function("prepare", lambda device, problem, rows: own if problem.site == "verify" else None)
    ops = fakes.bind(planned(fakes, fakes.kernel(prepare="fake_kernels:prepare")))
    assert ops.at(site="verify", rows=2).pick is own
    assert ops.at(site="draft", rows=2).pick(fakes.tensor(2, 64))[0] == "one"


@pytest.mark.parametrize(
    ("returned", "text"),
    [(7, "returned a int: wanted the callable to bind, or None"), (lambda y: y, "parameter 1 is named 'y'")],
    ids=["a number", "another signature"],
)
def test_a_preparation_must_return_the_operator(fakes: Any, returned: Any, text: str) -> None:
    fakes.function("one", kernel_function("one"))
    fakes.function("prepare", lambda device, problem, rows: returned)
    with pytest.raises(BindingError, match=text):
        fakes.bind(planned(fakes, fakes.kernel(prepare="fake_kernels:prepare")))


def test_a_plan_for_a_simulated_accelerator_is_for_reading_not_for_calling(fakes: Any) -> None:
    with pytest.raises(BindingError, match=r"the plan is for a simulated sm_103 .*: plan for dspark_ops.probe\(\)"):
        fakes.bind(planned(fakes, device=fakes.b300))


def test_a_preparation_that_raises_is_an_error_that_names_kernel_site_and_cause(fakes: Any) -> None:
    def prepare(device: Any, problem: Any, rows: Any) -> None:
        raise RuntimeError("out of shared memory")

    fakes.function("one", kernel_function("one"))
    fakes.function("prepare", prepare)
    with pytest.raises(
        BindingError, match=r"plug/pick/one: .* failed for site verify on cpu: RuntimeError: out of shared"
    ):
        fakes.bind(planned(fakes, fakes.kernel(prepare="fake_kernels:prepare")))


def test_a_decomposition_calls_its_bound_parts(fakes: Any) -> None:
    fakes.function("one", kernel_function("one"))
    plan = planned(fakes, fakes.kernel(region=[axis("R").at_most(60)]), rows=range(1, 13), operators=("pick_and_tidy",))
    ops = fakes.bind(plan)
    few, many = fakes.tensor(10, 4096), fakes.tensor(11, 4096)
    assert ops.pick_and_tidy(few) == (("one", few, 3), ("core tidy", few))
    assert ops.pick_and_tidy(y=many) == (("core pick", many, 3), ("core tidy", many))
    assert ops.at(rows=10).pick_and_tidy(few) == ops.pick_and_tidy(few)


def test_parts_are_prepared_for_their_own_row_counts(fakes: Any) -> None:
    calls: list[Any] = []
    fakes.function("one", kernel_function("one"))
    fakes.function("prepare", lambda device, problem, rows: calls.append((problem.operator, rows)))
    kernel = fakes.kernel(prepare="fake_kernels:prepare")
    fakes.bind(planned(fakes, kernel, rows=[1, 2], operators=("pick_and_tidy",)))
    assert calls == [("pick", (6, 12))]


def test_a_plan_read_back_from_json_binds_to_the_same_functions(fakes: Any, few_and_many: Plan) -> None:
    again = Plan.from_json(few_and_many.to_json())
    assert fakes.bind(again).at(rows=3).pick is fakes.bind(few_and_many).at(rows=3).pick
    assert fakes.bind(again).plan == few_and_many
