"""Target laws and uniforms: what a request samples from, and with which numbers."""

from __future__ import annotations

import pytest
import torch
from scipy import stats

from dspark_ops.decode.sampling import SamplingParams, greedy_rows, target_law
from dspark_ops.decode.uniforms import Stream, uniforms
from dspark_ops.errors import ContractError

MASK = (1 << 64) - 1


def law_of(logits: list[float], temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0) -> list[float]:
    law, _ = target_law(
        torch.tensor([logits]), torch.tensor([temperature]), torch.tensor([top_k]), torch.tensor([top_p]), torch.float64
    )
    return law[0].tolist()


def logs(*chances: float) -> list[float]:
    return torch.tensor(chances).log().tolist()


def test_temperature_divides_the_logits() -> None:
    assert law_of([0.0, 1.0], 0.5) == pytest.approx([0.11920292, 0.88079708])


def test_top_k_keeps_the_most_probable_and_the_lower_id_of_equal_ones() -> None:
    assert law_of(logs(0.1, 0.4, 0.3, 0.2), top_k=2) == pytest.approx([0, 4 / 7, 3 / 7, 0])
    assert law_of([1.0, 1.0, 1.0, 0.0], top_k=2) == pytest.approx([0.5, 0.5, 0, 0])
    assert law_of(logs(0.5, 0.5), top_k=9) == pytest.approx([0.5, 0.5])


def test_top_p_keeps_the_token_that_reaches_the_mass() -> None:
    chances = logs(0.5, 0.25, 0.125, 0.125)
    assert law_of(chances, top_p=0.5) == pytest.approx([1, 0, 0, 0], abs=1e-12)
    assert law_of(chances, top_p=0.51) == pytest.approx([2 / 3, 1 / 3, 0, 0])
    assert law_of(chances, top_p=0.8) == pytest.approx([0.5 / 0.875, 0.25 / 0.875, 0.125 / 0.875, 0])
    assert law_of(chances, top_p=1e-9) == pytest.approx([1, 0, 0, 0])


def test_top_p_acts_on_what_top_k_left_renormalised() -> None:
    # after top-k the two are 2/3 and 1/3, so the first alone reaches 0.6; without renormalising it would not
    assert law_of(logs(0.4, 0.2, 0.2, 0.2), top_k=2, top_p=0.6) == pytest.approx([1, 0, 0, 0])


def test_a_top_p_of_one_keeps_the_whole_tail() -> None:
    law = law_of(torch.randn(5000, generator=torch.Generator().manual_seed(0)).mul(8).tolist())
    assert min(law) > 0 and sum(law) == pytest.approx(1.0)


def test_greedy_rows_are_a_point_by_the_rule_of_argmax() -> None:
    nan, inf = float("nan"), float("inf")
    rows = torch.tensor([[0.0, 2.0, 2.0], [nan, 5.0, 1.0], [-inf, -inf, -inf], [1.0, inf, 0.0], [1.0, 0.0, 3.0]])
    temperature = torch.tensor([0.0, 0.0, 9e-6, 0.0, 1.0])
    law, greedy = target_law(rows, temperature, torch.tensor([0, 0, 0, 0, 1]), torch.ones(5))
    assert greedy.all() and law.argmax(-1).tolist() == [1, 0, 0, 1, 2]
    assert ((law == 0) | (law == 1)).all() and (law.sum(-1) == 1).all()


def test_temperature_at_the_floor_is_not_greedy_and_top_k_one_is() -> None:
    flags = greedy_rows(torch.tensor([1e-5, 9.9e-6, 1.0, 1.0]), torch.tensor([0, 0, 1, 2]))
    assert flags.tolist() == [False, True, True, False]


def test_a_row_without_a_softmax_stays_nan_for_the_accept_to_refuse() -> None:
    assert all(value != value for value in law_of([float("nan"), 0.0, 1.0]))


