"""Speculation leaves the target's law as it is: every outcome over a tiny vocabulary, in exact fractions.

A tiny model has a law for each prefix. One cycle is run for every path of drafts and for one point inside every cell of
the uniforms in which the decision is constant; the cells' sizes are fractions, so the law of the first tokens comes out
exactly. Laws are multiples of 1/16 and 1/8, which float32 holds exactly.
"""

from __future__ import annotations

import itertools
import random
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from fractions import Fraction

import pytest
import torch

from dspark_ops.contracts.accept_sampled import accept_sampled
from dspark_ops.contracts.schedule import schedule_prefix

Law = tuple[Fraction, ...]
Path = tuple[int, ...]
Lengths = Callable[[Path], int]
"""From drafts to the number of verified ones. What it looks at is what the schedule looks at."""


class TinyModel:
    """Random target and draft laws for each prefix."""

    def __init__(self, vocab: int, gamma: int, seed: int = 0, zeros: bool = True) -> None:
        self.vocab, self.gamma = vocab, gamma
        rng = random.Random(seed)
        self.target: dict[Path, Law] = {}
        self.draft: dict[Path, Law] = {}
        for length in range(gamma + 2):
            for prefix in itertools.product(range(vocab), repeat=length):
                self.target[prefix] = self._law(rng, 16, 0 if zeros else 1)
                self.draft[prefix] = self._law(rng, 8, 1)

    def _law(self, rng: random.Random, parts: int, least: int) -> Law:
        counts = [least] * self.vocab
        for _ in range(parts - sum(counts)):
            counts[rng.randrange(self.vocab)] += 1
        return tuple(Fraction(count, parts) for count in counts)

    def exact(self, depth: int) -> dict[Path, Fraction]:
        """Return the target's law of the first `depth` tokens."""
        law = {}
        for path in itertools.product(range(self.vocab), repeat=depth):
            chance = Fraction(1)
            for at, token in enumerate(path):
                chance *= self.target[path[:at]][token]
            law[path] = chance
        return law


def cells(breaks: Iterable[Fraction]) -> list[tuple[Fraction, float]]:
    """Return (size, a point inside) of each part of [0, 1) between the break points."""
    points = sorted({Fraction(0), Fraction(1), *(point for point in breaks if 0 < point < 1)})
    return [(high - low, float((low + high) / 2)) for low, high in itertools.pairwise(points)]


def coin_breaks(weights: Sequence[Fraction]) -> list[Fraction]:
    """Return where an inverse-CDF draw from these weights changes its token."""
    total = sum(weights)
    return [part / total for part in itertools.accumulate(weights)] if total else []


def residual(p: Law, q: Law, weight: Fraction = Fraction(1)) -> list[Fraction]:
    return [max(weight * x - y, Fraction(0)) for x, y in zip(p, q, strict=True)]


def breaks_of(p: list[Law], q: list[Law], path: Path, variant: str) -> tuple[list[list[Fraction]], list[Fraction]]:
    """Return the points at which a decision can change: per accept uniform, and for the final coin."""
    gamma = len(path)
    coins = [point for row in p for point in coin_breaks(row)]
    if variant == "token":
        accepts = [[p[i][x] / q[i][x]] for i, x in enumerate(path)]
        return accepts, coins + [point for i in range(gamma) for point in coin_breaks(residual(p[i], q[i]))]
    weights = [Fraction(1)]
    for i, x in enumerate(path):
        weights.append(min(Fraction(1), weights[-1] * p[i][x] / q[i][x]))
    accepts = []
    for i in range(1, gamma + 1):
        points = [weights[i]]
        if i < gamma:
            mass = sum(residual(p[i], q[i], weights[i]))
            points += [mass / (mass + 1 - weights[i])] if mass + 1 - weights[i] else []
        accepts.append(points)
    return accepts, coins + [point for i in range(gamma) for point in coin_breaks(residual(p[i], q[i], weights[i]))]


def tensor_of(laws: list[list[Law]]) -> torch.Tensor:
    """Return laws [B, rows, V] as float32."""
    return torch.tensor([[[float(chance) for chance in law] for law in rows] for rows in laws])


