"""Numbers of a trained checkpoint: held-out perplexity, accept length, calibration of the confidence head.

Accept length is simulated from the target's own greedy continuation: greedy verification accepts a draft exactly while
it equals that continuation, so one rollout and one drafter pass over all anchors give what the cycle would do.
"""

from __future__ import annotations

import argparse
import json
import math
import pathlib
from collections.abc import Iterable

import torch
from blocks import Params
from common import fixed_windows, load_stream, pick_device
from draft import Drafter, greedy_chain
from losses import next_token_loss
from model import Target, greedy_rollout
from settings import Settings
from tokenizers import Tokenizer
from weights import load


def load_prompts(path: pathlib.Path, tokenizer: Tokenizer, bos: int, new: int) -> tuple[torch.Tensor, torch.Tensor]:
    """(ids ``[prompts, longest + new]`` padded with 0, lengths ``[prompts]``); each prompt starts with ``bos``."""
    texts = [json.loads(line)["prompt"] for line in path.read_text().splitlines()]
    rows = [[bos, *tokenizer.encode(text, add_special_tokens=False).ids] for text in texts]
    lengths = torch.tensor([len(row) for row in rows])
    ids = torch.zeros(len(rows), int(lengths.max()) + new, dtype=torch.long)
    for i, row in enumerate(rows):
        ids[i, : len(row)] = torch.tensor(row)
    return ids, lengths


