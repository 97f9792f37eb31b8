"""The checked entry over every contract: its own cases pass, and each argument made wrong is refused by name."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import pytest
import torch

from dspark_ops import contracts
from dspark_ops.binding.checked import checked
from dspark_ops.conformance.compare import compare
from dspark_ops.contracts import Argument, Contract, Option
from dspark_ops.contracts.exactness import bitwise
from dspark_ops.errors import ContractError

ALL = [pytest.param(contract, id=name) for name, contract in contracts.all_contracts().items()]
ROWS = range(4096)
CALLED = "the kernel was called"


def entry(contract: Contract, function: Callable[..., Any]) -> Callable[..., Any]:
    """The checked form of `function`, planned for every row count of the cases."""
    kernels = dict.fromkeys(ROWS, f"plug/{contract.name}/one")
    return checked(contract, dict.fromkeys(ROWS, function), kernels, planned="0-4095", device_type="cpu")


def copies(inputs: Any) -> dict[str, Any]:
    """Copies that a call may write to; spaced rows become dense."""
    return {name: value.clone() if isinstance(value, torch.Tensor) else value for name, value in inputs.items()}


@pytest.mark.parametrize("contract", ALL)
def test_the_cases_of_a_contract_reach_the_kernel_as_they_are(contract: Contract) -> None:
    received: list[tuple[Any, ...]] = []
    call = entry(contract, lambda *arguments: received.append(arguments))
    cases = [*contract.cases("small", 0)]
    for case in cases if len(cases) <= 100 else cases[::3]:  # sweeps over sizes: a third of them has every size
        call(**case.inputs)
        got = dict(zip(contract.signature().parameters, received.pop(), strict=True))
        wanted = {name: parameter.default for name, parameter in contract.signature().parameters.items()}
        assert all(got[name] is value for name, value in {**wanted, **case.inputs}.items()), case.name


@pytest.mark.parametrize("contract", ALL)
def test_a_checked_call_gives_and_writes_what_the_call_gives_and_writes(contract: Contract) -> None:
    for case in islice(contract.cases("small", 1), 3):
        plain, inputs = copies(case.inputs), copies(case.inputs)
        wanted, got = contract.reference(**plain), entry(contract, contract.reference)(**inputs)
        both = zip(*(value if isinstance(value, tuple) else (value,) for value in (got, wanted)), strict=True)
        for one, other in [*both, *((inputs[argument.name], plain.get(argument.name)) for argument in
                                    contract.arguments if argument.written and argument.name in plain)]:  # fmt: skip
            assert compare(one, other, bitwise()) is None, case.name


@pytest.mark.parametrize("contract", ALL)
def test_an_argument_made_wrong_is_refused_by_name_before_anything_is_written(contract: Contract) -> None:
    def kernel(*arguments: Any) -> None:
        raise AssertionError(CALLED)

    call = entry(contract, kernel)
    waiting = {parameter.name for parameter in contract.parameters}
    for case in contract.cases("small", 0):
        inputs = {**{option.name: option.default for option in contract.options}, **copies(case.inputs)}
        for parameter in contract.parameters:
            value = inputs.get(parameter.name)
            if parameter.name not in waiting or (isinstance(value, torch.Tensor) and value.numel() < 2):
                continue
            if value is not None:
                waiting.discard(parameter.name)
            for what, wrong in _wrong(contract, parameter, value):
                before = {name: item.clone() for name, item in inputs.items() if isinstance(item, torch.Tensor)}
                with pytest.raises(ContractError) as caught:
                    call(**{**inputs, parameter.name: wrong})
                text = str(caught.value)
                assert text.startswith(f"{contract.name} (kernel plug/{contract.name}/one): "), (what, text)
                assert parameter.name in text and "wanted" in text and "got" in text, (what, text)
                changed = [name for name, item in before.items() if compare(inputs[name], item, bitwise())]
                assert not changed, (what, changed)
        if not waiting:
            return
    optional = {item.name for item in contract.parameters if isinstance(item, Argument)}
    assert waiting <= optional, f"no case gives {waiting}"


def _wrong(contract: Contract, parameter: Argument | Option, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(parameter, Option):
        yield "another type", object()
        if parameter.type != "bool" and value is not None:
            yield "a flag", True
        if parameter.choices:
            yield "no choice", "no such choice" if parameter.type == "str" else 10**6
        return
    if not parameter.optional:
        yield "nothing", None
    yield "a list", [1, 2]
    if value is None:
        return
    yield "one dimension more", value.unsqueeze(0)
    yield (
        "one dimension less",
        value.reshape(-1) if value.dim() > 1 else value.reshape(()) if value.numel() == 1 else value[0],
    )
    yield "another dtype", torch.zeros(value.shape, dtype=torch.complex64)
    yield "no storage", value.to("meta")
    spaced = torch.stack([value.contiguous()] * 2, -1)[..., 0]
    if parameter.strides != "any" and value.shape[-1] > 1:
        yield "spaced elements", spaced
    rows = torch.cat([value.contiguous()] * 2, -1)[..., : value.shape[-1]]
    if parameter.strides == "contiguous" and not rows.is_contiguous():
        yield "spaced rows", rows
    for dimension, entry_ in enumerate(parameter.shape):
        if isinstance(entry_, int) or _is_shared(contract, parameter, entry_):
            yield f"dimension {dimension} of another size", torch.cat([value.contiguous()] * 2, dimension)
    rule = parameter.values
    if rule is not None:
        limits = torch.iinfo(value.dtype)
        if rule.most is not None:
            yield "values too large", torch.full_like(value, limits.max)
        if rule.least is not None:
            yield "values too small", torch.full_like(value, limits.min)


def _is_shared(contract: Contract, parameter: Argument, entry_: str | int) -> bool:
    """Whether the size occurs in another argument that every call gives."""
    others = (item for item in contract.arguments if item.name != parameter.name and not item.optional)
    return entry_ != "*" and any(entry_ in item.shape for item in others)
