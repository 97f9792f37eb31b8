"""argmax_rows on a real GPU: numbers, graphs, streams, and more elements than 32 bits count."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch

from dspark_ops import contracts
from dspark_ops.conformance.numbers import check_numbers
from dspark_ops.contracts.contract import Site
from dspark_ops.selection.probe import probe
from dspark_ops_amd_gfx950 import argmax as gfx950
from dspark_ops_nvidia_sm10x import argmax as sm10x
from dspark_ops_triton import argmax as portable
from dspark_ops_triton.blocks.row_argmax import RowArgmax, Tiles, prepare_row_argmax

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*Profiler clears events:UserWarning"),
]

ARGMAX = contracts.get("argmax_rows")
TILES = {"portable": portable.TILES, "sm10x": sm10x.TILES, "gfx950": gfx950.TILES, "small": Tiles(512, 2, 1)}
VOCAB = 129280


@pytest.fixture(autouse=True)
def no_host_sync() -> Iterator[None]:
    if not torch.cuda.is_available():
        pytest.skip("no GPU")
    yield
    torch.cuda.set_sync_debug_mode("default")


def prepared(tiles: Tiles = portable.TILES, dtype: str = "float32", rows: tuple[int, ...] = (1, 6, 64)) -> RowArgmax:
    return prepare_row_argmax(tiles, probe(0), Site("verify", axes={"V": VOCAB}, dtypes={"x": dtype}), rows)


def logits(rows: int, seed: int, vocab: int = VOCAB) -> torch.Tensor:
    generator = torch.Generator("cuda").manual_seed(seed)
    return torch.randn(rows, vocab, generator=generator, device="cuda").mul(3).round()  # many ties


def without_sync(function: Callable[[], torch.Tensor]) -> torch.Tensor:
    torch.cuda.set_sync_debug_mode("error")
    try:
        return function()
    finally:
        torch.cuda.set_sync_debug_mode("default")


def lowest(x: torch.Tensor) -> torch.Tensor:
    return ARGMAX.reference(x.cpu())


@pytest.mark.parametrize("tiles", TILES)
def test_every_case_of_the_models_sizes_passes(tiles: str) -> None:
    assert check_numbers(ARGMAX, prepared(TILES[tiles]), device="cuda", scale="model", seed=0) == []


@pytest.mark.parametrize("tiles", ["portable", "small"])
def test_every_small_case_passes(tiles: str) -> None:
    assert check_numbers(ARGMAX, prepared(TILES[tiles]), device="cuda", seed=1) == []


def test_the_unprepared_operator_passes_every_small_case() -> None:
    assert check_numbers(ARGMAX, portable.argmax_rows, device="cuda", seed=2) == []


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_special_values_in_rows_of_a_wider_buffer(dtype: torch.dtype) -> None:
    case = next(case for case in ARGMAX.cases("small", 0) if case.name.startswith("NaN, infinities"))
    wide = torch.full((7, 72), 60000.0, dtype=dtype, device="cuda")
    wide[:, :8] = case.inputs["x"].to("cuda", dtype)
    assert prepared()(wide[:, :8]).tolist() == [0, 1, 0, 1, 3, 3, 0]


def test_more_than_two_to_the_31_elements_are_addressed() -> None:
    x = torch.zeros(16612, VOCAB, dtype=torch.bfloat16, device="cuda")
    assert x.numel() > 2**31
    x[0, 5] = 1
    x[16610, 3] = 1
    x[16611, 129279] = 1
    ids = prepared(dtype="bfloat16")(x)
    expected = torch.zeros(16612, dtype=torch.int64)
    expected[[0, 16610, 16611]] = torch.tensor([5, 3, 129279])
    assert torch.equal(ids.cpu(), expected)
    # A few of the last rows alone are split over programs: the same addresses through the other path.
    tail = prepared(dtype="bfloat16")(x[16606:])
    assert torch.equal(tail.cpu(), expected[16606:])


def test_one_call_is_one_kernel_and_no_host_sync() -> None:
    bound, x = prepared(), logits(6, 0)
    bound(x)
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        without_sync(lambda: bound(x))
        torch.cuda.synchronize()
    device_events = [event.name for event in profile.events() if event.device_type == torch.autograd.DeviceType.CUDA]
    assert device_events == ["row_argmax_kernel"]


def test_the_same_answer_comes_every_time() -> None:
    bound = prepared()
    x = logits(6, 1)
    expected = lowest(x)
    results = [bound(x) for _ in range(500)]
    assert all(torch.equal(result.cpu(), expected) for result in results)


@pytest.mark.parametrize("rows", [1, 6, 64])
def test_a_graph_captured_right_after_preparation_follows_changed_inputs(rows: int) -> None:
    bound, static = prepared(), logits(rows, 2)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = without_sync(lambda: bound(static))
    for seed in (3, 4, 5):
        static.copy_(logits(rows, seed))
        static[0, 17] = float("nan") if seed == 4 else 99.0
        graph.replay()
        assert torch.equal(out.cpu(), lowest(static))


def test_graphs_and_eager_calls_of_one_bound_operator_run_at_the_same_time() -> None:
    bound = prepared()
    statics = [logits(6, seed) for seed in (6, 7, 8)]
    graphs, outs = [], []
    torch.cuda.synchronize()
    for static in statics[:2]:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            outs.append(torch.stack([bound(static) for _ in range(8)]))
        graphs.append(graph)
    streams = [torch.cuda.Stream() for _ in statics]
    eager = []
    for _ in range(50):
        for graph, stream in zip(graphs, streams, strict=False):
            with torch.cuda.stream(stream):
                graph.replay()
        with torch.cuda.stream(streams[2]):
            eager.append(bound(statics[2]))
    torch.cuda.synchronize()
    for out, static in zip(outs, statics, strict=False):
        assert torch.equal(out.cpu(), lowest(static).expand(8, 6))
    assert all(torch.equal(result.cpu(), lowest(statics[2])) for result in eager)


def test_many_streams_share_one_bound_operator() -> None:
    bound = prepared()
    inputs = [logits(6, 10 + index) for index in range(8)]
    streams = [torch.cuda.Stream() for _ in inputs]
    torch.cuda.synchronize()
    results: list[list[torch.Tensor]] = [[] for _ in inputs]
    for _ in range(100):
        for x, stream, own in zip(inputs, streams, results, strict=True):
            with torch.cuda.stream(stream):
                own.append(bound(x))
    torch.cuda.synchronize()
    for x, own in zip(inputs, results, strict=True):
        expected = lowest(x)
        assert all(torch.equal(result.cpu(), expected) for result in own)


def test_a_graph_with_more_calls_than_there_is_memory_set_aside_is_still_right() -> None:
    bound, static = prepared(), logits(6, 20)
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        out = torch.stack([bound(static) for _ in range(40)])
    for seed in (21, 22):
        static.copy_(logits(6, seed))
        graph.replay()
        assert torch.equal(out.cpu(), lowest(static).expand(40, 6))


def test_no_rows_launch_nothing() -> None:
    assert prepared()(torch.empty(0, VOCAB, device="cuda")).shape == (0,)
