"""Sampled accept: single decisions with known outcomes, guards, and the two ways to end a cut block."""

from __future__ import annotations

import pytest
import torch

from dspark_ops.contracts.accept import accept_greedy
from dspark_ops.contracts.accept_sampled import accept_sampled
from dspark_ops.errors import ContractError

BELOW_ONE = 1.0 - 2.0**-24
NAN = float("nan")


def decide(
    drafts: list[int],
    target: list[list[float]],
    draft: list[list[float]],
    uniforms: list[float],
    coin: float,
    verify: int | None = None,
    **options: str,
) -> tuple[int, int, int]:
    """Return (drafts kept, final token, drafts kept beyond the cut) of one request."""
    outputs = accept_sampled(
        torch.tensor([[0, *drafts]]),
        torch.tensor([target]),
        torch.tensor([draft]),
        torch.tensor([uniforms]),
        torch.tensor([coin]),
        None if verify is None else torch.tensor([verify]),
        **options,
    )
    correct, bonus, trim = (int(value) for value in outputs)
    return correct, bonus, trim


@pytest.mark.parametrize("variant", ["token", "block"])
def test_equal_laws_keep_every_draft_for_every_uniform_below_one(variant: str) -> None:
    law = [0.25, 0.75]
    for u in (0.0, 0.3, BELOW_ONE):
        assert decide([0], [law, [0.0, 1.0]], [law], [u], 0.5, variant=variant)[:2] == (1, 1)


def test_a_uniform_of_one_refuses_and_an_empty_residual_is_drawn_from_the_target() -> None:
    law = [0.25, 0.75]
    tokens = [decide([0], [law, law], [law], [1.0], coin)[1] for coin in (0.0, 0.2, 0.3, 0.99, 1.0)]
    assert tokens == [0, 0, 1, 1, 1]


def test_a_draft_of_target_probability_zero_is_never_kept_not_even_at_u_zero() -> None:
    for variant in ("token", "block"):
        kept = decide([1], [[0, 0, 1, 0], [1, 0, 0, 0]], [[0.5, 0.5, 0, 0]], [0.0], 0.0, variant=variant)
        assert kept[:2] == (0, 2)


def test_opposite_laws_have_their_residual_on_the_last_two_tokens() -> None:
    rising, falling = [0.1, 0.2, 0.3, 0.4], [0.4, 0.3, 0.2, 0.1]
    tokens = [
        decide([0], [rising, rising], [falling], [0.9], coin)[1] for coin in (0.0, 0.2499, 0.2501, BELOW_ONE, 1.0)
    ]
    assert tokens == [2, 2, 3, 3, 3]


def test_the_rejection_vector_accepts_seven_tenths_and_its_residual_is_a_point() -> None:
    p, q = [0.5, 0.3, 0.2], [0.2, 0.5, 0.3]
    mass = 0.0
    for token, (x, y) in enumerate(zip(p, q, strict=True)):
        bound = min(1.0, x / y)
        assert decide([token], [p, p], [q], [bound - 1e-6], 0.5)[0] == 1
        if bound < 1:
            assert decide([token], [p, p], [q], [bound + 1e-6], 0.5)[:2] == (0, 0)
        mass += y * bound
    assert mass == pytest.approx(0.7)


def test_the_test_is_strict() -> None:
    # u q = p exactly: refused
    assert decide([0], [[0.25, 0.75], [1.0, 0.0]], [[0.5, 0.5]], [0.5], 0.0)[0] == 0
    assert decide([0], [[0.25, 0.75], [1.0, 0.0]], [[0.5, 0.5]], [0.4999], 0.0)[0] == 1


def test_the_first_refusal_ends_the_run_token_by_token() -> None:
    one, other = [1.0, 0.0], [0.0, 1.0]
    kept = decide([0, 1, 0], [one, one, one, one], [one, other, one], [0.0, 0.0, 0.0], 0.5)
    assert kept == (1, 0, 0)


def test_block_verification_keeps_the_last_draft_that_passes_not_the_first_that_fails() -> None:
    # w_1 = 1/2, then the second draft is four times as likely under the target: w_2 = 1
    target, draft = [[0.25, 0.75], [1.0, 0.0], [0.0, 1.0]], [[0.5, 0.5], [0.25, 0.75]]
    assert decide([0, 0], target, draft, [0.9, 0.9], 0.5, variant="token")[0] == 0
    assert decide([0, 0], target, draft, [0.9, 0.9], 0.5, variant="block") == (2, 1, 0)


@pytest.mark.parametrize(("where", "kept", "token"), [("target", 0, 2), ("draft", 0, 3)])
def test_a_nan_in_a_row_refuses_its_draft_and_what_is_finite_decides(where: str, kept: int, token: int) -> None:
    p, q = [0.25, 0.125, 0.5, 0.125], [0.25, 0.25, 0.25, 0.25]
    broken = ([NAN, *p[1:]], q) if where == "target" else (p, [NAN, *q[1:]])
    for variant in ("token", "block"):
        assert decide([1], [broken[0], p], [broken[1]], [0.0], 0.99, variant=variant)[:2] == (kept, token)


