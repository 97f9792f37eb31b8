"""The sampled accept against its contract's cases, over several tiles of a law."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from triton.runtime.interpreter import InterpretedFunction

from dspark_ops import contracts
from dspark_ops.conformance.numbers import check_numbers
from dspark_ops.contracts import Case, Contract
from dspark_ops_triton import accept_sampled as module

Thinned = Callable[..., Contract]


@pytest.fixture
def small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BLOCK", 32)
    monkeypatch.setattr(module, "MOST_BLOCK", 32)


def test_known_draws_and_the_edges_of_one_request_are_right(thinned: Thinned) -> None:
    def kept(case: Case) -> bool:
        return len(case.inputs["candidates"]) <= 1

    assert check_numbers(thinned("accept_sampled", 10**6, kept), module.accept_sampled) == []


@pytest.mark.usefixtures("small_tiles")
def test_a_law_of_several_tiles_gives_the_same_tokens(thinned: Thinned) -> None:
    def adapt(inputs):
        return inputs if len(inputs["candidates"]) == 5 else None

    assert check_numbers(thinned("accept_sampled", 8), module.accept_sampled, adapt=adapt) == []


@pytest.mark.usefixtures("small_tiles")
def test_coins_of_every_size_draw_what_the_running_sum_draws() -> None:
    generator = torch.Generator().manual_seed(0)
    counts = torch.randint(0, 4, (8, 2, 100), generator=generator).float()
    counts[:, :, :40] = 0  # whole tiles without weight
    coins = torch.tensor([0.0, 2.0**-20, 0.25, 0.5, 0.75, 1 - 2.0**-24, 1.0, float("nan")])
    inputs = {
        "candidates": torch.zeros(8, 2, dtype=torch.int64), "target_probs": counts, "draft_probs": counts[:, :1],
        "accept_uniforms": torch.ones(8, 1), "final_uniforms": coins,
    }  # fmt: skip
    got, wanted = module.accept_sampled(**inputs), contracts.get("accept_sampled").reference(**inputs)
    assert got[1].tolist() == wanted[1].tolist()
    assert got[0].tolist() == wanted[0].tolist()


@pytest.mark.usefixtures("small_tiles")
def test_a_step_is_two_launches_and_one_of_no_requests_none(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    run = InterpretedFunction.run

    def count(self, *arguments, **options):
        seen.append(self.__name__)
        return run(self, *arguments, **options)

    monkeypatch.setattr(InterpretedFunction, "run", count)
    bound = module.AcceptSampled()
    law = torch.full((2, 3, 70), 1 / 70)
    tokens, coins = torch.zeros(2, 3, dtype=torch.int64), torch.zeros(2, 2)
    assert bound(tokens, law, law[:, 1:], coins, coins[:, 0])[0].tolist() == [2, 2]
    assert bound(tokens[:0], law[:0], law[:0, 1:], coins[:0], coins[:0, 0])[1].shape == (0,)
    assert seen == ["sums_kernel", "accept_kernel"]


def test_calls_that_do_not_fit_are_refused() -> None:
    law, tokens = torch.zeros(1, 2, 8), torch.zeros(1, 2, dtype=torch.int64)
    coins = torch.zeros(1, 1)
    with pytest.raises(ValueError, match=r"trim fresh or, .* got variant 'block', trim 'boundary'"):
        module.accept_sampled(tokens, law, law[:, :1], coins, coins[0], None, "block", "boundary")
