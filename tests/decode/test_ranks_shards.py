"""What each rank holds: every part of the model once, the same shapes everywhere, and padding that is zero."""

from __future__ import annotations

import pytest
import torch

from dspark_ops.contracts.model_shapes import ModelShapes
from dspark_ops.decode.ranks.shards import HEAD, Shards, cut_weights, rank_shapes
from dspark_ops.decode.v41.synthetic import random_weights, small_config
from dspark_ops.errors import ModelError

CONFIG = small_config()
WEIGHTS = random_weights(CONFIG, seed=1)
WORLDS = (1, 2, 3, 4, 8)


@pytest.mark.parametrize("ranks", WORLDS)
@pytest.mark.parametrize("size", [1, 2, 7, 8, 9, 97])
def test_every_place_is_on_one_rank_and_what_is_behind_the_end_is_zero(size: int, ranks: int) -> None:
    shards = Shards(size, ranks)
    whole = torch.arange(1, size + 1)
    parts = [shards.cut(whole, rank) for rank in range(ranks)]
    assert {part.shape[0] for part in parts} == {shards.width}
    assert torch.cat(parts).tolist() == [*range(1, size + 1), *[0] * (ranks * shards.width - size)]
    assert [shards.valid(rank) for rank in range(ranks)] == [int((part > 0).sum()) for part in parts]


@pytest.mark.parametrize("ranks", WORLDS)
def test_all_ranks_have_tensors_of_the_same_shapes_that_hold_the_whole_model(ranks: int) -> None:
    held = [cut_weights(CONFIG, WEIGHTS, rank, ranks) for rank in range(ranks)]
    for other in held[1:]:
        assert {name: tensor.shape for name, tensor in other.items()} == {
            name: tensor.shape for name, tensor in held[0].items()
        }
    for name, tensor in WEIGHTS.items():
        parts = [weights[name] for weights in held]
        if parts[0].shape == tensor.shape:
            assert all(torch.equal(part, tensor) for part in parts)
            continue
        (dim,) = (axis for axis in range(tensor.dim()) if parts[0].shape[axis] != tensor.shape[axis])
        assert torch.equal(torch.cat(parts, dim).narrow(dim, 0, tensor.shape[dim]), tensor)


def test_four_ranks_hold_a_quarter_of_heads_experts_and_vocabulary_and_everything_else_whole() -> None:
    held = cut_weights(CONFIG, WEIGHTS, 1, 4)
    assert held[HEAD].shape == (25, 64)
    assert torch.equal(held[HEAD], WEIGHTS["embed.weight"][25:50])
    # two output groups on four ranks: one group, and its two heads, on each of the first two
    assert held["layers.0.attn.wq_b.weight"].shape == (2 * 512, 32)
    assert torch.equal(held["layers.0.attn.wq_b.weight"], WEIGHTS["layers.0.attn.wq_b.weight"][1024:])
    assert torch.equal(held["layers.0.attn.wo_a.weight"], WEIGHTS["layers.0.attn.wo_a.weight"][1:])
    assert not cut_weights(CONFIG, WEIGHTS, 3, 4)["layers.0.attn.wo_a.weight"].any()
    assert torch.equal(held["layers.0.ffn.experts.w2"], WEIGHTS["layers.0.ffn.experts.w2"][:, 16:32])
    cut = {name for name, tensor in held.items() if name in WEIGHTS and tensor.shape != WEIGHTS[name].shape}
    assert {name.rpartition("attn.")[2].rpartition("ffn.")[2].rpartition("mtp.1.")[2] for name in cut} == {
        "attn_sink", "wq_b.weight", "wo_a.weight", "wo_b.weight", "markov_head.head.weight",
        *(f"{kind}.{name}" for kind in ("experts", "shared_experts") for name in ("w1", "w2", "w3")),
    }  # fmt: skip


def test_one_rank_holds_the_tensors_themselves() -> None:
    held = cut_weights(CONFIG, WEIGHTS, 0, 1)
    assert held.keys() == WEIGHTS.keys()
    assert all(held[name] is tensor for name, tensor in WEIGHTS.items())


def test_operator_shapes_are_those_of_the_padded_parts() -> None:
    shapes = ModelShapes.from_config(CONFIG.raw, "small")
    assert rank_shapes(shapes, 1) is shapes
    found = rank_shapes(shapes, 3)
    assert (found.name, found.ranks, found.vocab, found.vocab_shard) == ("small/tp3", 3, 97, 33)
    assert (found.heads, found.o_groups, found.shared_intermediate, found.moe_intermediate) == (2, 1, 11, 11)


def test_what_cannot_be_cut_is_refused() -> None:
    with pytest.raises(ModelError, match="0 things on 2 ranks: wanted at least one of each"):
        Shards(0, 2)
    with pytest.raises(ModelError, match=r"a tensor of \[3, 4\] cannot be cut along 1: wanted 5 there"):
        Shards(5, 2).cut(torch.zeros(3, 4), 0, 1)
