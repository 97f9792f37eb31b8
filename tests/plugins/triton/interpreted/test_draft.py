"""The kernels of a draft block against their contracts' cases."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from triton.runtime.interpreter import InterpretedFunction

from dspark_ops import contracts
from dspark_ops.conformance.numbers import check_numbers
from dspark_ops.contracts import Case, Contract
from dspark_ops.selection.device import Device
from dspark_ops.selection.problem import Problem
from dspark_ops_triton.blocks.arrival import ArrivalState
from dspark_ops_triton.blocks.exact_sums import add_product, two_sum
from dspark_ops_triton.confidence import confidence_survival
from dspark_ops_triton.markov import TILES, MarkovBlock, markov_block, prepare_markov_block
from dspark_ops_triton.schedule import prepare_schedule_prefix, schedule_prefix

CPU = Device.simulate("cpu")
MODEL = contracts.model_shapes("deepseek-v4.1-flash/tp4")


def _only(name: str, keep: Callable[[int, Case], bool]) -> Contract:
    contract = contracts.get(name)

    def cases(scale: str, seed: int) -> Iterator[Case]:
        for index, case in enumerate(contract.cases(scale, seed)):
            if keep(index, case):
                yield case

    return replace(contract, cases=cases)


def _vanilla(inputs: Mapping[str, Any]) -> Mapping[str, Any] | None:
    return inputs if inputs.get("kind", "vanilla") == "vanilla" else None


def _problem(name: str) -> Problem:
    contract = contracts.get(name)
    return Problem.at(contract, contract.sites(MODEL)[0])


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    seen: list[str] = []
    run = InterpretedFunction.run

    def count(self: Any, *arguments: Any, **options: Any) -> Any:
        seen.append(self.__name__)
        return run(self, *arguments, **options)

    monkeypatch.setattr(InterpretedFunction, "run", count)
    return seen


@triton.jit
def _sum_kernel(x, y, out, COUNT: tl.constexpr, LANES: tl.constexpr):
    lanes = tl.arange(0, LANES)
    high = tl.zeros((LANES,), tl.float32)
    low = tl.zeros((LANES,), tl.float32)
    for index in range(COUNT):
        high, low = add_product(high, low, tl.load(x + index * LANES + lanes), tl.load(y + index * LANES + lanes))
    total, lost = two_sum(high, low)
    tl.store(out + lanes, total)
    tl.store(out + LANES + lanes, lost)


def test_sums_of_products_keep_twice_the_digits() -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(200, 64, generator=generator) * 1000
    y = torch.randn(200, 64, generator=generator)
    y[100:] = -y[:100]
    x[100:] = x[:100] * (1 + 2.0**-20)  # the sum is a millionth of its terms
    out = torch.empty(2, 64)
    _sum_kernel[(1,)](x, y, out, COUNT=200, LANES=64)
    products = x.double() * y.double()
    terms = products.abs().sum(0)
    assert ((out.double().sum(0) - products.sum(0)).abs() / terms).max() < 1e-13
    assert (((x * y).cumsum(0)[-1].double() - products.sum(0)).abs() / terms).max() > 1e-9


def test_drafts_of_the_vanilla_head_are_right_in_every_case_drawn_ones_too() -> None:
    # wide tiles and few programs: the interpreter's time goes by the number of both
    bound = MarkovBlock(replace(TILES, tokens=256), 1, ArrivalState(0, torch.device("cpu")))
    assert check_numbers(contracts.get("markov_block"), bound, adapt=_vanilla) == []


def test_a_prepared_block_takes_a_launch_per_draft_and_two_where_they_are_drawn(launches: list[str]) -> None:
    bound = prepare_markov_block(CPU, _problem("markov_block"), (1, 6))
    generator = torch.Generator().manual_seed(1)
    for rows in (1, 6):
        base = torch.randn(rows, 3, 200, generator=generator)
        embed, head = (torch.randn(200, 24, generator=generator).bfloat16() for _ in range(2))
        anchor = torch.arange(rows)
        wanted, _ = contracts.get("markov_block").reference(base, anchor, embed, head)
        drafts, probs = bound(base, anchor, embed, head)
        assert torch.equal(drafts, wanted)
        assert probs is None
    assert launches == ["slot_kernel"] * 6
    bound(base, anchor, embed, head, uniforms=torch.rand(6, 3), temperature=torch.ones(6))
    assert launches[6:] == ["slot_kernel", "draw_kernel"] * 3
    assert bound(base[:0], anchor[:0], embed, head)[0].shape == (0, 3)
    assert len(launches) == 12
    for words in bound._arrivals._streams.values():
        assert not words.any()


@pytest.mark.parametrize("rank", [256, 300])
def test_more_rows_than_a_program_holds_and_heads_in_pieces_are_right(rank: int) -> None:
    generator = torch.Generator().manual_seed(2)
    base = torch.randn(37, 2, 90, generator=generator).round()
    embed, head = ((torch.randn(90, rank, generator=generator) * 2).round().bfloat16() / 8 for _ in range(2))
    anchor = torch.randint(90, (37,), generator=generator)
    bound = MarkovBlock(TILES, 8, ArrivalState(0, torch.device("cpu")))
    wanted, _ = contracts.get("markov_block").reference(base, anchor, embed, head)
    assert torch.equal(bound(base, anchor, embed, head)[0], wanted)
    # float32 tables go another way through the same kernel
    wanted, _ = contracts.get("markov_block").reference(base[:2], anchor[:2], embed.float(), head)
    assert torch.equal(bound(base[:2], anchor[:2], embed.float(), head)[0], wanted)


def test_heads_that_are_not_vanilla_are_refused() -> None:
    table = torch.zeros(4, 2)
    with pytest.raises(ValueError, match=r"wanted kind vanilla, .* got kind 'rnn' and step_dtype 'float32'"):
        markov_block(torch.zeros(1, 1, 4), torch.zeros(1).long(), table, table, kind="rnn")


def test_confidences_are_right_in_every_case() -> None:
    assert check_numbers(contracts.get("confidence_survival"), confidence_survival) == []


def test_the_confidence_of_a_request_does_not_depend_on_the_others(launches: list[str]) -> None:
    generator = torch.Generator().manual_seed(3)
    hidden = torch.randn(5, 3, 96, generator=generator).bfloat16()
    previous = torch.randint(64, (5, 3), generator=generator)
    embed, weight = torch.randn(64, 8, generator=generator), torch.randn(1, 104, generator=generator)
    together = confidence_survival(hidden, previous, embed, weight)
    alone = [confidence_survival(hidden[row : row + 1], previous[row : row + 1], embed, weight) for row in range(5)]
    assert torch.equal(together[1], torch.cat([one[1] for one in alone]))
    assert launches == ["score_kernel", "survival_kernel"] * 6
    assert confidence_survival(hidden[:0], previous[:0], embed, weight)[0].shape == (0, 3)
    assert len(launches) == 12
    with pytest.raises(ValueError, match=r"wanted weight \[1, 96\] or \[1, 104\], got \[1, 100\]"):
        confidence_survival(hidden, previous, embed, weight[:, :100])


def test_verify_lengths_are_those_of_the_contract() -> None:
    few = _only(
        "schedule_prefix", lambda index, case: ("33x" not in case.name and "7x" not in case.name) or index % 9 == 0
    )
    assert check_numbers(few, schedule_prefix) == []


def test_one_prepared_build_serves_fewer_requests(launches: list[str]) -> None:
    bound = prepare_schedule_prefix(CPU, _problem("schedule_prefix"), (1, 6, 40))
    few = _only("schedule_prefix", lambda index, case: "7x" in case.name or "C9" in case.name or "floor" in case.name)
    assert check_numbers(few, bound, seed=5) == []
    assert set(launches) == {"prefix_kernel"}
    seen = len(launches)
    assert bound(torch.empty(0, 5), torch.ones(3, dtype=torch.float64)).shape == (0,)
    assert len(launches) == seen
    with pytest.raises(ValueError, match="got mode 'budget', max_verify 0 and a budget of None"):
        bound(torch.zeros(1, 5), torch.ones(3, dtype=torch.float64), mode="budget")
