"""The kernels of the greedy tail against their contracts' cases, and the meeting of the programs of a request."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from triton.runtime.interpreter import InterpretedFunction

from dspark_ops import contracts
from dspark_ops.conformance.numbers import check_numbers
from dspark_ops.contracts import Case, Contract
from dspark_ops.selection.device import Device
from dspark_ops.selection.problem import Problem
from dspark_ops_triton.accept_forced import AcceptForced, accept_forced, prepare_accept_forced
from dspark_ops_triton.accept_greedy import accept_greedy
from dspark_ops_triton.accept_tail import AcceptTail, accept_tail, prepare_accept_tail
from dspark_ops_triton.blocks.arrival import ArrivalState
from dspark_ops_triton.blocks.row_argmax import Tiles

CPU = Device.simulate("cpu")


def _thinned(name: str, every: int) -> Contract:
    """Return a contract with one in `every` of its random cases, and all others."""
    contract = contracts.get(name)

    def cases(scale: str, seed: int) -> Iterator[Case]:
        for index, case in enumerate(contract.cases(scale, seed)):
            if index % every == 0 or not case.name.startswith("one mismatch"):
                yield case

    return replace(contract, cases=cases)


def _problem(name: str) -> Problem:
    contract = contracts.get(name)
    return Problem.at(contract, contract.sites(contracts.model_shapes("deepseek-v4.1-flash/tp4"))[0])


def _bound(tiles: Tiles, units: int = 8) -> AcceptTail:
    return AcceptTail(tiles, units, ArrivalState(0, torch.device("cpu")))


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    seen: list[str] = []
    run = InterpretedFunction.run

    def count(self: Any, *arguments: Any, **options: Any) -> Any:
        seen.append(self.__name__)
        return run(self, *arguments, **options)

    monkeypatch.setattr(InterpretedFunction, "run", count)
    return seen


def _step(requests: int, width: int, vocab: int, seed: int) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(requests * width, vocab, generator=generator).mul(2).round()
    candidates = torch.randint(vocab, (requests, width), generator=generator)
    candidates[:, 1:3] = logits.argmax(-1).view(requests, width)[:, :2]
    return {"candidates": candidates, "logits": logits, "prefix_lens": torch.arange(requests) + 9}


def test_the_greedy_accept_passes_every_case_of_its_contract() -> None:
    assert check_numbers(contracts.get("accept_greedy"), accept_greedy) == []


@pytest.mark.parametrize(
    ("name", "function", "prepare"),
    [("accept_tail", accept_tail, prepare_accept_tail), ("accept_forced", accept_forced, prepare_accept_forced)],
)
def test_a_tail_passes_the_cases_of_its_contract_prepared_or_not(name: str, function: Any, prepare: Any) -> None:
    assert check_numbers(_thinned(name, 7), function) == []
    assert check_numbers(_thinned(name, 11), prepare(CPU, _problem(name), (1, 6)), seed=1) == []


@pytest.mark.parametrize(
    "tiles",
    [Tiles(64, 4, 2), Tiles(64, 4, 100), Tiles(1024, 4, 1)],
    ids=["tiles looped over by few programs", "a program per tile", "a program per row"],
)
def test_the_tail_is_the_same_however_rows_are_split(tiles: Tiles) -> None:
    inputs = _step(3, 6, 1000, 2)
    wanted = contracts.get("accept_tail").reference(**inputs)
    assert all(torch.equal(got, want) for got, want in zip(_bound(tiles)(**inputs), wanted, strict=True))
    assert 2 in wanted[0]


def test_one_bound_tail_serves_steps_of_any_size_and_leaves_its_memory_at_rest(launches: list[str]) -> None:
    bound = _bound(Tiles(64, 4, 8))
    forced = AcceptForced(bound)
    sizes = [(1, 3, 300), (4, 6, 129), (2, 8, 500), (1, 3, 64), (7, 3, 65)]
    for seed, size in enumerate(sizes):
        inputs = _step(*size, seed)
        wanted = contracts.get("accept_tail").reference(**inputs)
        assert all(torch.equal(got, want) for got, want in zip(bound(**inputs), wanted, strict=True))
        drawn = torch.full((size[0],), 2, dtype=torch.int32)
        assert forced(**inputs, accept_lens=drawn)[3].tolist() == drawn.tolist()
    assert launches == ["tail_kernel"] * (2 * len(sizes))
    for words in bound._arrivals._streams.values():
        assert not words.any()


def test_a_given_bonus_needs_no_logits_and_nothing_is_launched_without_requests(launches: list[str]) -> None:
    inputs = _step(2, 6, 128, 0)
    inputs["logits"].fill_(float("nan"))
    drawn, bonus = torch.tensor([1, 3], dtype=torch.int32), torch.tensor([70, 71])
    outputs = accept_forced(**inputs, accept_lens=drawn, bonus=bonus)
    assert outputs[1].tolist() == [70, 71]
    assert outputs[5][1, :3].tolist() == [*inputs["candidates"][1, 1:3].tolist(), 71]
    assert launches == ["forced_kernel"]
    none = {name: value[:0] for name, value in inputs.items()}
    assert accept_tail(**none)[5].shape == (0, 6)
    assert accept_forced(**none, accept_lens=drawn[:0], bonus=bonus[:0])[5].shape == (0, 6)
    assert accept_greedy(none["candidates"], none["candidates"])[0].shape == (0,)
    assert launches == ["forced_kernel"]


def test_the_widest_step_of_the_region_is_right() -> None:
    inputs = _step(2, 64, 40, 3)
    inputs["candidates"][0, 1:] = inputs["logits"].argmax(-1)[:63]
    lens = torch.tensor([64, 0])
    wanted = contracts.get("accept_tail").reference(**inputs, verify_lens=lens)
    assert wanted[0].tolist() == [63, -1]
    got = _bound(Tiles(64, 4, 1))(**inputs, verify_lens=lens)
    assert all(torch.equal(one, other) for one, other in zip(got, wanted, strict=True))


def test_logits_with_columns_apart_are_refused() -> None:
    inputs = _step(2, 6, 128, 0)
    inputs["logits"] = inputs["logits"].t().contiguous().t()
    with pytest.raises(ValueError, match=r"accept_tail: wanted logits with last stride 1 .* got strides \(1, 12\)"):
        accept_tail(**inputs)