def law_of_first_tokens(
    model: TinyModel, depth: int, lengths: Lengths | None = None, variant: str = "token", trim: str = "fresh"
) -> dict[Path, Fraction]:
    """Return the law of the first `depth` tokens if one speculative cycle comes first and plain sampling follows."""
    law: dict[Path, Fraction] = defaultdict(Fraction)
    columns = ([], [], [], [], [], [])
    chances: list[tuple[Path, Fraction]] = []
    for path in itertools.product(range(model.vocab), repeat=model.gamma):
        p = [model.target[path[:i]] for i in range(model.gamma + 1)]
        q = [model.draft[path[:i]] for i in range(model.gamma)]
        drawn = Fraction(1)
        for i, token in enumerate(path):
            drawn *= q[i][token]
        accepts, coins = breaks_of(p, q, path, variant)
        verified = model.gamma if lengths is None else lengths(path)
        for *tests, (size, coin) in itertools.product(*(cells(points) for points in accepts), cells(coins)):
            chance = drawn * size
            for width, _ in tests:
                chance *= width
            row = ([0, *path], p, q, [point for _, point in tests], coin, verified + 1)
            for column, value in zip(columns, row, strict=True):
                column.append(value)
            chances.append((path, chance))
    candidates, p, q, uniforms, coins, verify = columns
    correct, bonus, _ = accept_sampled(
        torch.tensor(candidates),
        tensor_of(p),
        tensor_of(q),
        torch.tensor(uniforms),
        torch.tensor(coins),
        torch.tensor(verify),
        variant,
        trim,
    )
    for (path, chance), kept, final in zip(chances, correct.tolist(), bonus.tolist(), strict=True):
        continue_plainly(model, (*path[:kept], final), chance, depth, law)
    return law


def continue_plainly(model: TinyModel, path: Path, chance: Fraction, depth: int, law: dict[Path, Fraction]) -> None:
    if len(path) >= depth:
        law[path[:depth]] += chance
        return
    for token, share in enumerate(model.target[path]):
        if share:
            continue_plainly(model, (*path, token), chance * share, depth, law)


def differences(model: TinyModel, depth: int, law: dict[Path, Fraction]) -> dict[Path, Fraction]:
    exact = model.exact(depth)
    return {path: law[path] - exact[path] for path in exact if law[path] != exact[path]}


@pytest.mark.parametrize(("vocab", "gamma"), [(3, 1), (2, 2), (3, 2), (2, 3)])
@pytest.mark.parametrize(("variant", "trim"), [("token", "fresh"), ("token", "boundary"), ("block", "fresh")])
@pytest.mark.parametrize("seed", [0, 1])
def test_a_whole_block_leaves_the_joint_law_of_the_tokens_exactly(
    vocab: int, gamma: int, variant: str, trim: str, seed: int
) -> None:
    model = TinyModel(vocab, gamma, seed)
    assert differences(model, gamma + 1, law_of_first_tokens(model, gamma + 1, None, variant, trim)) == {}


@pytest.mark.parametrize(("variant", "trim"), [("token", "fresh"), ("token", "boundary"), ("block", "fresh")])
@pytest.mark.parametrize("length", [0, 1])
def test_a_block_cut_at_a_fixed_length_leaves_the_law_exactly(variant: str, trim: str, length: int) -> None:
    model = TinyModel(3, 2, seed=4)
    assert differences(model, 3, law_of_first_tokens(model, 3, lambda path: length, variant, trim)) == {}


@pytest.mark.parametrize(("variant", "trim"), [("token", "fresh"), ("token", "boundary"), ("block", "fresh")])
def test_a_schedule_that_looks_at_earlier_drafts_only_leaves_the_law_exactly(variant: str, trim: str) -> None:
    model = TinyModel(2, 3, seed=7)
    # draft 1 is always tested; draft 2 if x_1 = 0; draft 3 if also x_2 = 1
    rule = {0: {0: 2, 1: 3}, 1: {0: 1, 1: 1}}
    law = law_of_first_tokens(model, 4, lambda path: rule[path[0]][path[1]], variant, trim)
    assert differences(model, 4, law) == {}


def test_a_schedule_that_looks_one_draft_ahead_is_biased_fresh_and_exact_with_the_boundary_test() -> None:
    model = TinyModel(2, 3, seed=7, zeros=False)

    def ahead(path: Path) -> int:
        return path[0] + path[1] * path[0] + path[2] * path[1] * path[0]  # draft k is tested by its own value

    assert differences(model, 4, law_of_first_tokens(model, 4, ahead, trim="boundary")) == {}
    assert differences(model, 4, law_of_first_tokens(model, 4, ahead, trim="fresh")) != {}


