"""The loop's book-keeping: ends, counts, streaming, reuse of slots, and what is refused before anything runs."""

from __future__ import annotations

import pytest
import torch

from dspark_ops import Device
from dspark_ops.decode import (
    DecodeMetrics,
    DecodeOptions,
    Finish,
    Model,
    Request,
    StaticPolicy,
    ThresholdPolicy,
    decode_plain,
    generate,
)
from dspark_ops.decode.calibration import Calibration
from dspark_ops.decode.doubles import OracleDrafter
from dspark_ops.decode.invariants import Ledger
from dspark_ops.decode.options import Execution
from dspark_ops.decode.packing import VerifyRows
from dspark_ops.decode.running import Running
from dspark_ops.decode.v41.rows import Rows
from dspark_ops.decode.v41.synthetic import random_weights, small_config
from dspark_ops.errors import InvariantError, ModelError

CONFIG = small_config()
PROMPT = tuple(torch.randint(5, 97, (9,), generator=torch.Generator().manual_seed(8)).tolist())


@pytest.fixture(scope="module")
def model() -> Model:
    return Model(CONFIG, random_weights(CONFIG, seed=1), device=Device.simulate("cpu"))


@pytest.fixture(scope="module")
def continuation(model: Model) -> tuple[int, ...]:
    return decode_plain(model, [Request(PROMPT, 40)]).results[0].tokens


def always_right(continuation: tuple[int, ...], count: int = 1) -> OracleDrafter:
    return OracleDrafter([PROMPT + continuation] * count, CONFIG.vocab, 8)


def with_eos(model: Model, token: int) -> Model:
    """The same model, with another end-of-text token."""
    changed = small_config(eos_token_id=token)
    return Model(changed, random_weights(CONFIG, seed=1), device=Device.simulate("cpu"))