@torch.no_grad()
def block_outcomes(
    target: Target, drafter: Drafter, p: Params, ids: torch.Tensor, anchors: torch.Tensor, gamma: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Outcomes of blocks at ``anchors [B, A]`` of ids ``[B, T]``, three tensors ``[B, A, gamma]``.

    Drafts that equal the text (bool), confidence (probability), and ``1 - TV`` of the two laws given the text's tokens.
    """
    hidden, features, _ = target.forward(p, ids)
    length = torch.full_like(anchors, gamma)
    zero = torch.zeros(len(ids), dtype=torch.long, device=ids.device)
    rows, _ = drafter.forward(p, features, ids.gather(1, anchors), anchors, length, gamma, zero)
    places = anchors[..., None] + torch.arange(gamma, device=ids.device)
    previous = ids.gather(1, places.flatten(1)).view_as(places)
    wanted = ids.gather(1, (places + 1).flatten(1)).view_as(places)
    drafts = greedy_chain(drafter, p, rows, previous[..., 0])
    trust = torch.sigmoid(drafter.confidence(p, rows, previous))
    overlap = torch.empty_like(trust)
    for b in range(len(ids)):
        law = target.logits(p, hidden[b][places[b]]).softmax(-1)
        overlap[b] = 1 - 0.5 * (drafter.logits(p, rows[b], previous[b]).softmax(-1) - law).abs().sum(-1)
    return drafts == wanted, trust, overlap


def walk(same: torch.Tensor) -> list[int]:
    """Anchors of one sequence's cycles, each after the last one's accepted run and bonus token; ``same [A, gamma]``."""
    runs = same.long().cumprod(-1).sum(-1).tolist()
    places, at = [], 0
    while at < len(runs):
        places.append(at)
        at += runs[at] + 1
    return places


def repeats(ids: torch.Tensor, anchors: torch.Tensor, width: int = 8) -> torch.Tensor:
    """Bool ``[B, A]``: the ``width`` tokens that end at the anchor occurred earlier in ids ``[B, T]`` already."""
    grams = ids.unfold(1, width, 1)
    last = anchors - width + 1
    own = grams.gather(1, last[..., None].expand(-1, -1, width))
    places = torch.arange(grams.shape[1], device=ids.device)
    return ((own[:, :, None] == grams[:, None]).all(-1) & (places < last[..., None])).any(-1)


def calibration_error(trust: torch.Tensor, label: torch.Tensor, bins: int = 20) -> float:
    """Expected calibration error over equal bins of the predicted probability; both flat, label in [0, 1]."""
    index = (trust * bins).long().clamp(max=bins - 1)
    gap = torch.zeros(bins, dtype=torch.float64).index_add_(0, index, (trust - label).double())
    return float(gap.abs().sum() / max(1, trust.numel()))


def accept_report(
    target: Target,
    drafter: Drafter,
    p: Params,
    ids: torch.Tensor,
    lengths: torch.Tensor,
    new: int,
    gammas: Iterable[int],
) -> dict[str, dict[str, float]]:
    """For each gamma: mean accept length (accepted drafts + 1), accept rate of each row, and calibration errors.

    ``ids`` already hold the greedy continuation. ``ece`` measures confidence against ``1 - TV``, its training label, on
    the rows whose earlier drafts were accepted; ``ece_greedy`` against the greedy outcome on the same rows. A small
    model soon repeats itself, which is easy to draft: ``accept_len_fresh`` leaves out the cycles of ``repeats``.
    """
    report = {}
    for gamma in gammas:
        count = new - gamma
        anchors = lengths[:, None] + torch.arange(count, device=ids.device)
        same, trust, overlap = [], [], []
        for part, at in zip(ids.split(16), anchors.split(16), strict=True):
            outcome = block_outcomes(target, drafter, p, part, at, gamma)
            for store, value in zip((same, trust, overlap), outcome, strict=True):
                store.append(value.cpu())
        flags, probabilities, laws = torch.cat(same), torch.cat(trust), torch.cat(overlap)
        picks = [(i, at) for i, row in enumerate(flags) for at in walk(row)]
        index = tuple(torch.tensor(picks).T)
        fresh = ~torch.cat([repeats(a, b) for a, b in zip(ids.split(4), anchors.split(4), strict=True)]).cpu()[index]
        flags, probabilities, laws = flags[index], probabilities[index], laws[index]
        alive = flags.long().cumprod(-1)
        reached = torch.cat([torch.ones_like(alive[:, :1]), alive[:, :-1]], dim=-1).bool()
        report[str(gamma)] = {
            "accept_len": float(alive.sum(-1).double().mean() + 1),
            "accept_len_fresh": float(alive[fresh].sum(-1).double().mean() + 1),
            "fresh_cycles": int(fresh.sum()),
            "row_accept": [
                round(int(a) / max(1, int(r)), 4) for a, r in zip(alive.sum(0), reached.sum(0), strict=True)
            ],
            "ece": calibration_error(probabilities[reached], laws[reached]),
            "ece_greedy": calibration_error(probabilities[reached], flags[reached].float()),
            "confidence": float(probabilities[reached].mean()),
            "cycles": len(picks),
        }
    return report


@torch.no_grad()
def text_report(
    target: Target, drafter: Drafter, p: Params, windows: torch.Tensor, gamma: int, batch: int = 8
) -> dict[str, float]:
    """On held-out text, teacher-forced: perplexity, mean ``1 - TV`` of row 0, calibration error over all rows."""
    loss, trust, overlap = 0.0, [], []
    for part in windows.split(batch):
        hidden, _, _ = target.forward(p, part[:, :-1])
        loss += float(next_token_loss(target.logits(p, hidden), part[:, 1:])) * len(part)
        anchors = torch.arange(64, part.shape[1] - gamma - 1, 16, device=part.device).expand(len(part), -1)
        _, c, o = block_outcomes(target, drafter, p, part[:, :-1], anchors, gamma)
        trust.append(c.cpu()), overlap.append(o.cpu())
    c, o = torch.cat(trust), torch.cat(overlap)
    return {
        "perplexity": math.exp(loss / len(windows)),
        "overlap_row0": float(o[..., 0].mean()),
        "ece_text": calibration_error(c.flatten(), o.flatten()),
    }


def main() -> None:
    """Evaluate a checkpoint and print the report as JSON."""
    here = pathlib.Path(__file__).resolve().parent.parent
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=pathlib.Path, required=True)
    parser.add_argument("--model", type=pathlib.Path, default=here)
    parser.add_argument("--prompts", type=pathlib.Path, default=here / "prompts.jsonl")
    parser.add_argument("--new", type=int, default=128, help="tokens after each prompt")
    parser.add_argument("--windows", type=int, default=32, help="held-out windows of 512 tokens")
    parser.add_argument("--gammas", type=int, nargs="+", default=list(range(1, 8)))
    parser.add_argument("--show", type=int, default=0, help="print this many continuations")
    args = parser.parse_args()
    device = pick_device()
    settings = Settings.from_file(args.model / "config.json")
    target, drafter = Target(settings, device), Drafter(settings, device)
    p = load(args.model / "model.safetensors", device)
    tokenizer = Tokenizer.from_file(str(args.model / "tokenizer.json"))
    ids, lengths = (x.to(device) for x in load_prompts(args.prompts, tokenizer, settings.bos, args.new))
    ids = greedy_rollout(target, p, ids, lengths)
    windows = fixed_windows(load_stream(args.data / "heldout.npy", device), settings.length + 1)[: args.windows]
    report = {
        "text": text_report(target, drafter, p, windows, settings.gamma),
        "greedy": accept_report(target, drafter, p, ids, lengths, args.new, args.gammas),
    }
    print(json.dumps(report, indent=2))
    for row, length in zip(ids[: args.show].tolist(), lengths.tolist(), strict=False):
        print("-" * 100, tokenizer.decode(row[1:length]) + " >>> " + tokenizer.decode(row[length:]), sep="\n")


if __name__ == "__main__":
    main()