def test_a_schedule_that_looks_two_drafts_ahead_stays_biased() -> None:
    model = TinyModel(2, 3, seed=7, zeros=False)
    law = law_of_first_tokens(model, 4, lambda path: 3 * path[1], trim="boundary")
    assert differences(model, 4, law) != {}


class Counterexample(TinyModel):
    """The paper's: tokens A (0) and B (1), two drafts, p(A) = 0.7 against q(A) = 0.5, so that a_1 = 0.8."""

    def __init__(self) -> None:
        super().__init__(2, 2)
        for prefix in self.target:
            self.target[prefix] = (Fraction(7, 10), Fraction(3, 10))
            self.draft[prefix] = (Fraction(1, 2), Fraction(1, 2))

    def lengths(self, mode: str) -> Lengths:
        """Return the schedule whose second confidence is 0.9 after A and 0 after B."""
        rates = torch.tensor([0.0, 1.0, 0.5, 0.45], dtype=torch.float64)

        def choose(path: Path) -> int:
            survival = torch.tensor([[0.8, 0.8 * (0.9 if path[0] == 0 else 0.0)]])
            return int(schedule_prefix(survival, rates, mode=mode)) - 1

        return choose


@pytest.mark.parametrize(
    ("mode", "trim", "first_is_a"),
    [
        ("global", "fresh", Fraction(85, 100)),
        ("global", "boundary", Fraction(7, 10)),
        ("early_stop", "fresh", Fraction(7, 10)),
        ("early_stop", "boundary", Fraction(7, 10)),
    ],
)
def test_the_papers_counterexample_is_biased_only_for_a_global_search_that_ends_fresh(
    mode: str, trim: str, first_is_a: Fraction
) -> None:
    model = Counterexample()
    law = law_of_first_tokens(model, 1, model.lengths(mode), trim=trim)
    assert law[(0,)] == first_is_a


def test_block_verification_keeps_more_drafts_than_token_wise() -> None:
    def kept(variant: str, seed: int) -> Fraction:
        model = TinyModel(3, 2, seed, zeros=False)
        total = Fraction(0)
        for path in itertools.product(range(3), repeat=2):
            p = [model.target[path[:i]] for i in range(3)]
            q = [model.draft[path[:i]] for i in range(2)]
            accepts, _ = breaks_of(p, q, path, variant)
            for tests in itertools.product(*(cells(points) for points in accepts)):
                chance = q[0][path[0]] * q[1][path[1]] * tests[0][0] * tests[1][0]
                uniforms = torch.tensor([[point for _, point in tests]])
                laws = tensor_of([p]), tensor_of([q])
                length, _, _ = accept_sampled(
                    torch.tensor([[0, *path]]), *laws, uniforms, torch.tensor([0.5]), variant=variant
                )
                total += chance * int(length)
        return total

    token, block = ([kept(variant, seed) for seed in range(4)] for variant in ("token", "block"))
    assert all(more >= less for more, less in zip(block, token, strict=True)) and sum(block) > sum(token)


def test_a_point_mass_draft_leaves_the_law_exactly_and_is_kept_with_the_target_probability() -> None:
    model = TinyModel(3, 2, seed=3, zeros=False)
    for prefix in model.draft:
        model.draft[prefix] = tuple(Fraction(int(token == len(prefix) % 3)) for token in range(3))
    law: dict[Path, Fraction] = defaultdict(Fraction)
    path = (0, 1)
    p = [model.target[path[:i]] for i in range(3)]
    q = [model.draft[path[:i]] for i in range(2)]
    accepts, coins = breaks_of(p, q, path, "token")
    kept = Fraction(0)
    for *tests, (size, coin) in itertools.product(*(cells(points) for points in accepts), cells(coins)):
        uniforms = torch.tensor([[point for _, point in tests]])
        laws = tensor_of([p]), tensor_of([q])
        length, final, _ = accept_sampled(torch.tensor([[0, *path]]), *laws, uniforms, torch.tensor([coin]))
        chance = size * tests[0][0] * tests[1][0]
        kept += chance * (int(length) >= 1)
        continue_plainly(model, (*path[: int(length)], int(final)), chance, 3, law)
    assert differences(model, 3, law) == {}
    assert kept == model.target[()][0]