@pytest.mark.parametrize("most", [1, 2, 5, 6, 7, 13])
def test_exactly_the_tokens_asked_for_are_emitted_and_the_rest_is_counted_as_trimmed(
    model: Model, continuation: tuple[int, ...], most: int
) -> None:
    found = generate(model, [Request(PROMPT, most)], drafter=always_right(continuation))
    result, metrics = found.results[0], found.metrics
    assert (result.tokens, result.finish) == (continuation[:most], Finish.MAX_TOKENS)
    assert metrics.emitted == most
    assert metrics.verify_steps == -(-(most - 1) // 6)
    assert metrics.emitted == metrics.prefills + metrics.accepted + metrics.verify_steps - metrics.trimmed


@pytest.mark.parametrize("at", [0, 1, 3, 6, 7])
def test_output_ends_with_the_end_of_text_token_wherever_it_stands_in_a_block(
    model: Model, continuation: tuple[int, ...], at: int
) -> None:
    end = continuation[at]
    changed, asked = with_eos(model, end), [Request(PROMPT, 30)]
    wanted = continuation[: continuation.index(end) + 1]
    runs = [
        decode_plain(changed, asked),
        generate(changed, asked),
        generate(changed, asked, drafter=always_right(continuation)),
        generate(changed, asked, DecodeOptions(execution=Execution.FOLDED)),
    ]
    assert [(run.results[0].tokens, run.results[0].finish) for run in runs] == [(wanted, Finish.EOS)] * 4


def test_the_end_of_text_token_may_be_ignored(model: Model, continuation: tuple[int, ...]) -> None:
    changed = with_eos(model, continuation[3])
    found = generate(changed, [Request(PROMPT, 12)], DecodeOptions(ignore_eos=True))
    assert found.results[0].tokens == continuation[:12]


@pytest.mark.parametrize("length", [223, 222, 218])
def test_the_context_ends_a_request_and_no_row_stands_beyond_it(model: Model, length: int) -> None:
    prompt = tuple((PROMPT * 30)[:length])
    plain = decode_plain(model, [Request(prompt, 50)]).results[0]
    assert (len(plain.tokens), plain.finish) == (224 - length, Finish.CONTEXT)
    known = OracleDrafter([prompt + plain.tokens], CONFIG.vocab, 8)
    for drafter in (None, known):
        found = generate(model, [Request(prompt, 50)], DecodeOptions(check_invariants=True), drafter=drafter).results[0]
        assert (found.tokens, found.finish) == (plain.tokens, Finish.CONTEXT)


def test_tokens_are_reported_as_they_come_and_once_each(model: Model, continuation: tuple[int, ...]) -> None:
    calls: list[tuple[int, tuple[int, ...]]] = []
    requests = [Request(PROMPT, 14), Request(PROMPT, 3), Request(PROMPT, 8)]
    options = DecodeOptions(max_batch=2)
    generate(model, requests, options, always_right(continuation, 3), lambda *call: calls.append(call))
    for index, request in enumerate(requests):
        parts = [tokens for number, tokens in calls if number == index]
        assert sum(parts, ()) == continuation[: request.max_tokens]
        assert len(parts[0]) == 1
    assert [len(tokens) for number, tokens in calls if number == 0] == [1, 6, 6, 1]


def test_counts_add_up_over_requests(model: Model, continuation: tuple[int, ...]) -> None:
    requests = [Request(PROMPT, most) for most in (14, 1, 8)]
    drafter = OracleDrafter([PROMPT + continuation] * 3, CONFIG.vocab, 2)
    found = generate(model, requests, DecodeOptions(policy=StaticPolicy(5)), drafter)
    metrics = found.metrics
    assert metrics.emitted == sum(len(result.tokens) for result in found.results) == 23
    assert metrics.prefills == 3
    assert metrics.prompt_rows == 27
    assert sum(metrics.histogram.values()) == metrics.verify_steps == 5 + 0 + 3
    assert metrics.accepted == sum((length - 1) * count for length, count in metrics.histogram.items())
    assert metrics.proposed == 5 * metrics.verify_steps
    assert metrics.cut_by_schedule == metrics.verify_steps
    assert metrics.verified_rows == 5 * metrics.verify_steps
    assert metrics.reached[0] == metrics.verify_steps
    assert metrics.correct[2] == 0 < metrics.reached[2]
    assert metrics.mean_accept_len == pytest.approx(3.0)
    assert metrics.seconds > 0 and metrics.prefill_seconds > 0
    assert metrics.to_json()["histogram"] == {3: 8}


def test_metrics_without_steps_have_no_rates() -> None:
    empty = DecodeMetrics()
    assert (empty.mean_accept_len, empty.tokens_per_step, empty.tokens_per_second) == (0.0, 0.0, 0.0)


@pytest.mark.parametrize(
    ("request_", "expected"),
    [
        (Request(()), "prompt 2 of 2 is empty"),
        (Request((5,) * 224), "prompt 2 of 2 has 224 tokens: wanted at most 223"),
        (Request((5, 97)), r"holds the tokens \[97\]: wanted ids from 0 to 96"),
        (Request((5, -1)), r"holds the tokens \[-1\]"),
        (Request((5,), max_tokens=0), "asks for 0 tokens"),
    ],
)
def test_a_request_that_cannot_be_served_is_refused_before_any_runs(
    model: Model, request_: Request, expected: str
) -> None:
    calls: list[object] = []
    for decode in (generate, decode_plain):
        with pytest.raises(ModelError, match=expected):
            decode(model, [Request(PROMPT), request_], on_tokens=lambda *call: calls.append(call))
    assert calls == []


@pytest.mark.parametrize("gamma", [0, 9, -1])
def test_a_block_length_out_of_range_is_refused(model: Model, gamma: int) -> None:
    with pytest.raises(ModelError, match=f"gamma is {gamma}: wanted 1 to 8"):
        generate(model, [Request(PROMPT)], DecodeOptions(gamma))


def test_calibration_scales_the_confidences_and_changes_no_token(model: Model, continuation: tuple[int, ...]) -> None:
    flat = Calibration((1e3,) * 5)  # every confidence becomes one half
    policy = ThresholdPolicy(0.4)
    found = generate(model, [Request(PROMPT, 20)], DecodeOptions(policy=policy, calibration=flat))
    plain = generate(model, [Request(PROMPT, 20)], DecodeOptions(policy=policy))
    assert found.results[0].tokens == plain.results[0].tokens == continuation[:20]
    assert found.metrics.cut_by_schedule == 0 < plain.metrics.cut_by_schedule
    with pytest.raises(ModelError, match="calibration has 5 temperatures: wanted 3"):
        generate(model, [Request(PROMPT)], DecodeOptions(3, calibration=flat))


@pytest.mark.parametrize("batch", [0, 65])
def test_a_batch_that_a_step_cannot_hold_is_refused(model: Model, batch: int) -> None:
    with pytest.raises(ModelError, match=f"max_batch is {batch}: wanted 1 to 64"):
        generate(model, [Request(PROMPT)], DecodeOptions(max_batch=batch))
    with pytest.raises(ModelError, match="no requests"):
        generate(model, [])


def test_ragged_rows_are_packed_in_order_and_go_back_to_their_places() -> None:
    candidates = torch.tensor([[10, 11, 12], [20, 21, 22], [30, 31, 32]])
    step = VerifyRows.pack(candidates, torch.tensor([4, 5, 6]), torch.tensor([7, 0, 9]), torch.tensor([2, 3, 1]))
    assert step.rows.token.tolist() == [10, 11, 20, 21, 22, 30]
    assert step.rows.request.tolist() == [4, 4, 5, 5, 5, 6]
    assert step.rows.position.tolist() == [7, 8, 0, 1, 2, 9]
    packed = torch.arange(1.0, 7.0).unsqueeze(1)
    assert step.strided(packed).flatten().tolist() == [1, 2, 0, 3, 4, 5, 6, 0, 0]
    assert step.committed(torch.tensor([1, 3, 1])).tolist() == [True, False, True, True, True, True]


@pytest.mark.parametrize("seed", range(4))
def test_verifying_only_the_scheduled_rows_accepts_what_verifying_all_and_capping_does(model: Model, seed: int) -> None:
    """P3: the packed form, whose unverified rows hold zeros, against the capped form, which has all logits."""
    generator = torch.Generator().manual_seed(seed)
    batch, width, vocab = 9, 6, CONFIG.vocab
    logits = torch.randn(batch * width, vocab, generator=generator)
    best = logits.argmax(-1).view(batch, width)
    candidates = torch.cat((torch.full((batch, 1), 7), best[:, :-1]), 1)
    candidates[torch.rand(batch, width, generator=generator) < 0.2] = 3
    lens = torch.randint(1, width + 1, (batch,), generator=generator).int()
    start = torch.arange(batch) * 3
    step = VerifyRows.pack(candidates, torch.arange(batch), start, lens)
    packed = step.strided(logits[step.mask.flatten()])
    ops = model.ops().at(site="verify")
    capped = ops.accept_tail(candidates, logits, start, lens)
    compact = ops.accept_tail(candidates, packed, start, lens)
    kept = torch.arange(width) < capped[3].unsqueeze(1)
    assert all(torch.equal(compact[output], capped[output]) for output in (0, 1, 3, 4))
    assert torch.equal(compact[5][kept], capped[5][kept])
    assert int(capped[2].sum()) > 0


def test_the_ledger_finds_a_loop_that_breaks_its_rules() -> None:
    ledger = Ledger()
    ledger.admit([0])
    ledger.commit(Rows.of([(0, 0, 5), (0, 1, 6)]))
    with pytest.raises(InvariantError, match="slot 0 is fed position 3, wanted 2"):
        ledger.feed(Rows.of([(0, 3, 7)]))
    request = Running(0, Request((5, 6)), slot=0, context=224, tokens=[5, 6, 7])
    ledger.after_cycle([request], [(7,)], gamma=5)
    request.tokens.append(8)
    with pytest.raises(InvariantError, match="4 tokens want 3 committed positions, the target has 2"):
        ledger.after_cycle([request], [(8,)], gamma=5)
    other = Running(0, Request((5, 9)), slot=0, context=224, tokens=[5, 9, 7])
    with pytest.raises(InvariantError, match="fed other tokens than were emitted"):
        ledger.after_cycle([other], [(7,)], gamma=5)
