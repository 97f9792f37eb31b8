"""Sampled decoding: reproducible from its seed, and of exactly the law that the target has without speculation (P2)."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from scipy import stats

from dspark_ops import Device
from dspark_ops.contracts.draws import inverse_cdf
from dspark_ops.decode import (
    DecodeOptions,
    Model,
    PrefixPolicy,
    Request,
    SamplingParams,
    ThresholdPolicy,
    UniformPolicy,
    VerifyPolicy,
    decode_plain,
    generate,
    verify_width,
)
from dspark_ops.decode.drafting import DraftRequests, Proposal
from dspark_ops.decode.sampling import target_law
from dspark_ops.decode.sps import MeasuredRates
from dspark_ops.decode.v41.rows import Rows
from dspark_ops.decode.v41.synthetic import random_weights, small_config

CONFIG = small_config()
PROMPT = (31, 8, 55)
# Three tokens at each step: nine pairs, whose law can be worked out and tested.
TOP_THREE = {"temperature": 0.3, "top_k": 3}


@pytest.fixture(scope="module")
def model() -> Model:
    return Model(CONFIG, random_weights(CONFIG, seed=1), device=Device.simulate("cpu"))


def requests(count: int, most: int, **sampling: float) -> list[Request]:
    return [Request(PROMPT, most, SamplingParams(seed=seed, **sampling)) for seed in range(count)]


def next_law(model: Model, tokens: tuple[int, ...], temperature: float, top_k: int) -> torch.Tensor:
    """The exact law of the token after `tokens`."""
    rows = Rows.of([(0, position, token) for position, token in enumerate(tokens)])
    with torch.inference_mode():
        logits = model.target.forward(model.ops().at(site="verify"), model.state(1), rows).logits[-1:]
    law, _ = target_law(logits, torch.tensor([temperature]), torch.tensor([top_k]), torch.tensor([1.0]))
    return law[0].double()


class NearDrafter:
    """Drafts from laws of its own that are near enough to the target's to be accepted about half of the time."""

    def __init__(self, model: Model, prompt: tuple[int, ...], gamma: int = 1) -> None:
        self.after: dict[tuple[int, ...], torch.Tensor] = {}
        paths: list[tuple[int, ...]] = [()]
        for depth in range(gamma + 1):
            laws = {path: next_law(model, (*prompt, *path), **TOP_THREE) for path in paths}
            paths = [(*path, token) for path, law in laws.items() for token in law.nonzero().flatten().tolist()]
            self.after |= laws if depth else {}

    def commit(self, rows: Rows, features: torch.Tensor) -> None:
        pass

    def propose(self, requests: DraftRequests) -> Proposal:
        assert requests.uniforms is not None
        tokens, laws, sure = requests.anchor.unsqueeze(1), [], []
        for draft in range(requests.gamma):
            law = torch.full((len(requests), CONFIG.vocab), 0.5 / CONFIG.vocab, dtype=torch.float64)
            for row, path in enumerate(tokens.tolist()):
                if tuple(path) in self.after:
                    law[row] += 0.5 * _tilted(self.after[tuple(path)])
            laws.append((law / law.sum(-1, keepdim=True)).float())
            sure.append(torch.where(tokens[:, -1] % 3 == 0, 0.3, 0.8))  # as a drafter's, it looks at what came before
            drawn = inverse_cdf(laws[-1], requests.uniforms[:, draft])
            tokens = torch.cat((tokens, drawn.unsqueeze(1)), 1)
        confidence = torch.stack(sure, 1)
        return Proposal(tokens[:, 1:], torch.stack(laws, 1), confidence, confidence.cumprod(-1))


def _tilted(law: torch.Tensor) -> torch.Tensor:
    tilted = law.sqrt()
    return tilted / tilted.sum()


def chi_square_p(counts: Counter[tuple[int, ...]], law: dict[tuple[int, ...], float]) -> float:
    total = sum(counts.values())
    assert set(counts) <= set(law), "a pair of tokens was drawn whose probability is 0"
    cells = sorted(law, key=lambda cell: -law[cell])
    # Cells that are expected less than five times are tested together.
    large = [cell for cell in cells if law[cell] * total >= 5]
    small = [cell for cell in cells if law[cell] * total < 5]
    found = [counts[cell] for cell in large] + ([sum(counts[cell] for cell in small)] if small else [])
    wanted = [law[cell] * total for cell in large] + ([sum(law[cell] for cell in small) * total] if small else [])
    if small and wanted[-1] < 1e-9:
        found, wanted = found[:-1], wanted[:-1]
    return float(stats.chisquare(found, [value * total / sum(wanted) for value in wanted]).pvalue)


