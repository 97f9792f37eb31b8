"""Target and drafter: a row's result does not depend on the other rows, and the structure is V4.1's."""

from __future__ import annotations

import pytest
import torch

from dspark_ops import Device
from dspark_ops.decode.drafting import DraftRequests
from dspark_ops.decode.model import Model
from dspark_ops.decode.v41.rows import Rows, target_sites
from dspark_ops.decode.v41.synthetic import random_weights, small_config

CONFIG = small_config()
PROMPT = torch.randint(5, 97, (90,), generator=torch.Generator().manual_seed(3)).tolist()


@pytest.fixture(scope="module")
def model() -> Model:
    return Model(CONFIG, random_weights(CONFIG, seed=1), device=Device.simulate("cpu"))


def rows(tokens: list[int], start: int = 0, slot: int = 0) -> Rows:
    return Rows.of([(slot, start + offset, token) for offset, token in enumerate(tokens)])


def forward_in_parts(model: Model, sizes: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
    ops, state = model.ops().at(site="verify"), model.state(1)
    done, logits, features = 0, [], []
    with torch.inference_mode():
        for size in sizes:
            output = model.target.forward(ops, state, rows(PROMPT[done : done + size], done))
            logits.append(output.logits)
            features.append(output.features)
            done += size
    return torch.cat(logits), torch.cat(features)


@pytest.mark.parametrize("sizes", [[90], [64, 26], [1] * 12 + [6] * 13], ids=["at once", "by page", "ones and sixes"])
def test_logits_and_features_have_the_same_bits_however_the_rows_are_split(model: Model, sizes: list[int]) -> None:
    logits, features = forward_in_parts(model, sizes)
    whole_logits, whole_features = forward_in_parts(model, [31, 59])
    assert torch.equal(logits, whole_logits)
    assert torch.equal(features, whole_features)


def test_a_request_has_the_same_bits_with_and_without_neighbours(model: Model) -> None:
    ops = model.ops().at(site="verify")
    with torch.inference_mode():
        alone = model.target.forward(ops, model.state(1), rows(PROMPT[:20])).logits
        state = model.state(3)
        model.target.forward(ops, state, rows(PROMPT[40:53], slot=0))
        mixed = [(0, 13, 7), *((2, at, token) for at, token in enumerate(PROMPT[:20])), (1, 0, 9)]
        together = model.target.forward(ops, state, Rows.of(mixed)).logits
    assert torch.equal(together[1:21], alone)


def test_only_the_logits_asked_for_are_computed(model: Model) -> None:
    ops = model.ops().at(site="verify")
    with torch.inference_mode():
        every = model.target.forward(ops, model.state(1), rows(PROMPT)).logits
        some = model.target.forward(ops, model.state(1), rows(PROMPT), logits_of=torch.tensor([0, 63, 89])).logits
    assert torch.equal(some, every[[0, 63, 89]])


def test_a_row_sees_the_window_and_the_complete_groups_behind_it() -> None:
    geometry = Model(CONFIG, random_weights(CONFIG, seed=1), device=Device.simulate("cpu")).state(2).geometry
    sites = target_sites(geometry, Rows.of([(1, 0, 5), (1, 3, 5), (1, 4, 5), (0, 130, 5)]))
    assert sites.window.lengths.tolist() == [1, 4, 5, 16]
    assert sites.compressed[2].reads.lengths.tolist() == [0, 2, 2, 65]
    assert sites.compressed[1].reads.lengths.tolist() == [1, 4, 5, 131]
    ring = geometry.window_ring
    assert sites.window.indices[1, :5].tolist() == [ring, ring + 1, ring + 2, ring + 3, -1]
    assert sites.window.indices[3].tolist() == [position % ring for position in range(115, 131)]
    assert sites.compressed[2].out_loc[1] >> 1 == sites.compressed[2].reads.indices[1, 1]
    assert int(sites.compressed[1].out_loc.min()) >= 64


def drafted(model: Model, gamma: int, requests: list[tuple[int, list[int]]], slots: int) -> torch.Tensor:
    """Prefill requests (slot, tokens), then propose for the last token of each."""
    ops, state = model.ops(gamma), model.state(slots)
    with torch.inference_mode():
        for slot, tokens in requests:
            known = rows(tokens[:-1], slot=slot)
            output = model.target.forward(ops.at(site="verify"), state, known)
            model.drafter.commit(ops.at(site="commit"), state, known, output.features)
        asked = DraftRequests(
            tuple(range(len(requests))),
            torch.tensor([slot for slot, _ in requests]),
            torch.tensor([tokens[-1] for _, tokens in requests]),
            torch.tensor([len(tokens) - 1 for _, tokens in requests]),
            gamma,
        )
        proposal = model.drafter.propose(ops.at(site="draft"), state, asked)
    return torch.cat((proposal.drafts.double(), proposal.confidence.double(), proposal.survival.double()), 1)


def test_drafts_and_confidences_do_not_depend_on_the_batch(model: Model) -> None:
    requests = [(number % 20, PROMPT[number : number + 2 + 3 * number]) for number in range(20)]
    together = drafted(model, 5, requests, 20)
    for number in (0, 7, 19):
        alone = drafted(model, 5, [(0, requests[number][1])], 1)
        assert torch.equal(together[number : number + 1], alone)


def test_survival_is_the_running_product_of_confidence(model: Model) -> None:
    _, confidence, survival = drafted(model, 5, [(0, PROMPT[:9])], 1).split(5, 1)
    assert torch.allclose(survival, confidence.cumprod(1), rtol=1e-6)
    assert 0 < float(survival[0, -1]) < 1


def test_the_drafter_sees_the_committed_context_and_never_the_anchors_features(model: Model) -> None:
    base = drafted(model, 5, [(0, PROMPT[:30])], 1)
    other_anchor = drafted(model, 5, [(0, [*PROMPT[:29], 6])], 1)
    other_context = drafted(model, 5, [(0, [*PROMPT[:28], 6, PROMPT[29]])], 1)
    assert not torch.equal(base, other_anchor)
    assert not torch.equal(base, other_context)
