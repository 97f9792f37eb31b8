"""topk_rows on a real GPU, for widths whose choice begins with a guess: rows that keep to it and rows that do not."""

from __future__ import annotations

import pytest
import torch

from dspark_ops import contracts
from dspark_ops.selection.probe import probe
from dspark_ops.selection.problem import Problem
from dspark_ops_triton import topk

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype:UserWarning"),
]

TOPK = contracts.get("topk_rows")
WIDTH = 32768
LENGTHS = torch.tensor([WIDTH, 20000, 2049, 2048, 700, 0], dtype=torch.int32)


@pytest.fixture(autouse=True)
def gpu() -> None:
    if not torch.cuda.is_available():
        pytest.skip("no GPU")


def kinds_of_rows() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(5)
    random = torch.randn(6, WIDTH, generator=generator)
    few = torch.rand(6, WIDTH, generator=generator) < 0.05
    return {
        "distinct scores": random,
        "the best ones side by side": random.sort(dim=1, descending=True).values,
        "rounded scores with many ties": random.round(),
        "fewer scores than choices above zero": torch.where(random > 2.5, random, 0.0),
        "some NaN": torch.where(few, float("nan"), random),
        "some infinities": torch.where(few, float("inf"), random),
        "minus infinity but for a few": torch.where(random > 2.6, random, -torch.inf),
        "large magnitudes": random * 3e38,
        "subnormal scores": random * 1e-42,
        "ties alone": torch.ones(6, WIDTH),
    }


def prepared() -> topk.TopkRows:
    site = TOPK.sites(contracts.model_shapes("deepseek-v4.1-flash/tp4"))[0]
    return topk.prepare_topk_rows(probe(0), Problem.at(TOPK, site), (6,))


@pytest.mark.parametrize("order", ["position", "score"])
def test_rows_of_32768_columns_are_chosen_from_as_the_contract_says(order: str) -> None:
    function = prepared()
    assert function.tiles_for(512).guesses(WIDTH, 512)
    for kind, scores in kinds_of_rows().items():
        got = function(scores.cuda(), LENGTHS.cuda(), 512, order)
        assert torch.equal(got.cpu(), TOPK.reference(scores, LENGTHS, 512, order)), kind


def test_rows_that_begin_anywhere_in_memory_are_chosen_from_too() -> None:
    wide = torch.randn(6, WIDTH + 16, generator=torch.Generator().manual_seed(6))
    for start in (1, 3, 4):
        scores = wide[:, start : start + WIDTH]
        got = prepared()(wide.cuda()[:, start : start + WIDTH], LENGTHS.cuda(), 512)
        assert torch.equal(got.cpu(), TOPK.reference(scores, LENGTHS, 512))


def test_a_graph_follows_rows_that_need_another_way_without_a_host_sync() -> None:
    function = prepared()
    scores, lengths = torch.zeros(6, WIDTH, device="cuda"), LENGTHS.cuda()
    function(scores, lengths, 512)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        torch.cuda.set_sync_debug_mode("error")
        try:
            got = function(scores, lengths, 512)
        finally:
            torch.cuda.set_sync_debug_mode("default")
    for kind, given in kinds_of_rows().items():
        scores.copy_(given)
        graph.replay()
        assert torch.equal(got.cpu(), TOPK.reference(given, LENGTHS, 512)), kind
