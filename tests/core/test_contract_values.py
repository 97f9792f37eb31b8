"""What holds for every contract: a signature that the reference has, sites that name its axes, parts that exist."""

from __future__ import annotations

import inspect

import pytest

from dspark_ops import contracts
from dspark_ops.contracts import Argument, Contract, Option
from dspark_ops.errors import ModelError, UnknownOperatorError

SHAPES = contracts.model_shapes("deepseek-v4.1-flash/tp4")
ALL = [pytest.param(contract, id=name) for name, contract in contracts.all_contracts().items()]


@pytest.mark.parametrize("contract", ALL)
def test_the_reference_has_the_signature_of_the_contract(contract: Contract) -> None:
    reference = inspect.signature(contract.reference)
    wanted = contract.signature()
    assert list(reference.parameters) == list(wanted.parameters)
    for name, parameter in wanted.parameters.items():
        assert reference.parameters[name].default == parameter.default, name


@pytest.mark.parametrize("contract", ALL)
def test_every_site_states_a_size_for_each_static_axis_of_the_required_arguments(contract: Contract) -> None:
    needed = {
        symbol
        for argument in contract.arguments
        if not argument.optional
        for symbol in argument.shape
        if isinstance(symbol, str) and symbol.isidentifier() and symbol != contract.rows
    }
    sites = contract.sites(SHAPES)
    assert sites, "an operator of V4.1-Flash without a place in it"
    for site in sites:
        assert site.name in ("verify", "draft", "commit")
        assert needed <= set(site.axes), f"{contract.name} at {site.name} lacks {needed - set(site.axes)}"
        arguments = {argument.name for argument in contract.arguments}
        assert set(site.dtypes) | set(site.strides) | set(site.layouts) <= arguments
        assert set(site.options) <= {option.name for option in contract.options}
        assert set(site.semantics) <= {semantic.name for semantic in contract.semantics}


@pytest.mark.parametrize("contract", ALL)
def test_dtypes_strides_and_defaults_are_of_the_admitted_kinds(contract: Contract) -> None:
    for parameter in contract.parameters:
        if isinstance(parameter, Argument):
            assert parameter.dtypes and parameter.strides in ("contiguous", "unit_last", "any"), parameter.name
        else:
            assert isinstance(parameter, Option)
            assert parameter.type in ("int", "float", "bool", "str"), parameter.name
    for semantic in contract.semantics:
        assert semantic.default in semantic.choices
    assert contract.source and contract.summary.endswith(".")


@pytest.mark.parametrize("contract", ALL)
def test_a_fused_operator_is_made_of_known_parts(contract: Contract) -> None:
    if contract.decomposition is None:
        return
    assert set(contract.decomposition.parts) <= set(contracts.names())
    parameters = list(inspect.signature(contract.decomposition.compose).parameters)
    assert parameters[1:] == [parameter.name for parameter in contract.parameters]


def test_an_unknown_operator_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(UnknownOperatorError, match="did you mean 'argmax_rows'"):
        contracts.get("argmax_row")


def test_a_model_name_gives_the_sizes_of_one_rank() -> None:
    assert (SHAPES.heads, SHAPES.o_groups, SHAPES.vocab, SHAPES.rows_per_request) == (16, 2, 129280, 6)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("deepseek-v4.1-flsh", "did you mean 'deepseek-v4.1-flash'"),
        ("deepseek-v4.1-flash/4", "cannot read '4'"),
        ("deepseek-v4.1-flash/tp3", "cannot be split over 3 ranks"),
    ],
)
def test_a_model_name_that_cannot_be_used_is_refused_with_the_reason(name: str, text: str) -> None:
    with pytest.raises(ModelError, match=text):
        contracts.model_shapes(name)
