"""The service: requests join, wait, are cancelled and end, and each gives what it would give alone."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import pytest
import torch

from dspark_ops import Device
from dspark_ops.decode import DecodeOptions, Finish, Model, Request, Result, SamplingParams, decode_plain, generate
from dspark_ops.decode.options import Execution
from dspark_ops.decode.runtimes.runtime_set import RuntimeSet
from dspark_ops.decode.serving import Service, ServiceLoad, Update
from dspark_ops.decode.tokenizer import TextTokenizer
from dspark_ops.decode.v41.synthetic import random_weights, small_config
from dspark_ops.errors import ModelError

CONFIG = small_config(vocab_size=300, num_hidden_layers=4)
PAGED = DecodeOptions(max_batch=4, cache_pages=3)


@pytest.fixture(scope="module")
def model(letter_tokenizer: TextTokenizer) -> Model:
    return Model(CONFIG, random_weights(CONFIG, seed=6), device=Device.simulate("cpu"), tokenizer=letter_tokenizer)


def prompt(length: int, seed: int = 0) -> tuple[int, ...]:
    generator = torch.Generator().manual_seed(100 * seed + length)
    return tuple(torch.randint(5, 290, (length,), generator=generator).tolist())


@pytest.fixture(scope="module")
def alone(model: Model) -> tuple[int, ...]:
    return decode_plain(model, [Request(prompt(7), 30)]).results[0].tokens


def drained(service: Service, before: Sequence[Update] = ()) -> tuple[dict[int, Result], dict[int, str]]:
    """Return all results and streamed texts of a service, given the updates that it has made before."""
    updates = list(before)
    while service:
        updates += service.step()
    results: dict[int, Result] = {}
    texts: dict[int, str] = defaultdict(str)
    tokens: dict[int, tuple[int, ...]] = defaultdict(tuple)
    for update in updates:
        assert update.number not in results
        texts[update.number] += update.text
        tokens[update.number] += update.tokens
        if update.result is not None:
            results[update.number] = update.result
    assert all(result.tokens == tokens[number] for number, result in results.items())
    return results, texts


@pytest.mark.parametrize("execution", [Execution.PACKED, Execution.FOLDED])
def test_requests_that_join_later_give_what_they_give_alone(model: Model, execution: Execution) -> None:
    asked = [Request(prompt(length, 1), 4 + length % 7) for length in (5, 12, 3, 9)]
    asked.append(Request(prompt(6, 1), 9, SamplingParams(0.9, seed=4)))
    wanted = [generate(model, [request]).results[0].tokens for request in asked]
    service = Service(model, DecodeOptions(max_batch=2, execution=execution))
    numbers = [service.submit(request) for request in asked[:2]]
    updates = service.step()
    for request in asked[2:]:
        numbers.append(service.submit(request))
        updates += service.step()
    results, _ = drained(service, updates)
    assert [results[number].tokens for number in numbers] == wanted
    metrics = service.metrics()
    assert metrics.emitted == sum(map(len, wanted)) and metrics.prefills == 5
    assert service.load().running == service.load().waiting == 0 and service.step() == []


@pytest.mark.parametrize("late", [False, True])
def test_a_stop_string_ends_a_request_wherever_it_lies_in_a_block(
    model: Model, alone: tuple[int, ...], late: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = model.text().decode(alone)
    stop = text[9:12]
    cut = text.index(stop)
    monkeypatch.setattr(RuntimeSet, "captured", late)
    execution = Execution.FOLDED if late else Execution.PACKED
    service = Service(model, DecodeOptions(max_batch=2, execution=execution))
    number = service.submit(Request(prompt(7), 30, stop=(stop, "no such")))
    other = service.submit(Request(prompt(7), 30))
    results, texts = drained(service)
    assert (results[number].finish, results[number].text, texts[number]) == (Finish.STOP, text[:cut], text[:cut])
    kept = results[number].tokens
    assert kept == alone[: len(kept)] and stop in model.text().decode(kept)
    assert stop not in model.text().decode(kept[:-1])
    assert results[other].tokens == alone and texts[other] == text
    metrics = service.metrics()
    assert metrics.emitted == metrics.prefills + metrics.accepted + metrics.verify_steps - metrics.trimmed
    plain = decode_plain(model, [Request(prompt(7), 30, stop=(stop,))]).results[0]
    assert (plain.tokens, plain.text, plain.finish) == (kept, text[:cut], Finish.STOP)


@pytest.mark.parametrize("late", [False, True])
def test_a_cancelled_request_leaves_at_once_and_disturbs_nobody(
    model: Model, alone: tuple[int, ...], late: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RuntimeSet, "captured", late)
    execution = Execution.FOLDED if late else Execution.PACKED
    service = Service(model, DecodeOptions(max_batch=2, execution=execution, cache_pages=4))
    first, second, third = (service.submit(Request(prompt(length), 30)) for length in (9, 7, 7))
    updates = service.step() + service.step()
    assert service.cancel(first) and not service.cancel(first)
    assert (service.load().running, service.load().waiting, service.load().used_pages) == (1, 1, 1)
    assert service.cancel(third) and not service.cancel(99)
    fourth = service.submit(Request(prompt(7), 30))
    results, _ = drained(service, updates)
    assert results[first].finish is results[third].finish is Finish.CANCELLED
    assert results[first].tokens == sum((update.tokens for update in updates if update.number == first), ())
    assert results[third].tokens == ()
    before = sum((update.tokens for update in updates if update.number == second), ())
    assert before == alone[: len(before)]
    assert (results[second].tokens, results[fourth].tokens) == (alone, alone)
    assert service.load().used_pages == 0


def test_too_few_pages_let_a_request_wait_in_order_and_never_share_one(model: Model) -> None:
    long, short = Request(prompt(120), 12), Request(prompt(5), 12)  # two pages, and one
    wanted = [generate(model, [request]).results[0].tokens for request in (long, short)]
    service = Service(model, PAGED)
    numbers = [service.submit(request) for request in (long, long, short, short)]
    assert service.load() == ServiceLoad(running=0, waiting=4, used_pages=0, pages=3, short_of_pages=0)
    first = service.step()
    assert service.load() == ServiceLoad(running=1, waiting=3, used_pages=2, pages=3, short_of_pages=1)
    results, _ = drained(service, first)
    assert [results[number].tokens for number in numbers] == [wanted[0], wanted[0], wanted[1], wanted[1]]
    assert service.load().used_pages == 0


def test_pages_in_any_order_hold_what_a_whole_context_holds(model: Model) -> None:
    asked = [Request(prompt(length, 2), 10) for length in (126, 4, 60)]
    wanted = [result.tokens for result in generate(model, asked, DecodeOptions(max_batch=2)).results]
    options = DecodeOptions(max_batch=3, cache_pages=4, execution=Execution.STATIC)
    assert [result.tokens for result in generate(model, asked, options).results] == wanted
    assert [result.tokens for result in decode_plain(model, asked, PAGED).results] == wanted


def test_pages_lie_apart_and_positions_without_one_belong_to_nobody(model: Model) -> None:
    state = model.state(2, shared=3)
    positions = torch.arange(CONFIG.max_positions)
    geometry = state.geometry
    for ratio in (1, 2):
        for request, pages in ((0, (2, 0)), (1, (1,)), (0, (1,)), (1, (0, 2))):
            state.own(request, pages)
            entries = positions[: CONFIG.max_positions // ratio]
            slots = geometry.compressed_slot(torch.full_like(entries, request), entries, ratio)
            share = 128 // ratio
            owned = [*pages, 3][: -(-len(entries) // share)]  # page 3 is one more than there are to own
            wanted = torch.cat([64 + page * share + torch.arange(share) for page in owned])[: len(entries)]
            assert torch.equal(slots, wanted)
            assert int(slots.max()) < 64 * geometry.compressed_pages(ratio)
            located = geometry.compressor_out_loc(torch.full_like(positions, request), positions, ratio)
            assert torch.equal(located // ratio, slots.repeat_interleave(ratio)[: len(positions)])


@pytest.mark.parametrize(
    ("request_", "text"),
    [
        (Request(prompt(200), 60), "needs 2 pages of the caches for 200 tokens and up to 60 more, and there are 1"),
        (Request(()), "is empty"),
        (Request(prompt(3), stop=("",)), "has an empty stop string"),
    ],
)
def test_a_request_that_can_never_be_served_is_refused_when_it_comes(
    model: Model, request_: Request, text: str
) -> None:
    service = Service(model, DecodeOptions(cache_pages=1))
    with pytest.raises(ModelError, match=text):
        service.submit(request_)
    assert not service


def test_stop_strings_need_a_tokenizer() -> None:
    bare = Model(CONFIG, random_weights(CONFIG, seed=6), device=Device.simulate("cpu"))
    with pytest.raises(ModelError, match="has stop strings, and the model has no tokenizer"):
        generate(bare, [Request(prompt(3), stop=("x",))])
    with pytest.raises(ModelError, match="cache_pages is -1"):
        Service(bare, DecodeOptions(cache_pages=-1))
