"""Runtimes on a real GPU: captured steps equal uncaptured ones bit for bit, and cycles do not wait for the host."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from dspark_ops.binding.bound import OpsView
from dspark_ops.binding.capture import captured_in
from dspark_ops.decode import DecodeOptions, Model, Request, StaticPolicy, generate
from dspark_ops.decode.batch import Batch
from dspark_ops.decode.forced import ForcedAcceptance
from dspark_ops.decode.options import Execution, RuntimeOptions
from dspark_ops.decode.runtimes.buffers import StepBuffers
from dspark_ops.decode.runtimes.folded import FoldedSteps
from dspark_ops.decode.runtimes.replay import CaptureOps, Replay
from dspark_ops.decode.runtimes.runtime import Runtime, RuntimeShape
from dspark_ops.decode.runtimes.runtime_set import RuntimeSet
from dspark_ops.decode.v41.synthetic import random_weights, small_config
from dspark_ops.errors import CaptureError
from dspark_ops.selection.probe import probe

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype:UserWarning"),
    pytest.mark.filterwarnings("ignore::dspark_ops.errors.SelectionWarning"),
]

CONFIG = small_config()


@pytest.fixture(scope="module")
def model() -> Model:
    if not torch.cuda.is_available():
        pytest.skip("no GPU")
    weights = {name: tensor.cuda() for name, tensor in random_weights(CONFIG, seed=1).items()}
    return Model(CONFIG, weights, device=probe(0), configuration={"policy": {"fallback": "allow"}})


@pytest.fixture(autouse=True)
def sync_mode() -> Iterator[None]:
    yield
    if torch.cuda.is_available():
        torch.cuda.set_sync_debug_mode("default")


def requests(count: int = 5, tokens: int = 24) -> list[Request]:
    generator = torch.Generator().manual_seed(3)
    lengths = (3, 9, 17, 5, 12)
    return [
        Request(tuple(torch.randint(5, 97, (lengths[n % 5],), generator=generator).tolist()), tokens + n)
        for n in range(count)
    ]


def filled(model: Model, requests: int, seed: int) -> StepBuffers:
    """Buffers of requests at made-up positions, all of them live but the last."""
    generator = torch.Generator().manual_seed(seed)
    buffers = StepBuffers.empty(requests, 5, "cuda")
    buffers.slot.copy_(torch.arange(requests))
    buffers.anchor.copy_(torch.randint(5, 97, (requests,), generator=generator))
    buffers.start.copy_(torch.randint(0, 60, (requests,), generator=generator))
    buffers.live[: requests - 1] = True
    buffers.budget.fill_(50)
    return buffers


def runtime_over(model: Model, state: Any, buffers: StepBuffers, captured: bool) -> Runtime:
    return Runtime(
        model, state, buffers, RuntimeShape(5, (3, 6), (buffers.slot.shape[0],)), StaticPolicy().scheduler(None, 5),
        None, torch.tensor([2], device="cuda"), captured,
    )  # fmt: skip


@pytest.mark.parametrize("width", [3, 6])
def test_replays_with_changed_inputs_equal_the_steps_run_as_they_are(model: Model, width: int) -> None:
    states = [model.state(3) for _ in range(2)]
    held = [filled(model, 3, 0) for _ in range(2)]
    for buffers in held:
        buffers.live.zero_()
    eager = runtime_over(model, states[0], held[0], captured=False)
    graph = runtime_over(model, states[1], held[1], captured=True)
    graph.prepare()
    for seed in range(4):
        fresh = filled(model, 3, seed)
        for buffers in held:
            for name in ("slot", "anchor", "start", "live", "budget"):
                getattr(buffers, name).copy_(getattr(fresh, name))
        proposals = [runtime.draft(3) for runtime in (eager, graph)]
        assert torch.equal(proposals[0].drafts, proposals[1].drafts)
        assert torch.equal(proposals[0].confidence, proposals[1].confidence)
        reports = [runtime.fold(3, width) for runtime in (eager, graph)]
        assert torch.equal(*reports)
        assert reports[0][2, width:].tolist() == [0, 0, 0, 0]
        for name in ("anchor", "start", "live", "budget", "lens"):
            assert torch.equal(*(getattr(buffers, name) for buffers in held))
        for left, right in zip(states[0].window + states[0].draft, states[1].window + states[1].draft, strict=True):
            assert torch.equal(left, right)


@pytest.mark.parametrize("batch", [1, 3])
def test_graphs_and_folded_graphs_give_the_tokens_of_packed_steps(model: Model, batch: int) -> None:
    def decoded(execution: Execution) -> list[tuple[int, ...]]:
        options = DecodeOptions(max_batch=batch, execution=execution, runtimes=RuntimeOptions(solo_gamma=7))
        return [result.tokens for result in generate(model, requests(), options).results]

    packed = decoded(Execution.PACKED)
    assert decoded(Execution.STATIC) == packed
    assert decoded(Execution.GRAPH) == packed
    assert decoded(Execution.FOLDED) == packed


@pytest.mark.parametrize("law", ["two_point", "per_position", "normal_clamped"])
@pytest.mark.parametrize("scope", ["per_request", "per_step"])
def test_drawn_lengths_are_the_same_packed_captured_and_folded(model: Model, law: str, scope: str) -> None:
    def decoded(execution: Execution) -> tuple[list[tuple[int, ...]], object]:
        forced = ForcedAcceptance(3.4, law, scope, seed=4)
        options = DecodeOptions(max_batch=3, execution=execution, forced=forced, ignore_eos=True)
        found = generate(model, requests(3), options)
        assert found.simulated is not None and found.metrics.folded == (
            found.metrics.forwards if execution is Execution.FOLDED else 0
        )
        return [result.tokens for result in found.results], found.simulated["histogram"]

    packed = decoded(Execution.PACKED)
    assert decoded(Execution.GRAPH) == packed
    assert decoded(Execution.FOLDED) == packed


@pytest.mark.parametrize("forced", [None, ForcedAcceptance(3.4)], ids=["real", "simulated"])
def test_folded_cycles_do_not_wait_for_the_host(model: Model, forced: ForcedAcceptance | None) -> None:
    with torch.inference_mode():
        options = DecodeOptions(max_batch=2, execution=Execution.FOLDED, ignore_eos=True, forced=forced)
        batch = Batch(model, requests(2, 60), options, None)
        runtimes = RuntimeSet(model, model.state(2), options, 2, batch.stop_ids)
        runtimes.prepare(sampled=False, unfolded=False, folded=True)
        batch.admit()
        steps = FoldedSteps(runtimes, batch, late=True, forced=forced and forced.start(CONFIG.gamma))
        steps.step(batch.running)
        torch.cuda.set_sync_debug_mode("error")
        try:
            for _ in range(5):
                steps.step(batch.running)
        finally:
            torch.cuda.set_sync_debug_mode("default")
        steps.drain()
        assert all(item.metrics.verify_steps == 6 for item in batch.running)


def test_requests_that_end_and_enter_do_not_wait_for_the_device_either(model: Model) -> None:
    with torch.inference_mode():
        options = DecodeOptions(max_batch=3, execution=Execution.FOLDED, ignore_eos=True)
        asked = [Request(request.prompt, 3 + 7 * (number % 3)) for number, request in enumerate(requests(7))]
        batch = Batch(model, asked, options, None)
        runtimes = RuntimeSet(model, model.state(3), options, 3, batch.stop_ids)
        runtimes.prepare(sampled=False, unfolded=False, folded=True)
        steps = FoldedSteps(runtimes, batch, late=True)
        while batch:
            batch.admit()
            torch.cuda.set_sync_debug_mode("error")
            try:
                steps.step(batch.running)
            finally:
                torch.cuda.set_sync_debug_mode("default")
            batch.retire()
    assert [len(batch.results[number].tokens) for number in range(7)] == [3, 10, 17, 3, 10, 17, 3]


class Ops(OpsView):
    """Operators that a graph cannot hold."""

    __slots__ = ("kept",)

    def reads(self, x: torch.Tensor) -> torch.Tensor:
        """Ask the host."""
        return x * int(x.sum())

    def hoards(self, x: torch.Tensor) -> torch.Tensor:
        """Keep a workspace."""
        kept.append(torch.empty(4096, device="cuda"))
        return x + 1

    def fine(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return two tensors."""
        return x + 1, x + 2


