"""Every kernel against its contract's cases, and argmax_rows over the ways in which a row can be split."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from triton.runtime.interpreter import InterpretedFunction

from dspark_ops import contracts
from dspark_ops.conformance.numbers import check_numbers
from dspark_ops.selection.device import Device
from dspark_ops.selection.problem import Problem
from dspark_ops_triton.accept import accept_finalize, prepare_accept_finalize
from dspark_ops_triton.argmax import TILES, argmax_rows, prepare_argmax_rows
from dspark_ops_triton.blocks.arrival import ArrivalState
from dspark_ops_triton.blocks.row_argmax import COLUMN_LIMIT, RowArgmax, Tiles
from dspark_ops_triton.mhc import mhc_combine_norm, prepare_mhc_combine_norm

KERNELS = {"argmax_rows": argmax_rows, "mhc_combine_norm": mhc_combine_norm, "accept_finalize": accept_finalize}
PREPARE = {
    "argmax_rows": prepare_argmax_rows,
    "mhc_combine_norm": prepare_mhc_combine_norm,
    "accept_finalize": prepare_accept_finalize,
}
CPU = Device.simulate("cpu")


def _bound(tiles: Tiles, units: int = 8) -> RowArgmax:
    return RowArgmax(tiles, units, ArrivalState(0, torch.device("cpu")))


def _prepared(name: str) -> Callable[..., Any]:
    contract = contracts.get(name)
    site = contract.sites(contracts.model_shapes("deepseek-v4.1-flash/tp4"))[0]
    return PREPARE[name](CPU, Problem.at(contract, site), (1, 6))


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    seen: list[str] = []
    run = InterpretedFunction.run

    def count(self: Any, *arguments: Any, **options: Any) -> Any:
        seen.append(self.__name__)
        return run(self, *arguments, **options)

    monkeypatch.setattr(InterpretedFunction, "run", count)
    return seen


@pytest.mark.parametrize("name", KERNELS)
def test_a_kernel_passes_every_case_of_its_contract(name: str) -> None:
    assert check_numbers(contracts.get(name), KERNELS[name]) == []


@pytest.mark.parametrize("name", KERNELS)
def test_a_prepared_kernel_passes_every_case_of_its_contract(name: str) -> None:
    assert check_numbers(contracts.get(name), _prepared(name), seed=1) == []


@pytest.mark.parametrize(
    "tiles",
    [Tiles(256, 4, 2), Tiles(1024, 4, 100), Tiles(8192, 4, 4)],
    ids=["tiles looped over by few programs", "a program per tile", "a program per row"],
)
def test_argmax_is_the_same_however_rows_are_split(tiles: Tiles) -> None:
    assert check_numbers(contracts.get("argmax_rows"), _bound(tiles), seed=4) == []


def test_argmax_of_special_values_is_right_in_a_row_of_the_whole_vocabulary() -> None:
    contract = contracts.get("argmax_rows")
    case = next(case for case in contract.cases("model", 0) if case.name == "the same at the head of a wide row")
    assert case.inputs["x"].shape == (7, 129280)
    assert _bound(Tiles(16384, 8, 4))(**case.inputs).tolist() == [0, 1, 0, 1, 3, 3, 0]


def test_a_tie_between_two_programs_goes_to_the_lower_column() -> None:
    x = torch.zeros(3, 1000)
    x[0, [900, 70]] = 5.0
    x[1, [999, 0]] = float("nan")
    x[2, [64, 63]] = 1.0
    assert _bound(Tiles(64, 4, 8))(x).tolist() == [70, 0, 63]


def test_one_bound_argmax_serves_calls_of_any_size_one_after_the_other(launches: list[str]) -> None:
    bound = _bound(Tiles(64, 4, 8))
    generator = torch.Generator().manual_seed(5)
    sizes = [(1, 300), (7, 129), (2, 5000), (7, 129), (30, 65)]
    for rows, columns in sizes:
        x = torch.randn(rows, columns, generator=generator)
        assert torch.equal(bound(x), x.argmax(-1))
    assert launches == ["row_argmax_kernel"] * len(sizes)
    for words in bound._arrivals._streams.values():
        assert not words.any()


def test_a_bound_argmax_is_one_launch_and_none_for_no_rows(launches: list[str]) -> None:
    bound = _bound(TILES)
    assert bound(torch.randn(6, 9000)).shape == (6,)
    assert bound(torch.empty(0, 9000)).shape == (0,)
    assert launches == ["row_argmax_kernel"]


def test_the_other_kernels_are_one_launch_and_none_for_no_rows(launches: list[str]) -> None:
    for tokens in (2, 0):
        x, pre = torch.randn(tokens, 4 * 64).bfloat16(), torch.rand(tokens, 4)
        assert mhc_combine_norm(x, pre, torch.ones(64).bfloat16()).shape == (tokens, 64)
        lens, ids = torch.zeros(tokens, dtype=torch.int32), torch.zeros(tokens, dtype=torch.int64)
        accept_finalize(lens, ids, lens, torch.zeros(tokens, 5, dtype=torch.int64), ids)
    assert launches == ["combine_norm_kernel", "finalize_kernel"]


@pytest.mark.parametrize("x", [torch.zeros(8, 4).t(), torch.zeros(2, 0)], ids=["columns not adjacent", "no columns"])
def test_argmax_refuses_what_its_region_excludes(x: torch.Tensor) -> None:
    with pytest.raises(ValueError, match=f"wanted last stride 1 and 1 to {COLUMN_LIMIT} columns, got strides"):
        argmax_rows(x)


def test_a_row_of_the_combine_does_not_depend_on_the_other_rows() -> None:
    generator = torch.Generator().manual_seed(6)
    x, pre = torch.randn(6, 4 * 96, generator=generator).bfloat16(), torch.rand(6, 4, generator=generator)
    weight = torch.randn(96, generator=generator).bfloat16()
    together = mhc_combine_norm(x, pre, weight)
    alone = torch.cat([mhc_combine_norm(x[i : i + 1], pre[i : i + 1], weight) for i in range(6)])
    assert torch.equal(together, alone)
