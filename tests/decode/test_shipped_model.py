"""The shipped model on held-out text: equal tokens, useful drafts, and the same numbers as the code that trained it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from dspark_ops.decode import DecodeOptions, Model, PrefixPolicy, Request, decode_plain, generate, load_model
from dspark_ops.decode.model import OPERATORS

TINY = Path(__file__).parents[2] / "examples" / "tiny_v41"
TEXTS = [json.loads(line)["prompt"] for line in (TINY / "prompts.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def model() -> Model:
    return load_model(TINY)


@pytest.fixture(scope="module")
def requests(model: Model) -> list[Request]:
    assert model.tokenizer is not None
    return [Request(model.tokenizer.encode(text), max_tokens=24) for text in TEXTS[:4]]


@pytest.fixture(scope="module")
def plain(model: Model, requests: list[Request]) -> list[tuple[int, ...]]:
    return [result.tokens for result in decode_plain(model, requests, DecodeOptions(max_batch=4)).results]


@pytest.mark.parametrize(
    "options",
    [DecodeOptions(max_batch=1), DecodeOptions(3, max_batch=4), DecodeOptions(7, PrefixPolicy(), max_batch=4)],
    ids=["gamma 5, alone", "gamma 3, four at once", "gamma 7, scheduled"],
)
def test_held_out_prompts_give_the_tokens_of_plain_decoding(
    model: Model, requests: list[Request], plain: list[tuple[int, ...]], options: DecodeOptions
) -> None:
    found = generate(model, requests, options)
    assert [result.tokens for result in found.results] == plain
    assert found.metrics.mean_accept_len > 1.8


def test_the_plan_names_exactly_the_operators_that_decoding_calls(model: Model) -> None:
    assert set(model.plan().operators) == set(OPERATORS)


_TRAINING = """
import json, pathlib, sys
import torch
from draft import Drafter, greedy_chain
from model import Target
from settings import Settings
from weights import load

folder, ids, start = pathlib.Path(sys.argv[1]), json.loads(sys.argv[2]), int(sys.argv[3])
settings, weights = Settings.from_file(folder / "config.json"), load(folder / "model.safetensors")
target, drafter = Target(settings, "cpu", torch.float32), Drafter(settings, "cpu", torch.float32)
with torch.inference_mode():
    hidden, features, _ = target.forward(weights, torch.tensor([ids]))
    logits = target.logits(weights, hidden)[0]
    anchor = torch.tensor([[ids[start]]])
    rows, _ = drafter.forward(
        weights, features, anchor, torch.tensor([[start]]), torch.tensor([[5]]), 5, torch.zeros(1, dtype=torch.long)
    )
    drafts = greedy_chain(drafter, weights, rows, anchor)
    previous = torch.cat((anchor[..., None], drafts[..., :-1]), -1)
    confidence = drafter.confidence(weights, rows, previous).sigmoid()
torch.save([logits, features[0], drafts.flatten(), confidence.flatten()], sys.argv[4])
"""


def test_the_training_code_computes_the_same_model(model: Model, tmp_path: Path) -> None:
    """Two programs that share no code: one runs all positions at once, this one through pages and operators."""
    from dspark_ops.decode.drafting import DraftRequests
    from dspark_ops.decode.v41.rows import Rows

    assert model.tokenizer is not None
    ids, start = list(model.tokenizer.encode("\n".join(TEXTS))[:180]), 170
    saved = tmp_path / "training.pt"
    words = [sys.executable, "-c", _TRAINING, str(TINY), json.dumps(ids), str(start), str(saved)]
    subprocess.run(words, check=True, env={**os.environ, "PYTHONPATH": str(TINY / "train")})
    logits, features, drafts, confidence = torch.load(saved)
    state, ops = model.state(1), model.ops()
    with torch.inference_mode():
        rows = Rows.of([(0, position, token) for position, token in enumerate(ids)])
        output = model.target.forward(ops.at(site="verify"), state, rows)
        model.drafter.commit(ops.at(site="commit"), state, rows.part(0, start), output.features[:start])
        asked = DraftRequests((0,), torch.tensor([0]), torch.tensor([ids[start]]), torch.tensor([start]), 5)
        proposal = model.drafter.propose(ops.at(site="draft"), state, asked)
    # bfloat16 activations here, float32 there: a few thousandths per layer.
    assert float((output.logits - logits).norm() / logits.norm()) < 0.03
    assert float((output.features.float() - features).norm() / features.norm()) < 0.03
    assert float((output.logits.argmax(-1) == logits.argmax(-1)).float().mean()) > 0.95
    assert proposal.drafts[0].tolist() == drafts.tolist()
    assert torch.allclose(proposal.confidence[0], confidence, atol=0.02)