@pytest.mark.parametrize("drafts", ["near", "own"])
def test_the_first_two_tokens_have_the_targets_exact_law(model: Model, drafts: str) -> None:
    first = next_law(model, PROMPT, **TOP_THREE)
    law = {}
    for one in first.nonzero().flatten().tolist():
        second = next_law(model, (*PROMPT, one), **TOP_THREE)
        law |= {(one, two): float(first[one] * second[two]) for two in second.nonzero().flatten().tolist()}
    assert len(law) == 9 and sum(law.values()) == pytest.approx(1.0)
    drafter = NearDrafter(model, PROMPT) if drafts == "near" else None
    options = DecodeOptions(1, max_batch=64, ignore_eos=True)
    found = generate(model, requests(320, 2, **TOP_THREE), options, drafter=drafter)
    counts = Counter(result.tokens for result in found.results)
    if drafts == "near":
        assert 0.2 < found.metrics.correct[0] / found.metrics.reached[0] < 0.8, "both outcomes of a test must occur"
    assert chi_square_p(counts, law) > 1e-3


@pytest.fixture(scope="module")
def law_of_three(model: Model) -> dict[tuple[int, ...], float]:
    law = {(): 1.0}
    for _ in range(3):
        after = {path: next_law(model, (*PROMPT, *path), **TOP_THREE) for path in law}
        law = {
            (*path, token): chance * float(after[path][token])
            for path, chance in law.items()
            for token in after[path].nonzero().flatten().tolist()
        }
    return law


# Rates fall so steeply that two rows pay and three do not, once enough was observed.
STEEP = MeasuredRates((1, 200), (200.0, 1.0), "linear")
CHOICES = {
    "uniform": UniformPolicy(STEEP, (2,)),
    "threshold": ThresholdPolicy(0.5),
    "early stop": PrefixPolicy(STEEP),
    "global": PrefixPolicy(STEEP, "global", lag=1),
}


@pytest.mark.parametrize("choice", CHOICES)
def test_lengths_that_follow_drafts_and_outcomes_leave_the_law_as_it_is(
    model: Model, law_of_three: dict[tuple[int, ...], float], choice: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verify_width, "INTERVAL", 2)
    monkeypatch.setattr(verify_width, "EXPLORE_EVERY", 4)
    options = DecodeOptions(2, max_batch=40, policy=CHOICES[choice], ignore_eos=True)
    found = generate(model, requests(240, 3, **TOP_THREE), options, drafter=NearDrafter(model, PROMPT, 2))
    assert 0.2 < found.metrics.cut_by_schedule / found.metrics.proposed < 0.8, "the lengths must differ"
    for draft in range(2):
        assert 0.2 < found.metrics.correct[draft] / found.metrics.reached[draft] < 0.8
    assert chi_square_p(Counter(result.tokens for result in found.results), law_of_three) > 1e-3


def test_plain_sampling_has_the_law_too(model: Model) -> None:
    first = next_law(model, PROMPT, **TOP_THREE)
    law = {(token,): float(first[token]) for token in first.nonzero().flatten().tolist()}
    found = decode_plain(model, requests(320, 1, **TOP_THREE), DecodeOptions(max_batch=64))
    assert chi_square_p(Counter(result.tokens for result in found.results), law) > 1e-3


@pytest.mark.parametrize("policy", [None, ThresholdPolicy(0.45)], ids=["static", "threshold"])
def test_a_seed_gives_the_same_tokens_whatever_else_is_in_the_batch(model: Model, policy: VerifyPolicy | None) -> None:
    wanted = requests(5, 9, temperature=0.5, top_p=0.9)
    options = {"policy": policy} if policy else {}
    together = generate(model, wanted, DecodeOptions(max_batch=5, **options)).results
    for order, batch in (([4, 0, 3], 3), ([2, 1], 1)):
        again = generate(model, [wanted[number] for number in order], DecodeOptions(max_batch=batch, **options)).results
        assert [result.tokens for result in again] == [together[number].tokens for number in order]
    assert len({result.tokens for result in together}) > 3


def test_plain_sampling_is_reproducible_from_its_seed(model: Model) -> None:
    wanted = requests(4, 8, temperature=0.7)
    together = decode_plain(model, wanted).results
    assert decode_plain(model, wanted[2:3]).results[0].tokens == together[2].tokens


def test_greedy_requests_in_a_sampled_batch_stay_greedy(model: Model) -> None:
    greedy = [Request(PROMPT, 5), Request(PROMPT[:2], 5, SamplingParams(temperature=0.8, top_k=1))]
    plain = [result.tokens for result in decode_plain(model, greedy).results]
    mixed = [requests(1, 5, temperature=0.9)[0], greedy[0], *requests(2, 4, temperature=0.4), greedy[1]]
    found = generate(model, mixed, DecodeOptions(check_invariants=True)).results
    assert [found[1].tokens, found[4].tokens] == plain


@pytest.mark.parametrize("policy", [PrefixPolicy(), PrefixPolicy(mode="global")], ids=["early stop", "global"])
def test_sampling_under_a_scheduler_keeps_to_its_rules(model: Model, policy: VerifyPolicy) -> None:
    found = generate(model, requests(3, 6, temperature=0.6), DecodeOptions(policy=policy, check_invariants=True))
    assert [len(result.tokens) for result in found.results] == [6] * 3
