"""Ways to choose how much is verified: one learned width per step, and rows that are run and not accepted."""

from __future__ import annotations

import pytest
import torch

from dspark_ops import Device
from dspark_ops.decode import (
    DecodeOptions,
    Model,
    Request,
    SamplingParams,
    StaticPolicy,
    ThresholdPolicy,
    decode_plain,
    generate,
    verify_width,
)
from dspark_ops.decode.doubles import OracleDrafter
from dspark_ops.decode.options import Execution, VerifyMode
from dspark_ops.decode.sps import AdditiveStepTime, MeasuredRates
from dspark_ops.decode.uniform_policy import UniformPolicy
from dspark_ops.decode.v41.synthetic import random_weights, small_config
from dspark_ops.errors import ConfigError, ModelError

CONFIG = small_config()
STEEP = MeasuredRates((1, 48), (48.0, 1.0), "linear")
FLAT = MeasuredRates((1, 512), (1.0, 1.0))


@pytest.fixture(scope="module")
def model() -> Model:
    return Model(CONFIG, random_weights(CONFIG, seed=1), device=Device.simulate("cpu"))


def requests(count: int, tokens: int, temperature: float = 0.0) -> list[Request]:
    generator = torch.Generator().manual_seed(8)
    return [
        Request(
            tuple(torch.randint(5, 97, (3 + number,), generator=generator).tolist()),
            tokens + number,
            SamplingParams(temperature, seed=number),
        )
        for number in range(count)
    ]


def observed(scheduler: object, steps: int, correct: int) -> list[int]:
    """Return the widths that a scheduler chooses while one request accepts `correct` drafts, as far as they are run."""
    widths = []
    for _ in range(steps):
        width = scheduler.width(1)  # type: ignore[attr-defined]
        scheduler.observe([min(correct, width - 1) + 1], [width])  # type: ignore[attr-defined]
        widths.append(width)
    return widths


def test_the_width_follows_what_was_accepted_and_every_64th_choice_explores() -> None:
    # Position 4 must be reached once before any other width is taken, so the first intervals accept everything.
    scheduler = UniformPolicy(STEEP).scheduler(None, 5)
    assert set(observed(scheduler, 96, 5)) == {6}
    low = observed(scheduler, 32 * 30, 0)
    assert set(low[:64]) == {6}
    assert low[-60:].count(2) == 59 and [number for number, width in enumerate(low, 97) if width == 6][-1] % 64 == 0
    assert set(observed(UniformPolicy(FLAT).scheduler(None, 5), 300, 5)) == {6}


def test_a_forced_width_is_always_taken_and_widths_beyond_a_short_block_are_left_out() -> None:
    assert set(observed(UniformPolicy(STEEP, forced=3).scheduler(None, 5), 130, 0)) == {3}
    assert set(observed(UniformPolicy(STEEP).scheduler(None, 1), 130, 0)) == {2}
    with pytest.raises(ConfigError, match="forced verify width is 4"):
        UniformPolicy(STEEP, forced=4).scheduler(None, 5)
    with pytest.raises(ConfigError, match="AdditiveStepTime: wanted rates by number of tokens"):
        UniformPolicy(AdditiveStepTime(1.0, (1,), (0.0,), (1, 2), (0.0, 1.0))).scheduler(None, 5)


def test_a_step_cut_short_by_the_context_counts_for_the_width_that_it_fills() -> None:
    scheduler = UniformPolicy(STEEP).scheduler(None, 5)
    for _ in range(64):
        scheduler.observe([1], [1])
        scheduler.observe([4], [5])
    table = scheduler._histogram.snapshot().counts()  # type: ignore[attr-defined]
    assert [sum(row) for row in table] == [0, 64, 0] and table[1][2] == 64


