"""Runtimes: fixed sizes and folded steps give the very tokens of packed steps; what is not prepared is refused."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from dspark_ops import Device
from dspark_ops.decode import (
    DecodeOptions,
    Model,
    PrefixPolicy,
    Request,
    SamplingParams,
    StaticPolicy,
    ThresholdPolicy,
    generate,
)
from dspark_ops.decode.doubles import OracleDrafter
from dspark_ops.decode.folding import FoldFacts, fold_eligible
from dspark_ops.decode.options import Execution, RuntimeOptions
from dspark_ops.decode.running import Running
from dspark_ops.decode.runtimes.buffers import StepBuffers
from dspark_ops.decode.runtimes.replay import CaptureOps, Replay
from dspark_ops.decode.runtimes.runtime import Runtime, RuntimeShape
from dspark_ops.decode.runtimes.runtime_set import RuntimeSet
from dspark_ops.decode.v41.synthetic import random_weights, small_config
from dspark_ops.errors import CaptureError, ModelError

CONFIG = small_config()
LENGTHS = (3, 9, 17, 5, 12)


def prompts() -> list[tuple[int, ...]]:
    generator = torch.Generator().manual_seed(3)
    return [tuple(torch.randint(5, 97, (length,), generator=generator).tolist()) for length in LENGTHS]


def requests(tokens: int = 14, sampled: int = 0) -> list[Request]:
    """Requests of different lengths, of which the first `sampled` are sampled."""
    return [
        Request(prompt, tokens + number, SamplingParams(0.8 if number < sampled else 0.0, seed=number))
        for number, prompt in enumerate(prompts())
    ]


@pytest.fixture(scope="module")
def model() -> Model:
    return Model(CONFIG, random_weights(CONFIG, seed=1), device=Device.simulate("cpu"))


@pytest.fixture(scope="module")
def packed(model: Model) -> list[tuple[int, ...]]:
    return [result.tokens for result in generate(model, requests(), DecodeOptions(max_batch=3)).results]


def tokens_of(model: Model, options: DecodeOptions, asked: list[Request] | None = None) -> list[tuple[int, ...]]:
    return [result.tokens for result in generate(model, asked or requests(), options).results]


@pytest.mark.parametrize("execution", [Execution.STATIC, Execution.GRAPH, Execution.FOLDED])
@pytest.mark.parametrize("batch", [1, 3])
def test_fixed_sizes_give_the_tokens_of_packed_steps(
    model: Model, packed: list[tuple[int, ...]], execution: Execution, batch: int
) -> None:
    assert tokens_of(model, DecodeOptions(max_batch=batch, execution=execution)) == packed


@pytest.mark.parametrize(
    "policy", [StaticPolicy(3), StaticPolicy(1), ThresholdPolicy(0.5), PrefixPolicy(), PrefixPolicy(mode="global")]
)
@pytest.mark.parametrize("execution", [Execution.STATIC, Execution.FOLDED])
def test_every_policy_keeps_the_tokens(
    model: Model, packed: list[tuple[int, ...]], execution: Execution, policy: object
) -> None:
    options = DecodeOptions(max_batch=3, execution=execution, policy=policy)  # type: ignore[arg-type]
    assert tokens_of(model, options) == packed


@pytest.mark.parametrize("gamma", [1, 4, 7])
def test_every_block_length_keeps_the_tokens(model: Model, packed: list[tuple[int, ...]], gamma: int) -> None:
    assert tokens_of(model, DecodeOptions(gamma, max_batch=3, execution=Execution.FOLDED)) == packed


def test_a_host_that_reads_one_step_late_sees_the_same(
    model: Model, packed: list[tuple[int, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RuntimeSet, "captured", True)
    options = DecodeOptions(max_batch=2, execution=Execution.FOLDED)
    found = generate(model, requests(), options)
    assert [result.tokens for result in found.results] == packed
    steps = generate(model, requests(), DecodeOptions(max_batch=2)).metrics
    counts = ("emitted", "accepted", "verify_steps", "verified_rows", "trimmed", "histogram")
    assert {name: getattr(found.metrics, name) for name in counts} == {name: getattr(steps, name) for name in counts}
    assert found.metrics.folded == found.metrics.forwards >= steps.forwards


@pytest.mark.parametrize("late", [False, True])
def test_requests_that_leave_and_enter_take_over_rows(
    model: Model, late: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RuntimeSet, "captured", late)
    asked = [Request(prompt, 1 + 5 * (number % 3)) for number, prompt in enumerate(prompts() + prompts())]
    wanted = tokens_of(model, DecodeOptions(max_batch=1), asked)
    assert tokens_of(model, DecodeOptions(max_batch=3, execution=Execution.FOLDED), asked) == wanted


def test_a_request_ends_with_the_context_in_a_folded_step(model: Model) -> None:
    prompt = (prompts()[2] * 12)[: CONFIG.max_positions - 20]
    asked = [Request(prompt, CONFIG.max_positions)]
    wanted = generate(model, asked, DecodeOptions(ignore_eos=True)).results[0]
    found = generate(model, asked, DecodeOptions(ignore_eos=True, execution=Execution.FOLDED)).results[0]
    assert (found.tokens, found.finish) == (wanted.tokens, wanted.finish)
    assert len(found.tokens) == 20


@pytest.mark.parametrize("execution", [Execution.STATIC, Execution.FOLDED])
@pytest.mark.parametrize("sampled", [2, 5])
def test_sampled_requests_draw_the_same_tokens(model: Model, execution: Execution, sampled: int) -> None:
    asked = requests(sampled=sampled)
    wanted = tokens_of(model, DecodeOptions(max_batch=3), asked)
    assert tokens_of(model, DecodeOptions(max_batch=3, execution=execution), asked) == wanted


def test_a_batch_that_becomes_greedy_is_folded_from_then_on_and_reasons_are_counted(model: Model) -> None:
    asked = requests(sampled=1)
    metrics = generate(model, asked, DecodeOptions(max_batch=5, execution=Execution.FOLDED)).metrics
    assert metrics.folded > 0
    assert metrics.unfolded["a request is sampled"] == metrics.forwards - metrics.folded > 0


def test_a_single_request_takes_the_solo_block(model: Model, packed: list[tuple[int, ...]]) -> None:
    options = DecodeOptions(
        max_batch=2, execution=Execution.FOLDED, runtimes=RuntimeOptions(solo_gamma=7), ignore_eos=False
    )
    found = generate(model, requests(), options)
    assert [result.tokens for result in found.results] == packed
    alone = generate(model, requests()[:1], options).metrics
    assert alone.proposed == 7 * alone.verify_steps


def test_an_outside_drafter_is_not_folded_and_keeps_the_tokens(model: Model, packed: list[tuple[int, ...]]) -> None:
    known = [prompt + tokens for prompt, tokens in zip(prompts(), packed, strict=True)]
    options = DecodeOptions(max_batch=3, execution=Execution.FOLDED)
    found = generate(model, requests(), options, drafter=OracleDrafter(known, CONFIG.vocab, 3))
    assert [result.tokens for result in found.results] == packed
    assert (found.metrics.folded, set(found.metrics.unfolded)) == (0, {"drafts come from outside the runtime"})


def test_checked_steps_hold_in_runtimes_and_are_not_folded(model: Model, packed: list[tuple[int, ...]]) -> None:
    options = DecodeOptions(max_batch=2, execution=Execution.FOLDED, check_invariants=True)
    found = generate(model, [Request(prompt, 4) for prompt in prompts()[:2]], options)
    assert [result.tokens for result in found.results] == [tokens[:4] for tokens in packed[:2]]
    assert set(found.metrics.unfolded) == {"every step is checked on the host"}


def test_the_first_reason_that_applies_is_given() -> None:
    running = [Running(0, Request((5,), sampling=SamplingParams(1.0)), 0, 32)]
    assert fold_eligible(FoldFacts(True, True, False), running) == "a request is sampled"
    assert fold_eligible(FoldFacts(False, False, True), running) == "drafts come from outside the runtime"
    assert fold_eligible(FoldFacts(True, False, True), running) == "the verify schedule needs the host"
    assert fold_eligible(FoldFacts(True, True, False), []) == ""


def runtimes_of(model: Model, options: DecodeOptions, batch: int) -> RuntimeSet:
    stops = torch.zeros(0, dtype=torch.int64)
    return RuntimeSet(model, model.state(batch), options, batch, stops)


def test_sizes_are_powers_of_two_up_to_the_batch_and_buffers_fit_the_longest_block(model: Model) -> None:
    options = DecodeOptions(execution=Execution.STATIC, runtimes=RuntimeOptions(solo_gamma=7))
    runtimes = runtimes_of(model, options, 6)
    assert runtimes.primary.shape == RuntimeShape(5, (2, 3, 6), (1, 2, 4, 6))
    assert runtimes.buffers.drafts.shape == (6, 7)
    assert runtimes.rows == 36
    assert runtimes_of(model, options, 1).rows == 8


def test_many_requests_with_short_accepts_take_the_narrow_runtime(model: Model) -> None:
    runtimes = runtimes_of(model, DecodeOptions(execution=Execution.STATIC), 9)
    for _ in range(7):
        runtimes.observe([2, 2])
    assert runtimes.choose(8).shape.gamma == 5
    runtimes.observe([2, 2])
    assert runtimes.choose(8).shape == RuntimeShape(2, (3,), (8, 9))
    assert runtimes.choose(7).shape.gamma == 5
    runtimes.observe([6])
    assert runtimes.choose(8).shape.gamma == 5  # (7 * 2 + 6) / 8 = 2.5


def test_the_verify_width_is_the_narrowest_prepared_one_that_fits(model: Model) -> None:
    for rows, width in ((1, 2), (2, 2), (3, 3), (4, 6), (6, 6)):
        runtimes = runtimes_of(model, DecodeOptions(policy=StaticPolicy(rows), execution=Execution.STATIC), 2)
        assert runtimes.width(runtimes.primary, 2) == width


@pytest.mark.parametrize(
    ("options", "batch", "text"),
    [
        (RuntimeOptions(sizes=(1, 2)), 3, "runtime sizes end at 2, and up to 3 requests run at once"),
        (RuntimeOptions(solo_gamma=9), 1, "solo gamma is 9: wanted at most 8 drafts per block"),
    ],
)
def test_runtimes_that_cannot_be_are_refused(model: Model, options: RuntimeOptions, batch: int, text: str) -> None:
    with pytest.raises(ModelError, match=text):
        runtimes_of(model, DecodeOptions(execution=Execution.STATIC, runtimes=options), batch)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"sizes": (0,)}, r"runtime sizes are \[0\]: wanted numbers of requests from 1"),
        ({"extra_widths": (1,)}, r"extra verify widths are \[1\]: wanted 2 or more, the anchor included"),
        ({"solo_gamma": -1}, r"solo gamma is -1: wanted 0 \(none\) or drafts per block"),
    ],
)
def test_options_that_cannot_be_are_refused(arguments: dict[str, object], text: str) -> None:
    with pytest.raises(ModelError, match=text):
        RuntimeOptions(**arguments)  # type: ignore[arg-type]


def test_a_step_that_is_not_prepared_is_refused_by_name(model: Model) -> None:
    runtimes = runtimes_of(model, DecodeOptions(execution=Execution.STATIC), 2)
    with pytest.raises(CaptureError, match="a step of 3 requests is not prepared with 5 drafts: prepared are 1, 2"):
        runtimes.primary.draft(3)
    with pytest.raises(CaptureError, match="a verify step of 4 rows per request is not prepared: prepared are 2, 3, 6"):
        runtimes.primary.verify(2, 4)
    with pytest.raises(CaptureError, match="the draft is not prepared: call prepare"):
        Replay("the draft", lambda: torch.zeros(1), captured=True)()


def test_an_operator_that_cannot_be_captured_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    held = [0]

    def reads(x: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("operation not permitted when stream is capturing\nmore")

    def hoards(x: torch.Tensor) -> torch.Tensor:
        held[0] += 4096 + 512  # a workspace, and what is returned
        return x + 1

    def fine(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        held[0] += 512
        return x + 1, x

    ops = CaptureOps(SimpleNamespace(reads=reads, hoards=hoards, fine=fine))
    x = torch.ones(8)
    capturing = False
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: capturing)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda: held[0])
    assert torch.equal(ops.hoards(x), x + 1)
    capturing = True
    with pytest.raises(
        CaptureError, match="reads cannot be captured: operation not permitted when stream is capturing;"
    ):
        ops.reads(x)
    with pytest.raises(
        CaptureError, match="hoards keeps 4608 bytes that it allocated inside a capture, and returns 512"
    ):
        ops.hoards(x)
    assert torch.equal(ops.fine(x)[0], x + 1)


def test_buffers_do_not_grow(model: Model) -> None:
    scheduler = StaticPolicy().scheduler(None, 5)
    with pytest.raises(CaptureError, match="buffers hold 2 requests of 5 drafts, a runtime needs 2 of 7"):
        Runtime(
            model, model.state(2), StepBuffers.empty(2, 5, "cpu"), RuntimeShape(7, (8,), (1, 2)), scheduler, None,
            torch.zeros(0, dtype=torch.int64), captured=False,
        )  # fmt: skip


def test_padding_stores_nothing(model: Model) -> None:
    runtimes = runtimes_of(model, DecodeOptions(execution=Execution.STATIC), 2)
    state = model.state(2)
    runtime = Runtime(
        model, state, runtimes.buffers, RuntimeShape(5, (6,), (2,)), StaticPolicy().scheduler(None, 5), None,
        torch.zeros(0, dtype=torch.int64), captured=False,
    )  # fmt: skip
    runtime.draft(2)
    report = runtime.fold(2, 6)
    assert report[:, 6:].tolist() == [[0, 0, 0, 0]] * 2
    caches = [*state.window, *state.compressed.values(), *state.open_groups.values(), *state.draft]
    assert all(int(cache.count_nonzero()) == 0 for cache in caches)