def test_rows_have_their_own_settings_and_do_not_depend_on_each_other() -> None:
    generator = torch.Generator().manual_seed(1)
    logits = torch.randn(5, 300, generator=generator)
    settings = (
        torch.tensor([0.0, 0.5, 1.0, 2.0, 1.0]),
        torch.tensor([0, 5, 0, 50, 1]),
        torch.tensor([1, 1, 0.9, 0.5, 1]),
    )
    whole, _ = target_law(logits, *settings)
    for row in range(5):
        alone, _ = target_law(logits[row : row + 1], *(values[row : row + 1] for values in settings))
        assert torch.equal(alone[0], whole[row])


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"temperature": -1.0}, "temperature is -1.0"),
        ({"temperature": float("nan")}, "temperature is nan"),
        ({"top_k": -1}, "top_k is -1"),
        ({"top_p": 0.0}, "top_p is 0.0"),
        ({"top_p": 1.5}, "top_p is 1.5"),
        ({"seed": 2**63}, "seed is 9223372036854775808"),
    ],
)
def test_sampling_values_out_of_range_are_refused(values: dict, text: str) -> None:
    with pytest.raises(ContractError, match=text):
        SamplingParams(**values)


def test_a_request_is_greedy_by_temperature_or_by_top_k() -> None:
    assert [SamplingParams(t, k).greedy for t, k in ((0.0, 0), (9e-6, 0), (1.0, 1), (1e-5, 0), (1.0, 2))] == [
        True, True, True, False, False,
    ]  # fmt: skip


def by_hand(seed: int, position: int, stream: int) -> float:
    """The documented generator with Python's integers."""
    state = 0
    for word in (seed, position, stream):
        x = ((state ^ (word & MASK)) + 0x9E3779B97F4A7C15) & MASK
        x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
        state = x ^ (x >> 31)
    return (state >> 40) / 2**24


def test_the_generator_is_the_documented_one_bit_by_bit() -> None:
    seeds, positions = [0, 1, -1, 2**63 - 1, -(2**63), 12345], [0, 1, 2, 127, 2**31, 2**40, -5]
    for stream in Stream:
        got = uniforms(torch.tensor(seeds).unsqueeze(1), torch.tensor(positions), stream)
        assert got.dtype == torch.float32
        assert got.tolist() == [[by_hand(seed, position, int(stream)) for position in positions] for seed in seeds]


def test_a_number_does_not_depend_on_the_batch_it_is_made_in() -> None:
    seeds = torch.arange(50).unsqueeze(1)
    positions = torch.arange(1000, 1064)
    whole = uniforms(seeds, positions, Stream.DRAFT)
    order = torch.randperm(50, generator=torch.Generator().manual_seed(2))
    assert torch.equal(uniforms(seeds[order], positions, Stream.DRAFT), whole[order])
    assert torch.equal(uniforms(seeds[7], positions[40:41], Stream.DRAFT), whole[7, 40:41])


def test_numbers_are_below_one_and_streams_seeds_and_positions_give_others() -> None:
    seeds, positions = torch.arange(64).unsqueeze(1), torch.arange(4096)
    streams = [uniforms(seeds, positions, stream) for stream in Stream]
    for values in streams:
        assert float(values.min()) >= 0 and float(values.max()) < 1
    stacked = torch.stack(streams).double()
    assert len(stacked.unique()) > 0.95 * 2**24 * (1 - 2.718281828 ** (-stacked.numel() / 2**24))
    correlation = torch.corrcoef(torch.cat([stacked.flatten(1), stacked.flatten(1).roll(1, 1)]))
    assert float((correlation - torch.eye(6)).abs().max()) < 0.008  # five standard errors of 262,144 pairs are 0.0098


@pytest.mark.parametrize("stream", list(Stream))
@pytest.mark.parametrize("axis", ["positions", "seeds"])
def test_numbers_are_uniform_in_one_and_in_two_dimensions(stream: Stream, axis: str) -> None:
    count = torch.arange(1 << 16)
    values = (
        uniforms(torch.tensor(3), count, stream) if axis == "positions" else uniforms(count, torch.tensor(9), stream)
    )
    one = torch.bincount((values * 256).long(), minlength=256)
    pairs = torch.bincount((values[:-1] * 16).long() * 16 + (values[1:] * 16).long(), minlength=256)
    low_bits = torch.bincount((values * 2**24).long() % 256, minlength=256)
    for seen in (one, pairs, low_bits):
        assert 1e-4 < stats.chisquare(seen.numpy()).pvalue < 1 - 1e-4
