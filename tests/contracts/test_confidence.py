"""Confidence head: survival, temperatures, what it looks at, and rows that do not depend on each other."""

from __future__ import annotations

import pytest
import torch

from dspark_ops.contracts.confidence import confidence_survival
from dspark_ops.errors import ContractError


def of_scores(scores: list[list[float]], **options: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Run the head on given scores: the embedding row of the token before is the score itself."""
    table = torch.tensor(scores)
    previous = torch.arange(table.numel()).view(table.shape)
    hidden = torch.ones(*table.shape, 2).bfloat16()
    weight = torch.tensor([[0.0, 0.0, 1.0]])
    return confidence_survival(hidden, previous, table.reshape(-1, 1), weight, **options)


def test_survival_is_the_running_product() -> None:
    confidence = torch.tensor([[0.9, 0.8, 0.5], [0.6, 0.5, 0.4]], dtype=torch.float64)
    got, survival = of_scores(confidence.logit().tolist())
    torch.testing.assert_close(got, confidence.float(), atol=1e-6, rtol=0)
    torch.testing.assert_close(survival, torch.tensor([[0.9, 0.72, 0.36], [0.6, 0.3, 0.12]]), atol=1e-6, rtol=0)


def test_survival_is_a_chain_of_float32_products() -> None:
    confidence, survival = of_scores(torch.randn(50, 7, generator=torch.Generator().manual_seed(1)).tolist())
    product = confidence[:, 0]
    for position in range(1, 7):
        product = product * confidence[:, position]
        assert torch.equal(product, survival[:, position])


def test_temperatures_divide_the_score_by_position() -> None:
    got, _ = of_scores([[2.0, 2.0, -1.0]], temperatures=torch.tensor([1.0, 1.6, 1.6]))
    torch.testing.assert_close(got, torch.tensor([[0.880797, 0.777300, 0.348645]]), atol=1e-6, rtol=0)


def test_the_bias_is_added_before_the_temperature() -> None:
    got, _ = of_scores([[1.0]], bias=torch.tensor([1.0]), temperatures=torch.tensor([2.0]))
    torch.testing.assert_close(got, torch.tensor([[0.7310586]]), atol=1e-6, rtol=0)


def test_a_weight_without_the_markov_half_ignores_the_tokens() -> None:
    hidden = torch.tensor([[[1.0, 2.0]]]).bfloat16()
    embed = torch.tensor([[3.0], [-40.0]])
    weight = torch.tensor([[0.5, 0.25]])
    for token in (0, 1):
        got, _ = confidence_survival(hidden, torch.tensor([[token]]), embed, weight)
        torch.testing.assert_close(got, torch.tensor([[0.7310586]]), atol=1e-6, rtol=0)


def test_a_row_has_the_same_bits_alone_and_in_a_batch() -> None:
    generator = torch.Generator().manual_seed(4)
    hidden = torch.randn(9, 5, 192, generator=generator).bfloat16()
    previous = torch.randint(512, (9, 5), generator=generator)
    embed = torch.randn(512, 48, generator=generator).bfloat16()
    weight = torch.randn(1, 240, generator=generator)
    together = confidence_survival(hidden, previous, embed, weight)
    for row in range(9):
        alone = confidence_survival(hidden[row : row + 1], previous[row : row + 1], embed, weight)
        assert all(torch.equal(x[row : row + 1], y) for x, y in zip(together, alone, strict=True))


def test_ids_outside_the_table_do_not_raise_and_leave_other_rows_alone() -> None:
    hidden = torch.ones(2, 1, 2).bfloat16()
    embed = torch.tensor([[0.0], [1.0]])
    weight = torch.tensor([[0.0, 0.0, 1.0]])
    got, _ = confidence_survival(hidden, torch.tensor([[1], [2**40]]), embed, weight)
    assert torch.equal(got[0], torch.tensor([1.0]).sigmoid())


def test_a_weight_of_another_width_is_refused_with_both_widths() -> None:
    with pytest.raises(ContractError, match=r"weight is \[1, 4\]: wanted \[1, 2\] or \[1, 3\]"):
        confidence_survival(
            torch.ones(1, 1, 2).bfloat16(), torch.zeros(1, 1).long(), torch.ones(3, 1), torch.ones(1, 4)
        )