kept: list[torch.Tensor] = []


def captured(name: str) -> None:
    x = torch.ones(8, device="cuda")
    ops = CaptureOps(Ops())
    Replay("a step", lambda: getattr(ops, name)(x), captured=True).prepare()


def test_an_operator_that_waits_for_the_host_is_named(model: Model) -> None:
    with pytest.raises(CaptureError, match="reads cannot be captured"):
        captured("reads")


def test_an_operator_that_keeps_memory_of_a_capture_is_named(model: Model) -> None:
    with pytest.raises(CaptureError, match=r"hoards keeps 16896 bytes .* and returns 512"):
        captured("hoards")
    captured("fine")


def test_graphs_that_nobody_holds_are_not_destroyed_inside_a_capture(model: Model) -> None:
    def captured() -> torch.cuda.CUDAGraph:
        graph = torch.cuda.CUDAGraph()
        with captured_in(graph):
            torch.zeros(1, device="cuda")
            gc.set_threshold(1)  # so that a collector that does not rest collects at the next object
            [[number] for number in range(100)]
        return graph

    thresholds = gc.get_threshold()
    gc.disable()
    try:
        ring: list[object] = [captured()]
        ring.append(ring)
        del ring  # only a collection destroys that graph now
        gc.set_threshold(*thresholds)
        gc.enable()
        captured().replay()
        torch.cuda.synchronize()
    finally:
        gc.set_threshold(*thresholds)
        gc.enable()