@pytest.mark.parametrize("execution", [Execution.PACKED, Execution.FOLDED])
@pytest.mark.parametrize("forced", [2, 3, 6])
def test_every_width_gives_the_tokens_of_plain_decoding(model: Model, execution: Execution, forced: int) -> None:
    asked = requests(2, 8)
    wanted = [result.tokens for result in decode_plain(model, asked).results]
    options = DecodeOptions(max_batch=2, policy=UniformPolicy(STEEP, forced=forced), execution=execution)
    found = generate(model, asked, options)
    assert [result.tokens for result in found.results] == wanted
    assert found.metrics.verified_rows == forced * found.metrics.verify_steps
    if execution is Execution.FOLDED:
        assert found.metrics.folded == found.metrics.forwards


def test_a_loop_learns_from_what_its_steps_accept(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verify_width, "INTERVAL", 2)
    asked, options = requests(1, 50), DecodeOptions(ignore_eos=True)
    wanted = decode_plain(model, asked, options).results[0].tokens
    # Every draft is right, so every position is observed at once; rates that fall steeply favour two rows even so.
    drafter = OracleDrafter([asked[0].prompt + wanted], CONFIG.vocab, 8)
    rates = MeasuredRates((1, 2, 3, 6), (100.0, 99.0, 9.0, 1.0), "linear")
    found = generate(model, asked, DecodeOptions(policy=UniformPolicy(rates), ignore_eos=True), drafter)
    assert found.results[0].tokens == wanted
    # The update at step 4 reads the counts of steps 1 and 2: four whole blocks, 24 tokens, then two tokens per step.
    assert found.metrics.histogram == {6: 4, 2: 13}
    assert found.metrics.verified_rows == 4 * 6 + 13 * 2


@pytest.mark.parametrize("temperature", [0.0, 0.9])
@pytest.mark.parametrize("execution", [Execution.PACKED, Execution.STATIC])
@pytest.mark.parametrize("policy", [StaticPolicy(2), ThresholdPolicy(0.5)])
def test_rows_that_are_run_and_not_accepted_change_nothing_but_the_rows(
    model: Model, temperature: float, execution: Execution, policy: object
) -> None:
    asked = requests(2, 8, temperature)
    both = [
        generate(model, asked, DecodeOptions(max_batch=2, policy=policy, execution=execution, verify_mode=mode))  # type: ignore[arg-type]
        for mode in VerifyMode
    ]
    compact, capped = both
    assert [result.tokens for result in capped.results] == [result.tokens for result in compact.results]
    same = ("emitted", "accepted", "verify_steps", "cut_by_schedule", "histogram", "reached", "correct", "trimmed")
    assert {name: getattr(capped.metrics, name) for name in same} == {
        name: getattr(compact.metrics, name) for name in same
    }
    assert capped.metrics.verified_rows == 6 * capped.metrics.verify_steps > compact.metrics.verified_rows
    assert compact.metrics.capped == 0


def test_capped_drafts_are_those_that_the_whole_block_would_have_accepted(model: Model) -> None:
    asked = requests(1, 21)
    wanted = decode_plain(model, asked, DecodeOptions(ignore_eos=True)).results[0].tokens
    drafter = OracleDrafter([asked[0].prompt + wanted], CONFIG.vocab, 4)
    options = DecodeOptions(policy=StaticPolicy(2), verify_mode=VerifyMode.CAP_ACCEPT, ignore_eos=True)
    metrics = generate(model, asked, options, drafter).metrics
    assert metrics.verify_steps == 10 and metrics.accepted == 10
    assert metrics.capped == 9 * 3 + 1  # where the known continuation ends, two drafts are right


def test_a_width_per_step_is_refused_where_it_would_mean_nothing(model: Model) -> None:
    options = DecodeOptions(policy=UniformPolicy(), verify_mode=VerifyMode.CAP_ACCEPT)
    with pytest.raises(ModelError, match="cannot be chosen: verify mode is 'cap-accept': wanted 'static'"):
        generate(model, requests(1, 3), options)
