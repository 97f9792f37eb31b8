"""Greedy DSpark gives the tokens of plain greedy decoding, whatever is drafted, scheduled or batched (P1, P3)."""

from __future__ import annotations

import pytest
import torch

from dspark_ops import Device
from dspark_ops.decode import (
    DecodeOptions,
    Model,
    PrefixPolicy,
    Request,
    StaticPolicy,
    ThresholdPolicy,
    VerifyPolicy,
    decode_plain,
    generate,
)
from dspark_ops.decode.doubles import OracleDrafter
from dspark_ops.decode.drafting import DraftRequests, Proposal
from dspark_ops.decode.v41.synthetic import random_weights, small_config

CONFIG = small_config()
GENERATOR = torch.Generator().manual_seed(5)
# Short, across a page, and so long that the window's ring turns; all end at different times.
REQUESTS = [
    Request(tuple(torch.randint(5, 97, (length,), generator=GENERATOR).tolist()), max_tokens=most)
    for length, most in ((3, 13), (70, 14), (119, 10), (8, 11))
]

POLICIES: dict[str, VerifyPolicy] = {
    "static": StaticPolicy(),
    "static, 3 rows": StaticPolicy(rows=3),
    "threshold 0": ThresholdPolicy(0.0),
    "threshold": ThresholdPolicy(0.5),
    "threshold 1": ThresholdPolicy(1.0),
    "prefix, early stop": PrefixPolicy(),
    "prefix, global": PrefixPolicy(mode="global"),
}


@pytest.fixture(scope="module")
def model() -> Model:
    return Model(CONFIG, random_weights(CONFIG, seed=4), device=Device.simulate("cpu"))


@pytest.fixture(scope="module")
def plain(model: Model) -> list[tuple[int, ...]]:
    return [result.tokens for result in decode_plain(model, REQUESTS, DecodeOptions(max_batch=1)).results]


def oracle(plain: list[tuple[int, ...]], right: int, confidence: float | None = None) -> OracleDrafter:
    known = [request.prompt + tokens for request, tokens in zip(REQUESTS, plain, strict=True)]
    return OracleDrafter(known, CONFIG.vocab, right, confidence)


def tokens_of(model: Model, options: DecodeOptions, drafter: object = None) -> list[tuple[int, ...]]:
    return [result.tokens for result in generate(model, REQUESTS, options, drafter=drafter).results]  # type: ignore[arg-type]


def test_the_text_is_varied_enough_to_show_a_fault(plain: list[tuple[int, ...]]) -> None:
    assert [len(tokens) for tokens in plain] == [13, 14, 10, 11]
    assert len({token for tokens in plain for token in tokens}) > 20


@pytest.mark.parametrize("batch", [1, 4])
@pytest.mark.parametrize("gamma", range(1, 8))
def test_every_gamma_with_the_models_own_drafter(
    model: Model, plain: list[tuple[int, ...]], gamma: int, batch: int
) -> None:
    options = DecodeOptions(gamma, max_batch=batch, check_invariants=batch == 4)
    if batch == 1:  # one request is enough where nothing is shared, and keeps the suite quick
        found = generate(model, REQUESTS[1:2], options)
        assert found.results[0].tokens == plain[1]
    else:
        assert tokens_of(model, options) == plain


@pytest.mark.parametrize(
    ("gamma", "right"), [(1, 0), (1, 1), (2, 1), (3, 0), (3, 2), (3, 3), (5, 1), (5, 4), (5, 5), (7, 0), (7, 6), (7, 7)]
)
def test_a_drafter_that_is_right_exactly_so_often(
    model: Model, plain: list[tuple[int, ...]], gamma: int, right: int
) -> None:
    options = DecodeOptions(gamma, max_batch=4, check_invariants=True)
    found = generate(model, REQUESTS, options, drafter=oracle(plain, right))
    assert [result.tokens for result in found.results] == plain
    full = right + 1
    assert max(found.metrics.histogram) == full
    # Only the last block of a request, whose continuation is not known to its end, may be shorter.
    assert sum(count for length, count in found.metrics.histogram.items() if length < full) <= len(REQUESTS)


@pytest.mark.parametrize(("batch", "right"), [(1, 5), (4, 2)])
@pytest.mark.parametrize("policy", POLICIES)
def test_every_schedule(model: Model, plain: list[tuple[int, ...]], policy: str, right: int, batch: int) -> None:
    options = DecodeOptions(policy=POLICIES[policy], max_batch=batch, check_invariants=True)
    assert tokens_of(model, options, oracle(plain, right, confidence=0.8)) == plain


@pytest.mark.parametrize("policy", ["threshold", "prefix, early stop", "prefix, global"])
def test_every_schedule_with_the_models_own_confidences(
    model: Model, plain: list[tuple[int, ...]], policy: str
) -> None:
    assert tokens_of(model, DecodeOptions(policy=POLICIES[policy], max_batch=3)) == plain


def test_trimming_trades_steps_for_rows_and_never_tokens(model: Model, plain: list[tuple[int, ...]]) -> None:
    runs = {
        rows: generate(model, REQUESTS, DecodeOptions(policy=StaticPolicy(rows)), drafter=oracle(plain, 5)).metrics
        for rows in (2, 6)
    }
    assert runs[2].emitted == runs[6].emitted
    assert runs[2].verify_steps > runs[6].verify_steps
    assert max(runs[2].histogram) == 2
    assert runs[2].cut_by_schedule == 4 * runs[2].verify_steps
    assert runs[6].cut_by_schedule == 0


class NoDrafts:
    """Offers one right draft, then none."""

    def __init__(self, inner: OracleDrafter) -> None:
        self.inner = inner
        self.commit = inner.commit

    def propose(self, requests: DraftRequests) -> Proposal:
        found = self.inner.propose(requests)
        drafts = found.drafts.clone()
        drafts[:, 1:] = -1
        return Proposal(drafts, found.probs, found.confidence, found.survival)


def test_a_drafter_may_offer_fewer_drafts_than_a_block_holds(model: Model, plain: list[tuple[int, ...]]) -> None:
    found = generate(model, REQUESTS, DecodeOptions(check_invariants=True), drafter=NoDrafts(oracle(plain, 5)))
    assert [result.tokens for result in found.results] == plain
    assert max(found.metrics.histogram) == 2
    assert found.metrics.verified_rows <= 2 * found.metrics.verify_steps