def test_a_row_of_nothing_but_nan_or_zeros_gives_an_id_of_the_vocabulary() -> None:
    rows = ([NAN] * 4, [0.0] * 4, [float("inf"), 0, 0, 0], [NAN, NAN, 0.5, NAN])
    tokens = [decide([1], [row, row], [[0.25] * 4], [0.5], BELOW_ONE)[1] for row in rows]
    assert tokens == [0, 0, 1, 2]


def test_a_missing_draft_ends_the_block_and_the_final_token_has_the_target_law() -> None:
    sure, law = [0.0, 1.0], [0.5, 0.5]
    for missing in (-1, 2, 2**40):
        for coin, token in ((0.4, 0), (0.6, 1)):
            got = decide([1, missing], [sure, law, sure], [sure, sure], [0.0, 0.0], coin)
            assert got == (1, token, 0)


def test_a_cut_block_is_fresh_or_tests_the_draft_at_its_boundary() -> None:
    p, q = [0.75, 0.25], [0.25, 0.75]
    # one of two drafts verified; the second draft, token 1, is kept with probability 1/3
    for u, coin, fresh, bound in ((0.3, 0.1, 0, 1), (0.3, 0.9, 1, 1), (0.4, 0.1, 0, 0), (0.4, 0.9, 1, 0)):
        rows = ([1, 1], [q, p, q], [q, q], [0.0, u], coin, 2)
        assert decide(*rows, trim="fresh")[:2] == (1, fresh)
        assert decide(*rows, trim="boundary")[:2] == (1, bound)


def test_drafts_beyond_the_cut_are_counted_and_never_kept() -> None:
    law = [0.5, 0.5]
    rows = ([0, 1, 0], [law] * 4, [law] * 3, [0.1] * 3, 0.2)
    assert [decide(*rows, verify)[::2] for verify in (4, 3, 2, 1, 0)] == [(3, 0), (2, 1), (1, 2), (0, 3), (-1, 4)]
    block = [decide(*rows, verify, variant="block")[::2] for verify in (4, 3, 2, 1, 0)]
    assert block == [(3, 0), (2, 0), (1, 0), (0, 0), (-1, 0)]


def test_one_hot_laws_decide_as_the_greedy_accept_does() -> None:
    generator = torch.Generator().manual_seed(6)
    batch, gamma, vocab = 64, 5, 3
    targets = torch.randint(vocab, (batch, gamma + 1), generator=generator)
    candidates = torch.randint(vocab, (batch, gamma + 1), generator=generator)
    verify = torch.randint(1, gamma + 2, (batch,), generator=generator)
    uniforms = torch.rand(batch, gamma, generator=generator), torch.rand(batch, generator=generator)
    one_hot = torch.nn.functional.one_hot
    sampled = accept_sampled(
        candidates, one_hot(targets, vocab).float(), one_hot(candidates[:, 1:], vocab).float(), *uniforms, verify
    )
    greedy = accept_greedy(candidates, targets, verify)
    assert all(torch.equal(x, y) for x, y in zip(sampled, greedy, strict=True))


def test_a_row_does_not_depend_on_its_neighbours() -> None:
    from dspark_ops.contracts import get

    case = next(case for case in get("accept_sampled").cases("small", 1) if "5 requests" in case.name)
    whole = accept_sampled(**case.inputs)
    for row in range(5):
        alone = {k: v[row : row + 1] if isinstance(v, torch.Tensor) else v for k, v in case.inputs.items()}
        assert all(torch.equal(x[row : row + 1], y) for x, y in zip(whole, accept_sampled(**alone), strict=True))


@pytest.mark.parametrize("variant", ["token", "block"])
def test_ten_thousand_draws_have_the_mean_of_the_target(variant: str) -> None:
    p, q = [0.1, 0.2, 0.3, 0.4], [0.4, 0.3, 0.2, 0.1]
    count = 10_000
    generator = torch.Generator().manual_seed(8)
    drafts = torch.multinomial(torch.tensor(q), count, replacement=True, generator=generator)
    correct, bonus, _ = accept_sampled(
        torch.nn.functional.pad(drafts.unsqueeze(1), (1, 0)),
        torch.tensor([[p, p]]).expand(count, 2, 4),
        torch.tensor([[q]]).expand(count, 1, 4),
        torch.rand(count, 1, generator=generator),
        torch.rand(count, generator=generator),
        variant=variant,
    )
    first = torch.where(correct > 0, drafts, bonus).double()
    assert float(first.mean()) == pytest.approx(2.0, abs=5 * 1.0 / count**0.5)  # the law's mean is 2, its deviation 1
    assert float((correct > 0).double().mean()) == pytest.approx(0.6, abs=5 * 0.49 / count**0.5)  # sum of min(p, q)


def test_unknown_forms_and_a_block_with_a_boundary_are_refused() -> None:
    law = [0.5, 0.5]
    with pytest.raises(ContractError, match="no block form"):
        decide([0], [law, law], [law], [0.5], 0.5, variant="block", trim="boundary")
    with pytest.raises(ContractError, match="variant 'tree'"):
        decide([0], [law, law], [law], [0.5], 0.5, variant="tree")
