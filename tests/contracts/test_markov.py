"""Markov block: the three heads, roundings, greedy and drawn rows."""

from __future__ import annotations

import pytest
import torch
from scipy import stats

from dspark_ops.contracts.markov import markov_block
from dspark_ops.errors import ContractError


def head_outputs(embedding: list[float], **gate: object) -> list[float]:
    """Return head z per slot for a head of rank 1 whose slots see these embeddings.

    Token 0 gets logit 0 and token 1 gets z, so z is the log of their ratio. Every slot drafts by a coin that gives the
    token whose embedding row is the next number.
    """
    gamma = len(embedding)
    embed = torch.zeros(gamma + 1, 1)
    embed[:gamma, 0] = torch.tensor(embedding)
    head = torch.zeros(gamma + 1, 1)
    head[gamma] = 1.0
    base = torch.full((1, gamma, gamma + 1), -80.0)
    coins = torch.full((1, gamma), 0.5)
    for slot in range(gamma):
        base[0, slot, [slot + 1 if slot + 1 < gamma else 0, gamma]] = 0.0
        coins[0, slot] = 0.01  # the lower of the two live tokens
    _, probs = markov_block(base, torch.zeros(1).long(), embed, head, uniforms=coins, temperature=torch.ones(1), **gate)
    live = [(slot + 1 if slot + 1 < gamma else 0) for slot in range(gamma)]
    return [float((probs[0, slot, gamma] / probs[0, slot, live[slot]]).log()) for slot in range(gamma)]


def test_the_vanilla_head_is_its_embedding() -> None:
    assert head_outputs([0.5, -0.25]) == pytest.approx([0.5, -0.25], abs=1e-6)


def test_the_gated_head_has_the_golden_value() -> None:
    gate = {
        "hidden": torch.ones(1, 1, 1).bfloat16(),
        "gate_weight": torch.tensor([[0.3, 0.2]]),  # hidden first
        "gate_bias": torch.tensor([0.1]),
        "kind": "gated",
    }
    assert head_outputs([0.5], **gate) == pytest.approx([0.311230], abs=2e-6)


def test_the_recurrent_head_carries_its_state_and_reads_the_output_before_it() -> None:
    gate = {
        "hidden": torch.tensor([[[1.0], [0.5]]]).bfloat16(),
        "gate_weight": torch.tensor(
            [[0.1, 0.2, 0.3], [0.4, 0.5, 0.6], [0.7, 0.8, 0.9]]
        ),  # on [state, embedding, hidden]
        "gate_bias": torch.zeros(3),
        "kind": "rnn",
    }
    assert head_outputs([0.5, -0.25], **gate) == pytest.approx([0.861723, 0.417065], abs=2e-6)


def test_each_draft_conditions_the_next_one() -> None:
    vocab = 5
    successor = torch.eye(vocab).roll(1, 1)  # after token t, token t + 1 gets the bias
    drafts, probs = markov_block(
        torch.zeros(2, 4, vocab), torch.tensor([0, 3]), torch.eye(vocab), successor.T.contiguous()
    )
    assert drafts.tolist() == [[1, 2, 3, 4], [4, 0, 1, 2]]
    assert probs is None


def test_the_bias_is_rounded_to_the_dtype_of_the_head() -> None:
    embed = torch.tensor([[1.0, 1.0]]).repeat(2, 1).bfloat16()
    head = torch.tensor([[0.0, 0.0], [1.0, 2.0**-9]])  # 1 + 2^-9 is 1 in bfloat16
    base = torch.tensor([[[1.0 + 2.0**-10, 0.0]]])
    anchor = torch.zeros(1).long()
    assert markov_block(base, anchor, embed.float(), head)[0].item() == 1
    assert markov_block(base, anchor, embed, head.bfloat16())[0].item() == 0


@pytest.mark.parametrize(("step_dtype", "token"), [("float32", 1), ("bfloat16", 0), ("float16", 1)])
def test_the_sum_is_rounded_to_the_step_dtype_and_ties_go_to_the_lowest_id(step_dtype: str, token: int) -> None:
    base = torch.tensor([[[4.0, 4.0 + 2.0**-8]]])
    drafts, _ = markov_block(base, torch.zeros(1).long(), torch.zeros(2, 1), torch.zeros(2, 1), step_dtype=step_dtype)
    assert drafts.item() == token


