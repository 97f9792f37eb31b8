"""Nothing is rewound: after every cycle the readable caches are those of a fresh prefill, whatever was rejected."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from dspark_ops import Device
from dspark_ops.contracts.layouts import KV_V4
from dspark_ops.decode import DecodeOptions, Generation, Model, Request, generate
from dspark_ops.decode.doubles import OracleDrafter
from dspark_ops.decode.plain import decode_plain
from dspark_ops.decode.v41.rows import Rows
from dspark_ops.decode.v41.state import DecodeState
from dspark_ops.decode.v41.synthetic import random_weights, small_config

CONFIG = small_config()
GENERATOR = torch.Generator().manual_seed(11)
# Their lengths put the first block on an even and on an odd position, before and behind the ring's first turn.
PROMPTS = [tuple(torch.randint(5, 97, (length,), generator=GENERATOR).tolist()) for length in (5, 8, 121, 126)]


@pytest.fixture(scope="module")
def model() -> Model:
    return Model(CONFIG, random_weights(CONFIG, seed=2), device=Device.simulate("cpu"))


def fresh(model: Model, tokens: list[int]) -> dict[str, torch.Tensor]:
    """The readable state after a prefill of these tokens."""
    state, ops = model.state(1), model.ops()
    rows = Rows.of([(0, position, token) for position, token in enumerate(tokens)])
    output = model.target.forward(ops.at(site="verify"), state, rows)
    model.drafter.commit(ops.at(site="commit"), state, rows, output.features)
    return state.readable(0, len(tokens))


def watched(
    model: Model, monkeypatch: pytest.MonkeyPatch, after: Callable[[DecodeState, list[int]], None]
) -> Generation:
    """Decode each prompt by itself and call `after` with the state and the tokens behind every cycle."""
    results = []
    create = Model.state
    for prompt in PROMPTS:
        states: list[DecodeState] = []

        def made(own: Model, *sizes: int, states: list[DecodeState] = states) -> DecodeState:
            states.append(create(own, *sizes))
            return states[-1]

        monkeypatch.setattr(Model, "state", made)
        tokens = list(prompt)

        def show(_: int, new: tuple[int, ...], tokens: list[int] = tokens, states: list[DecodeState] = states) -> None:
            tokens += new
            after(states[0], tokens)

        request = Request(prompt, max_tokens=14)
        results += generate(model, [request], DecodeOptions(check_invariants=True), on_tokens=show).results
        monkeypatch.undo()
    return Generation(tuple(results))


def test_after_every_cycle_the_readable_bytes_are_those_of_a_fresh_prefill(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared = []

    def compare(state: DecodeState, tokens: list[int]) -> None:
        if len(compared) % 5 == 0:  # a prefill for each cycle would be slow
            found, wanted = state.readable(0, len(tokens) - 1), fresh(model, tokens[:-1])
            assert found.keys() == wanted.keys()
            for name in wanted:
                assert torch.equal(found[name], wanted[name]), f"{name} differs behind {len(tokens)} tokens"
        compared.append(len(tokens))

    watched(model, monkeypatch, compare)
    assert len(compared) > 40


def poison(state: DecodeState, length: int) -> None:
    """Overwrite everything but the readable rows of request 0 with bytes that decode to NaN."""
    geometry, config = state.geometry, state.geometry.config
    recent = torch.arange(max(0, length - config.window), length)
    owner = torch.zeros_like(recent)
    kept = [(cache, geometry.window_slot(owner, recent)) for cache in state.window]
    kept += [(cache, geometry.context_slot(owner, recent)) for cache in state.draft]
    for source, cache in state.compressed.items():
        entries = torch.arange(length // config.ratios[source])
        kept.append((cache, geometry.compressed_slot(torch.zeros_like(entries), entries, config.ratios[source])))
    for cache, slots in kept:
        data, scales = KV_V4.views(cache, 64)
        page, offset = slots // 64, slots % 64
        saved = data[page, offset].clone(), scales[page, offset].clone()
        cache.fill_(0xFF)
        data[page, offset], scales[page, offset] = saved
    for ring in state.open_groups.values():
        row = (length - 1) % geometry.open_ring
        saved_row = ring[row].clone()
        ring.fill_(float("nan"))
        if length % 2:
            ring[row] = saved_row


def test_poison_in_everything_that_is_stale_changes_no_token(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    poisoned = watched(model, monkeypatch, lambda state, tokens: poison(state, len(tokens) - 1))
    clean = decode_plain(model, [Request(prompt, max_tokens=14) for prompt in PROMPTS])
    assert [result.tokens for result in poisoned.results] == [result.tokens for result in clean.results]


def test_a_slot_that_is_used_again_shows_nothing_of_its_last_request(model: Model) -> None:
    requests = [Request(PROMPTS[number % 4][:40], max_tokens=6) for number in range(4)]
    alone = [decode_plain(model, [request]).results[0].tokens for request in requests]
    known = [request.prompt + tokens for request, tokens in zip(requests, alone, strict=True)]
    for drafter in (None, OracleDrafter(known, CONFIG.vocab, 2)):
        found = generate(model, requests, DecodeOptions(max_batch=2, check_invariants=True), drafter=drafter)
        assert [result.tokens for result in found.results] == alone


def test_no_two_requests_or_positions_in_reach_share_a_slot() -> None:
    geometry = DecodeState.empty(CONFIG, 3).geometry
    for start in (0, 100, 160):
        positions = torch.arange(max(0, start - CONFIG.window + 1), start + 64)
        slots = torch.cat([geometry.window_slot(torch.tensor(request), positions) for request in range(3)])
        assert slots.unique().numel() == slots.numel()
    blocks = torch.cat([geometry.block_slot(torch.tensor(request), torch.arange(8)) for request in range(3)])
    contexts = torch.cat([geometry.context_slot(torch.tensor(request), torch.arange(16)) for request in range(3)])
    assert torch.cat([blocks, contexts]).unique().numel() == 3 * 24
    for ratio in (1, 2):
        entries = torch.arange(CONFIG.max_positions // ratio)
        slots = torch.cat([geometry.compressed_slot(torch.tensor(request), entries, ratio) for request in range(3)])
        assert slots.unique().numel() == slots.numel()
        assert int(slots.min()) >= 64 and int(slots.max()) < geometry.compressed_pages(ratio) * 64
