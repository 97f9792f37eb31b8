"""Inputs of a measured call: tensors at a model's sizes, made where they are used, in as many sets as are needed.

Test cases look for faults at borders; a measured call wants what a decode step sees: full rows, valid slots in random
order, drafts of which some are right. Most arguments follow from the contract's shapes and the site's sizes; what a
size alone does not say (pages, slots, lengths, ids) is filled in by the maker of the operator.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from dspark_ops._lazy import torch
from dspark_ops.contracts.contract import REQUIRED, Argument, Contract, Site
from dspark_ops.contracts.values import evaluate
from dspark_ops.errors import EvidenceError

if TYPE_CHECKING:
    from torch import Generator, Tensor

__all__ = ["Place", "bench_inputs"]

#: Positions of a rotary table, and requests of at most this many tokens.
POSITIONS: Final = 8192


@dataclass(frozen=True, slots=True)
class Place:
    """Where and for what inputs are made.

    Attributes:
        contract: the operator.
        site: the place of the model, with its sizes.
        rows: size of the contract's rows axis.
        generator: source of all draws; its device is where tensors are made.
    """

    contract: Contract
    site: Site
    rows: int
    generator: Generator

    @property
    def device(self) -> Any:
        """The torch device of the tensors."""
        return self.generator.device

    @property
    def axes(self) -> dict[str, int]:
        """Sizes of all known axes, the rows among them."""
        return {**self.site.axes, self.contract.rows: self.rows}

    def axis(self, name: str) -> int:
        """Return the size of an axis.

        Raises:
            EvidenceError: neither the site nor the rows state it.
        """
        if name not in self.axes:
            raise EvidenceError(f"{self.contract.name} at {self.site.name}: no size is stated for the axis {name}")
        return self.axes[name]

    def dtype(self, name: str) -> str:
        """Return the dtype of an argument at this site."""
        argument = next(item for item in self.contract.arguments if item.name == name)
        return self.site.dtypes.get(name, argument.dtypes[0])

    def normal(self, *shape: int, scale: float = 1.0, dtype: str = "float32") -> Tensor:
        """Return normal values of a float dtype."""
        drawn = torch.randn(shape, generator=self.generator, device=self.device)
        return (drawn * scale).to(getattr(torch, dtype))

    def uniform(self, *shape: int) -> Tensor:
        """Return float32 values from 0 to 1."""
        return torch.rand(shape, generator=self.generator, device=self.device)

    def integers(self, low: int, high: int, *shape: int, dtype: str = "int64") -> Tensor:
        """Return integers from `low` to `high` - 1."""
        drawn = torch.randint(low, high, shape, generator=self.generator, device=self.device)
        return drawn.to(getattr(torch, dtype))

    def distinct(self, count: int, below: int, rows: int | None = None, dtype: str = "int32") -> Tensor:
        """Return `count` different integers below `below` in random order, or `rows` rows of such."""
        keys = torch.rand((rows or 1, below), generator=self.generator, device=self.device)
        chosen = keys.argsort(-1)[:, :count].to(getattr(torch, dtype)).contiguous()
        return chosen if rows is not None else chosen[0]

    def full(self, value: int, *shape: int, dtype: str = "int32") -> Tensor:
        """Return integers that are all `value`."""
        return torch.full(shape, value, dtype=getattr(torch, dtype), device=self.device)

    def positions(self, dtype: str = "int64") -> Tensor:
        """Return a random position of the rotary table for each row."""
        return self.integers(0, POSITIONS, self.rows, dtype=dtype)


Maker = Callable[[Place], Mapping[str, Any]]


def bench_inputs(place: Place) -> dict[str, Any]:
    """Return every parameter of one measured call by name, tensors on the device of the place's generator.

    Raises:
        EvidenceError: an argument's size follows neither from the site nor from a maker: the operator needs one in
            ``bench/inputs_*.py``.
    """
    contract, site = place.contract, place.site
    own = dict(_makers().get(contract.name, _nothing)(place))
    inputs: dict[str, Any] = {}
    for parameter in contract.parameters:
        name = parameter.name
        if name in own:
            inputs[name] = own[name]
        elif isinstance(parameter, Argument):
            inputs[name] = None if parameter.optional else _tensor(place, parameter)
        elif name in site.options:
            inputs[name] = site.options[name]
        elif parameter.default is not REQUIRED:
            inputs[name] = parameter.default
        else:
            raise EvidenceError(
                f"{contract.name}: no value for the option {name}: add one to its maker of bench inputs"
            )
    return inputs


def rotary_table(place: Place, width: int) -> Tensor:
    """Return a table [`POSITIONS`, `width`] float32 of interleaved cosines and sines."""
    angle = place.uniform(POSITIONS, width // 2) * 6.2831853
    return torch.stack([angle.cos(), angle.sin()], -1).flatten(1)


def _tensor(place: Place, argument: Argument) -> Tensor:
    """Return an argument of which the contract says enough."""
    if argument.name == "freqs":
        return rotary_table(place, place.axis("P"))
    if argument.name == "positions" and argument.shape == (place.contract.rows,):
        return place.positions(place.dtype("positions"))
    try:
        sizes = [int(evaluate(entry, place.axes)) for entry in argument.shape]
    except (KeyError, SyntaxError, ValueError) as error:
        raise EvidenceError(
            f"{place.contract.name}: argument {argument.name} {list(argument.shape)} has a size that the site "
            f"{place.site.name} does not state: add it to the operator's maker of bench inputs"
        ) from error
    dtype = place.dtype(argument.name)
    if dtype in ("float32", "bfloat16", "float16", "float64"):
        return place.normal(*sizes, dtype=dtype)
    if dtype in ("int32", "int64"):
        return place.integers(0, place.axes.get("V", 1024), *sizes, dtype=dtype)
    raise EvidenceError(
        f"{place.contract.name}: no rule makes the {dtype} argument {argument.name}: add it to its maker"
    )


def _nothing(place: Place) -> dict[str, Any]:
    return {}


@cache
def _makers() -> dict[str, Maker]:
    from dspark_ops.bench import inputs_attention, inputs_dense, inputs_select, inputs_tokens

    return inputs_attention.MAKERS | inputs_dense.MAKERS | inputs_select.MAKERS | inputs_tokens.MAKERS