def test_rounding_the_sum_to_bfloat16_changes_some_ids_of_random_wide_rows() -> None:
    generator = torch.Generator().manual_seed(0)
    base = torch.randn(200, 1, 4096, generator=generator)
    embed, head = torch.randn(8, 4, generator=generator), torch.randn(4096, 4, generator=generator)
    anchor = torch.zeros(200).long()
    plain, rounded = (markov_block(base, anchor, embed, head, step_dtype=name)[0] for name in ("float32", "bfloat16"))
    assert 1 <= int((plain != rounded).sum()) <= 20


def test_a_cold_row_drafts_greedily_and_its_law_is_a_point() -> None:
    base = torch.tensor([[[0.0, 1.0, 0.5]]]).repeat(3, 1, 1)
    coins = torch.full((3, 1), 0.999)
    drafts, probs = markov_block(
        base, torch.zeros(3).long(), torch.zeros(3, 1), torch.zeros(3, 1),
        uniforms=coins, temperature=torch.tensor([0.0, 9e-6, 1.0]),
    )  # fmt: skip
    assert drafts.tolist() == [[1], [1], [2]]
    assert probs[:2, 0].tolist() == [[0.0, 1.0, 0.0]] * 2
    torch.testing.assert_close(probs[2, 0], base[2, 0].softmax(-1))


def test_drafts_follow_their_law() -> None:
    count, vocab = 20_000, 6
    generator = torch.Generator().manual_seed(9)
    base = torch.randn(1, 1, vocab, generator=generator).expand(count, 1, vocab)
    drafts, probs = markov_block(
        base, torch.zeros(count).long(), torch.zeros(vocab, 1), torch.zeros(vocab, 1),
        uniforms=torch.rand(count, 1, generator=generator), temperature=torch.full((count,), 0.7),
    )  # fmt: skip
    law = (base[0, 0] / 0.7).softmax(-1)
    torch.testing.assert_close(probs[0, 0], law)
    seen = torch.bincount(drafts[:, 0], minlength=vocab)
    assert (
        stats.chisquare(
            seen.numpy(), (law * count).double().numpy() * float(count / (law * count).double().sum())
        ).pvalue
        > 1e-3
    )


@pytest.mark.parametrize("kind", ["vanilla", "gated", "rnn"])
def test_a_row_has_the_same_drafts_and_law_alone_and_in_a_batch(kind: str) -> None:
    generator = torch.Generator().manual_seed(3)
    rows, gamma, vocab, rank, width = 6, 5, 512, 48, 32
    inputs = {
        "base": torch.randn(rows, gamma, vocab, generator=generator),
        "anchor": torch.randint(vocab, (rows,), generator=generator),
        "hidden": torch.randn(rows, gamma, width, generator=generator).bfloat16(),
        "uniforms": torch.rand(rows, gamma, generator=generator),
        "temperature": torch.tensor([0.0, 0.5, 1.0] * 2),
    }
    shape = {"vanilla": (1, 1), "gated": (rank, width + rank), "rnn": (3 * rank, 2 * rank + width)}[kind]
    weights = {
        "embed": torch.randn(vocab, rank, generator=generator).bfloat16(),
        "head": torch.randn(vocab, rank, generator=generator).bfloat16(),
        "gate_weight": torch.randn(shape, generator=generator) * 0.1,
        "gate_bias": torch.zeros(shape[0]),
        "kind": kind,
    }
    drafts, probs = markov_block(**inputs, **weights)
    for row in range(rows):
        alone = {name: value[row : row + 1] for name, value in inputs.items()}
        one, law = markov_block(**alone, **weights)
        assert torch.equal(one[0], drafts[row]) and torch.equal(law[0], probs[row])


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"kind": "mask"}, "wanted one of vanilla, gated, rnn"),
        ({"step_dtype": "float8"}, "wanted one of float32, bfloat16, float16"),
        ({"kind": "rnn"}, "kind 'rnn' needs hidden and gate_weight and gate_bias, which is None"),
        ({"temperature": torch.ones(1)}, "a temperature needs uniforms, which is None"),
    ],
)
def test_wrong_or_missing_arguments_are_refused_by_name(options: dict, text: str) -> None:
    with pytest.raises(ContractError, match=text):
        markov_block(torch.zeros(1, 1, 2), torch.zeros(1).long(), torch.zeros(2, 1), torch.zeros(2, 1), **options)
