"""The selection of columns and of candidate blocks against their contracts' cases, however rows are cut."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from triton.runtime.interpreter import InterpretedFunction

from dspark_ops import contracts
from dspark_ops.conformance.numbers import check_numbers
from dspark_ops.contracts import Case, Contract
from dspark_ops_triton import candidates, topk
from dspark_ops_triton.blocks import block_candidates

Thinned = Callable[..., Contract]

NAN, INF = float("nan"), float("inf")


def _bound(tiles: topk.Tiles) -> topk.TopkRows:
    return topk.TopkRows(tiles, tiles)


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    seen: list[str] = []
    run = InterpretedFunction.run

    def count(self, *arguments, **options):
        seen.append(self.__name__)
        return run(self, *arguments, **options)

    monkeypatch.setattr(InterpretedFunction, "run", count)
    return seen


def _small(case: Case) -> bool:
    return case.inputs["scores"].shape[1] <= 10


def test_the_selection_passes_the_cases_of_its_contract(thinned: Thinned) -> None:
    assert check_numbers(thinned("topk_rows", 12, lambda case: bool(case.expected)), topk.topk_rows) == []


def test_a_selection_cut_into_many_programs_and_launches_passes_them_too(thinned: Thinned) -> None:
    assert check_numbers(thinned("topk_rows", 7, _small), _only_few(_bound(topk.Tiles(32, 64, 1)))) == []


def _only_few(function):
    """Return a function that serves small calls by the small tiles and large ones by the usual ones."""
    usual = _bound(topk.TILES)
    return lambda scores, lengths, top_k, order: (function if top_k <= 16 else usual)(scores, lengths, top_k, order)


def _special_rows() -> Iterator[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    special = torch.tensor([NAN, INF, -INF, 0.0, -0.0, 1e-45, -1e-45, 3.0, -3.0])
    yield special[torch.randint(9, (3, 300), generator=generator)]
    yield torch.randn(3, 300, generator=generator)


@pytest.mark.parametrize("order", ["position", "score"])
def test_every_way_to_cut_a_row_gives_the_same_columns(order: str, launches: list[str]) -> None:
    lengths = torch.tensor([300, 150, 5], dtype=torch.int32)
    for scores in _special_rows():
        wanted = contracts.get("topk_rows").reference(scores, lengths, 16, order)
        for tiles, count in ((topk.Tiles(512, 64, 1), 1), (topk.Tiles(128, 64, 1), 2), (topk.Tiles(32, 64, 1), 3)):
            launches.clear()
            assert torch.equal(_bound(tiles)(scores, lengths, 16, order), wanted)
            assert launches == ["select_kernel"] * count


#: Wide enough for a guess from 16 choices on.
GUESSES = topk.Tiles(128, 64, 1, sample=64)


def _rows_to_guess_about() -> Iterator[tuple[str, torch.Tensor]]:
    generator = torch.Generator().manual_seed(1)
    random = torch.randn(4, 900, generator=generator)
    special = torch.tensor([NAN, INF, -INF, 0.0, -0.0, 1e-45, -3.0])
    yield "distinct scores", random
    yield "the best ones side by side", random.sort(dim=1, descending=True).values
    yield "some ties", (random * 8).round()
    yield "ties alone", torch.ones(4, 900)
    yield "infinities and NaN", special[torch.randint(7, (4, 900), generator=generator)]
    yield "NaN alone", torch.full((4, 900), NAN)
    yield "minus infinity alone", torch.full((4, 900), -INF)


@pytest.mark.parametrize("order", ["position", "score"])
def test_a_choice_that_begins_with_a_guess_is_the_same(order: str, launches: list[str]) -> None:
    lengths = torch.tensor([900, 333, 64, 5], dtype=torch.int32)
    for kind, scores in _rows_to_guess_about():
        launches.clear()
        got = _bound(GUESSES)(scores, lengths, 16, order)
        assert torch.equal(got, contracts.get("topk_rows").reference(scores, lengths, 16, order)), kind
        assert launches == ["reach_kernel", "choose_kernel"]


def test_a_sample_that_deceives_changes_nothing() -> None:
    # all scores that the sample sees are low, then all are high
    number = torch.arange(64)
    seen = number * 14 + (number * 40503 & 0xFFFF) % 14
    scores = torch.randn(2, 900, generator=torch.Generator().manual_seed(2))
    scores[0, seen], scores[1, seen] = -9.0, 9.0
    lengths = torch.tensor([900, 900], dtype=torch.int32)
    for order in ("position", "score"):
        wanted = contracts.get("topk_rows").reference(scores, lengths, 16, order)
        assert torch.equal(_bound(GUESSES)(scores, lengths, 16, order), wanted)


def test_a_choice_of_512_of_up_to_32768_columns_begins_with_a_guess() -> None:
    tiles = topk.TopkRows(topk.TILES, topk.MANY_TILES).tiles_for(512)
    assert [tiles.guesses(width, 512) for width in (4096, 4097, 32768, 32769)] == [False, True, True, False]
    assert not tiles.guesses(8192, 128)
    assert not tiles.guesses(8192, 513)


def test_many_choices_are_cut_so_that_each_launch_leaves_a_quarter_to_the_next() -> None:
    tiles = topk.TopkRows(topk.TILES, topk.MANY_TILES).tiles_for(topk.MOST_CHOSEN)
    assert topk.split_counts(tiles, 32768, topk.MOST_CHOSEN) == (4, 1)
    assert topk.split_counts(tiles, 2**20, topk.MOST_CHOSEN) == (128, 32, 8, 2, 1)


@pytest.mark.parametrize("tiles", [topk.TILES, topk.AMD_TILES])
def test_rows_of_4k_to_a_million_columns_need_few_launches(tiles: topk.Tiles) -> None:
    assert topk.split_counts(tiles, 4096, 512) == (1,)
    assert topk.split_counts(tiles, 32768, 512) == (8, 1)
    assert topk.split_counts(tiles, 2**20, 512) == (256, 32, 4, 1)
    assert topk.split_counts(tiles, 0, 512) == (1,)
    for top_k in (1, 512, topk.MOST_CHOSEN):
        assert topk.split_counts(tiles, topk.MOST_COLUMNS, top_k)[0] <= 65535
        assert topk.split_counts(tiles, topk.MOST_COLUMNS, top_k)[-2] * topk.slots_of(top_k) <= tiles.merged


def test_the_candidates_pass_the_cases_of_their_contract(thinned: Thinned) -> None:
    few = thinned("candidate_blocks", 7, lambda case: case.name.startswith("no rows"))
    assert check_numbers(few, candidates.candidate_blocks) == []


def test_candidates_of_more_blocks_than_a_program_holds_are_right(
    thinned: Thinned, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(block_candidates, "SCORES", 16)
    few = thinned("candidate_blocks", 9, lambda case: False)
    cut = candidates.CandidateBlocks(candidates.Tiles(entries=128, warps=4))
    assert check_numbers(few, cut, adapt=_narrow) == []


def _narrow(inputs):
    return None if inputs["logits"].shape[1] > 600 else inputs


def test_a_source_layer_is_two_launches_and_a_consumer_one(launches: list[str]) -> None:
    logits, lens = torch.zeros(2, 64), torch.tensor([64, 3], dtype=torch.int32)
    _, keep = candidates.candidate_blocks(logits, lens, None, 2, 8)
    assert keep is not None
    masked, none = candidates.candidate_blocks(logits, lens, keep, 2, 8)
    assert none is None
    # the first block and the newest one; of the second row only three entries are visible
    assert keep.sum(1).tolist() == [16, 8]
    assert (masked == 0).sum(1).tolist() == [16, 3]
    assert launches == ["source_kernel", "keep_kernel", "consumer_kernel"]


def test_calls_that_do_not_fit_are_refused_and_none_is_launched_for_no_rows(launches: list[str]) -> None:
    scores, lengths = torch.zeros(2, 8), torch.zeros(2, dtype=torch.int32)
    with pytest.raises(ValueError, match=r"wanted top_k of 1 to 2048, .* got top_k 2049"):
        topk.topk_rows(scores, lengths, 2049)
    with pytest.raises(ValueError, match=r"power of two up to 2048, .* got 1 blocks of 3"):
        candidates.candidate_blocks(scores, lengths, None, 1, 3)
    assert topk.topk_rows(scores[:0], lengths[:0], 3).shape == (0, 3)
    assert candidates.candidate_blocks(scores[:0], lengths[:0])[0].shape == (0, 8)
    assert launches == []
