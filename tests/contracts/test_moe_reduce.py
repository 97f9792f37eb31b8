"""Route reduce: both roundings by hand, and that nothing of a remote slot gets through."""

from __future__ import annotations

import pytest
import torch

from dspark_ops.conformance.numbers import check_numbers
from dspark_ops.contracts.moe_reduce import MOE_LOCAL_REDUCE, moe_local_reduce
from dspark_ops.contracts.numerics import fma
from dspark_ops.errors import ContractError

NAN, INF = float("nan"), float("inf")
HELD = torch.tensor([0, 1, 1, 1], dtype=torch.int32)


def reduce(slots: list[float], ids: list[int] | None = None, **options: object) -> float:
    """Return the sum of one row of one column; slots belong to experts that are all held unless `ids` are given."""
    chosen = torch.tensor([ids or [1] * len(slots)], dtype=torch.int32)
    dtype = options.pop("dtype", torch.bfloat16)
    if isinstance(options.get("shared"), float):
        options["shared"] = torch.tensor([[options["shared"]]], dtype=dtype)
    if "weights" in options:
        options["topk_weights"] = torch.tensor([options.pop("weights")])
    routes = torch.tensor([slots], dtype=dtype).unsqueeze(-1)
    return moe_local_reduce(routes, chosen, HELD, **{"scale": 1.0, **options}).item()


def test_the_reference_gives_every_case_its_known_values() -> None:
    assert check_numbers(MOE_LOCAL_REDUCE, moe_local_reduce) == []


def test_stepwise_rounds_after_the_sum_the_scale_and_the_addition() -> None:
    # 256 + 1 needs nine bits, a tie that goes to the even 256; once keeps the 1 until the end
    assert reduce([256.0, 1.0], shared=-256.0) == 0.0
    assert reduce([256.0, 1.0], shared=-256.0, rounding="once") == 1.0
    # 1.0078125 * 1.5 is a tie between 1.5078125 and 1.515625
    assert reduce([1.0078125], scale=1.5) == 1.515625
    assert reduce([1.0078125], scale=1.5, shared=-1.5078125) == 0.0078125
    assert reduce([1.0078125], scale=1.5, shared=-1.5078125, rounding="once") == 0.00390625


def test_stepwise_is_the_chain_of_separate_operators() -> None:
    generator = torch.Generator().manual_seed(5)
    routes = torch.randn(37, 6, 64, generator=generator).bfloat16()
    ids = torch.randint(1, 4, (37, 6), generator=generator).int()
    shared = torch.randn(37, 64, generator=generator).bfloat16()
    chain = torch.zeros(37, 64)
    for slot in range(6):
        chain += routes[:, slot].float()
    chain = chain.bfloat16()
    chain = chain.mul_(1.5).add_(shared)
    assert torch.equal(moe_local_reduce(routes, ids, HELD, 1.5, shared=shared), chain)


def test_a_contracted_multiply_add_would_change_a_quarter_of_the_outputs() -> None:
    generator = torch.Generator().manual_seed(6)
    routes = torch.randn(64, 6, 512, generator=generator).bfloat16()
    ids = torch.ones(64, 6, dtype=torch.int32)
    shared = torch.randn(64, 512, generator=generator).bfloat16()
    summed = moe_local_reduce(routes, ids, HELD, 1.0)
    contracted = fma(summed.float(), torch.tensor(1.5), shared.float()).bfloat16()
    changed = (contracted != moe_local_reduce(routes, ids, HELD, 1.5, shared=shared)).float().mean()
    assert 0.2 < changed < 0.32


def test_the_sum_runs_over_rising_slots_in_float32() -> None:
    big = 2.0**25
    assert reduce([big, 1.0, -big], dtype=torch.float32) == 0.0
    assert reduce([big, -big, 1.0], dtype=torch.float32) == 1.0


def test_a_deferred_weight_is_multiplied_and_rounded_before_the_addition() -> None:
    # (1 + 2**-12)**2 = 1 + 2**-11 + 2**-24: the last bit is lost unless product and sum contract
    near = 1 + 2.0**-12
    assert reduce([1.0, near], weights=[-1.0, near], dtype=torch.float32) == 2.0**-11
    assert reduce([4.0, 2.0], weights=[0.5, 0.25]) == 2.5


@pytest.mark.parametrize("poison", [NAN, INF, -INF])
@pytest.mark.parametrize("rounding", ["stepwise", "once"])
def test_a_remote_slot_contributes_nothing_whatever_it_holds(poison: float, rounding: str) -> None:
    for remote in (0, -1, 4, 2**31 - 1):
        assert reduce([poison, 2.0, poison], [remote, 1, remote], rounding=rounding) == 2.0
        assert reduce([2.0, poison], [3, remote], weights=[0.5, NAN], rounding=rounding) == 1.0


def test_a_row_without_any_local_expert_is_plus_zero_or_the_shared_part() -> None:
    assert str(reduce([NAN, NAN], [0, 0])) == "0.0"
    assert reduce([NAN, NAN], [0, 0], shared=3.5, scale=1.5) == 3.5


def test_a_nan_of_a_local_slot_is_seen() -> None:
    assert reduce([1.0, NAN]) != reduce([1.0, NAN])


def test_o07_padding_of_minus_one_gives_zero_and_leaves_the_ids() -> None:
    ids = torch.tensor([[3, 1], [-1, -1]], dtype=torch.int32)
    before = ids.clone()
    x, weights = torch.tensor([[1.0], [NAN]]), torch.tensor([[0.6, 0.4], [0.5, 0.5]])
    routes = torch.stack([(ids[:, slot : slot + 1] + 1) * x for slot in range(2)], 1)
    every = torch.ones(4, dtype=torch.int32)
    out = moe_local_reduce(routes, ids, every, 1.0, topk_weights=weights)
    assert out[0].item() == pytest.approx(3.2) and out[1].item() == 0.0
    assert torch.equal(ids, before)


@pytest.mark.parametrize("columns", [1, 5121, 7168])
def test_any_number_of_columns(columns: int) -> None:
    routes = torch.ones(2, 3, columns, dtype=torch.float16)
    out = moe_local_reduce(routes, torch.tensor([[1, 2, 3], [0, 0, 1]], dtype=torch.int32), HELD, 1.5)
    assert out.dtype == torch.float16
    assert (out[0] == 4.5).all() and (out[1] == 1.5).all()


def test_an_unknown_rounding_is_refused() -> None:
    with pytest.raises(ContractError, match="rounding is 'twice': wanted 'stepwise' or 'once'"):
        reduce([1.0], rounding="twice")
