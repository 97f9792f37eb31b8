"""Kernels that are set up while the one before them runs, on a real GPU: they see all that was stored before them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from dspark_ops import contracts
from dspark_ops.selection.probe import probe
from dspark_ops.selection.problem import Problem
from dspark_ops_triton import mhc, mhc_mix, mhc_post
from dspark_ops_triton.accept_tail import AcceptTail
from dspark_ops_triton.argmax import TILES
from dspark_ops_triton.blocks.arrival import ArrivalState
from dspark_ops_triton.blocks.dependent import has_pdl
from dspark_ops_triton.blocks.launching import bind_launch
from dspark_ops_triton.blocks.row_argmax import unit_count
from dspark_ops_triton.blocks.tile_table import tiles_for

pytestmark = pytest.mark.gpu

STEPS = 40


@pytest.fixture(autouse=True)
def gpu_that_launches_early() -> None:
    if not torch.cuda.is_available() or not has_pdl(probe(0)):
        pytest.skip("no GPU with programmatic dependent launch")


def _tiles(name: str, default: Any, pdl: bool) -> Any:
    contract = contracts.get(name)
    site = Problem.at(contract, contract.sites(contracts.model_shapes("deepseek-v4.1-flash/tp4"))[0])
    return replace(tiles_for(name, probe(0), site, default), pdl=pdl)


def _normal(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator("cuda").manual_seed(seed), device="cuda")


def _steps(pdl: bool) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return a function whose every call needs what the call before it has stored, now and then torch's."""
    combine = bind_launch(mhc._combine_norm, _tiles("mhc_combine_norm", mhc.TILES, pdl), mhc.mhc_combine_norm)
    post = bind_launch(mhc_post._post, _tiles("mhc_post", mhc_post.TILES, pdl), mhc_post.mhc_post)
    arrivals = ArrivalState(4, torch.device("cuda"))
    mix = mhc_mix.MixSinkhorn(_tiles("mhc_mix_sinkhorn", mhc_mix.TILES, pdl), arrivals)
    fn, scale, base = _normal(24, 20480, seed=1) * 0.01, torch.full((3,), 0.5, device="cuda"), _normal(24, seed=2)
    gain = torch.ones(5120, dtype=torch.bfloat16, device="cuda")

    def run(stream: torch.Tensor) -> torch.Tensor:
        seen = []
        for step in range(STEPS):
            pre, share, matrix = mix(stream.flatten(1), fn, scale, base)
            stream = post(combine(stream.flatten(1), pre, gain), stream, share, matrix)
            if step % 8 == 0:
                stream = stream + 0.0
            seen.append(stream)
        return torch.stack(seen)

    return run


@pytest.mark.parametrize("tokens", [1, 6, 48])
def test_a_chain_of_dependent_calls_has_the_bits_of_ordinary_launches(tokens: int) -> None:
    static, early = torch.zeros(tokens, 4, 5120, dtype=torch.bfloat16, device="cuda"), _steps(pdl=True)
    early(static)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = early(static)
    ordinary = _steps(pdl=False)
    for seed in range(5):
        static.copy_(_normal(tokens, 4, 5120, seed=seed).bfloat16())
        graph.replay()
        wanted = ordinary(static)
        assert torch.equal(out.view(torch.int16), wanted.view(torch.int16))
        assert torch.equal(early(static).view(torch.int16), wanted.view(torch.int16))


def test_graphs_and_eager_calls_of_one_verify_tail_run_at_the_same_time() -> None:
    device = torch.device("cuda")
    tail = AcceptTail(replace(TILES, pdl=True), unit_count(device), ArrivalState(24, device))
    reference = contracts.get("accept_tail").reference
    inputs = []
    for seed in range(3):
        logits = _normal(12, 129280, seed=seed)
        candidates = logits.argmax(-1).view(2, 6).roll(1, 1).contiguous()
        candidates[:, 3] = 7
        inputs.append((candidates, logits, torch.arange(2, device="cuda") + 100))
    wanted = [reference(*(tensor.cpu() for tensor in given)) for given in inputs]
    tail(*inputs[0])
    torch.cuda.synchronize()
    graphs, outs = [], []
    for given in inputs[:2]:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            outs.append([tail(*given) for _ in range(8)])
        graphs.append(graph)
    streams = [torch.cuda.Stream() for _ in inputs]
    for _ in range(20):
        for graph, stream in zip(graphs, streams, strict=False):
            with torch.cuda.stream(stream):
                graph.replay()
        with torch.cuda.stream(streams[2]):
            eager = [tail(*inputs[2]) for _ in range(8)]
        torch.cuda.synchronize()
        for got, right in zip([*outs, eager], wanted, strict=True):
            for call in got:
                assert all(torch.equal(mine.cpu(), value) for mine, value in zip(call, right, strict=True))
