"""Properties of C9.2 over drawn inputs: order of requests (P4), garbage in caches (P6), counts (P7), P9."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dspark_ops import Device
from dspark_ops.contracts.schedule import schedule_prefix
from dspark_ops.decode import DecodeMetrics, DecodeOptions, Model, Request, SamplingParams, generate
from dspark_ops.decode.figures import figures_of
from dspark_ops.decode.options import Execution
from dspark_ops.decode.policy import PrefixPolicy, StaticPolicy, ThresholdPolicy, VerifyPolicy
from dspark_ops.decode.sps import MeasuredRates
from dspark_ops.decode.uniform_policy import UniformPolicy
from dspark_ops.decode.v41.state import DecodeState
from dspark_ops.decode.v41.synthetic import random_weights, small_config

OPS = SimpleNamespace(schedule_prefix=schedule_prefix)
STAIRS = MeasuredRates((1, 2, 3, 6, 7, 8, 12), (1.0, 1.0, 0.68, 0.67, 0.66, 0.5, 0.4))
FALLING = MeasuredRates((1, 24), (1.0, 0.3), "linear")
POLICIES: list[VerifyPolicy] = [
    StaticPolicy(3),
    ThresholdPolicy(0.5),
    PrefixPolicy(FALLING),
    PrefixPolicy(STAIRS),
    PrefixPolicy(STAIRS, "global", lag=1),
    PrefixPolicy(FALLING, "global", lag=2),
    UniformPolicy(FALLING),
]
GAMMA = 4
CHANCE = st.integers(1, 127).map(lambda part: part / 128)
#: Confidences of two requests.
PAIR = st.lists(st.lists(CHANCE, min_size=GAMMA, max_size=GAMMA), min_size=2, max_size=2)
#: Drafts, how many of them are verified and accepted, and tokens emitted.
STEP = st.tuples(st.integers(1, 8), st.integers(0, 8), st.integers(0, 8), st.integers(1, 9))
CONFIG = small_config()


def lens(scheduler: object, confidence: torch.Tensor, requests: list[int]) -> list[int]:
    """One step of a scheduler, as the loop asks it: the width first, then the lengths within it."""
    width = scheduler.width(len(requests))  # type: ignore[attr-defined]
    found = scheduler.verify_lens(confidence, confidence.cumprod(-1), requests)  # type: ignore[attr-defined]
    kept: list[int] = found.clamp(max=width).tolist()
    return kept


@pytest.mark.parametrize("policy", POLICIES, ids=repr)
@given(before=st.lists(PAIR, max_size=3), now=PAIR, other=st.lists(CHANCE, min_size=GAMMA, max_size=GAMMA),
       kept=st.integers(0, GAMMA))  # fmt: skip
@settings(max_examples=40, deadline=None, database=None, derandomize=True)
def test_whether_a_draft_is_verified_depends_on_no_later_confidence(
    policy: VerifyPolicy, before: list[list[list[float]]], now: list[list[float]], other: list[float], kept: int
) -> None:
    """P9: the confidence of draft k looks at drafts below k only, so those from `kept` on may say anything."""
    changed = [[*now[0][:kept], *other[kept:]], now[1]]
    found = []
    for last in (now, changed):
        scheduler = policy.scheduler(OPS, GAMMA)
        for step in before:
            lens(scheduler, torch.tensor(step), [3, 5])
        found.append(lens(scheduler, torch.tensor(last), [3, 5])[0])
    # Drafts 1 to `kept` are verified in both or in neither: their confidences are the same.
    assert min(found[0] - 1, kept) == min(found[1] - 1, kept)


@pytest.mark.parametrize("policy", POLICIES, ids=repr)
@given(steps=st.lists(st.permutations(range(16)), min_size=1, max_size=3))
@settings(max_examples=25, deadline=None, database=None, derandomize=True)
def test_requests_in_another_order_get_the_same_lengths_in_that_order(
    policy: VerifyPolicy, steps: list[list[int]]
) -> None:
    """P4, with confidences that have no ties."""
    straight, turned = policy.scheduler(OPS, GAMMA), policy.scheduler(OPS, GAMMA)
    for step in steps:
        confidence = torch.tensor(step).view(4, GAMMA) / 20 + 0.123
        ahead = lens(straight, confidence, [0, 1, 2, 3])
        assert lens(turned, confidence.flip(0), [3, 2, 1, 0]) == ahead[::-1]


@given(
    steps=st.lists(st.tuples(st.integers(1, 8), st.integers(0, 8), st.integers(0, 8), st.integers(1, 9)), max_size=30)
)
@settings(max_examples=60, deadline=None, database=None, derandomize=True)
def test_counts_agree_whatever_the_steps_were(steps: list[tuple[int, int, int, int]]) -> None:
    """P7: what is emitted is what prefills, drafts and final tokens give, less what was trimmed."""
    metrics, lengths = DecodeMetrics(forwards=len(steps), seconds=0.5), []
    metrics.prefill(3)
    for gamma, verified, accepted, emitted in steps:
        tested = min(verified, gamma)
        correct = min(accepted, tested)
        metrics.step(gamma, tested + 1, correct, min(emitted, correct + 1))
        lengths.append(correct + 1)
    found = figures_of(metrics)
    assert found.accept_len == pytest.approx(sum(lengths) / len(lengths) if lengths else 0.0)
    assert found.output_tps == pytest.approx(found.expected_tps)
    assert sum(rate.accepted for rate in found.positions) == metrics.accepted
    assert all(rate.accepted <= rate.judged <= rate.proposed for rate in found.positions)
    assert sum(metrics.histogram.values()) == metrics.verify_steps


@pytest.fixture(scope="module")
def model() -> Model:
    return Model(CONFIG, random_weights(CONFIG, seed=1), device=Device.simulate("cpu"))


@pytest.mark.parametrize("execution", [Execution.PACKED, Execution.FOLDED])
@pytest.mark.parametrize("pages", [0, 3])
def test_what_caches_hold_before_they_are_written_changes_nothing(
    model: Model, execution: Execution, pages: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P6: every byte is set, so that what nobody has written is NaN wherever it is a number."""
    asked = [Request(tuple(range(9, 12 + number)), 9 - number, SamplingParams()) for number in range(3)]
    options = DecodeOptions(max_batch=3, cache_pages=pages, execution=execution)
    wanted = [result.tokens for result in generate(model, asked, options).results]
    empty = DecodeState.empty

    def poisoned(*arguments: object, **named: object) -> DecodeState:
        state = empty(*arguments, **named)  # type: ignore[arg-type]
        for cache in (*state.window, *state.compressed.values(), *state.draft):
            cache.fill_(0xFF)
        for ring in state.open_groups.values():
            ring.fill_(float("nan"))
        return state

    monkeypatch.setattr(DecodeState, "empty", poisoned)
    assert [result.tokens for result in generate(model, asked, options).results] == wanted
