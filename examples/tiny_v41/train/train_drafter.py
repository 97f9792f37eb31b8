"""Train the drafter against a frozen target for a given number of seconds, then evaluate the pair.

Reads ``target.safetensors``; writes ``model.safetensors`` (target and drafter), ``drafter_log.jsonl`` and
``report.json``.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import time

import torch
from blocks import Params
from common import (
    Log,
    Schedule,
    balance,
    compiled,
    fixed_windows,
    load_stream,
    make_optimizer,
    pick_device,
    trainable,
    update,
)
from draft import Drafter
from evaluate import accept_report, load_prompts, text_report
from losses import DraftWeights, draft_loss
from model import Target, greedy_rollout
from rollouts import MARGIN, SLICE, Store, continue_prompts, observe
from settings import Settings
from tokenizers import Tokenizer
from weights import draft_shapes, first_values, load, save

ROWS = 7
"""Rows computed a block; the block's own length is drawn from ``GAMMA_SHARES`` and masks the rest."""

GAMMA_SHARES = (0.06, 0.06, 0.06, 0.08, 0.5, 0.06, 0.18)
"""Shares of block lengths 1..7: the configured 5 most often, every other length often enough to work."""


def draw_batch(real: Store, own: Store, count: int, real_share: float, blocks: int) -> dict[str, torch.Tensor]:
    """One batch: items from both stores, ``blocks`` random anchors in each, a random length for each block."""
    few = round(count * real_share)
    drawn = [torch.cat(pair) for pair in zip(real.draw(few), own.draw(count - few), strict=True)]
    ids, features, hidden, first, offset = drawn
    device = ids.device
    span = (SLICE - MARGIN - first)[:, None]
    anchors = first[:, None] + (torch.rand(count, blocks, device=device) * span).long()
    shares = torch.tensor(GAMMA_SHARES, device=device)
    gamma = torch.multinomial(shares, count * blocks, replacement=True).view(count, blocks) + 1
    places = anchors[..., None] + torch.arange(ROWS, device=device)
    previous = ids.gather(1, places.flatten(1)).view_as(places)
    rows = hidden[torch.arange(count, device=device)[:, None, None], places]
    return {
        "features": features, "previous": previous, "rows": rows, "anchors": anchors, "gamma": gamma, "offset": offset
    }  # fmt: skip


def main() -> None:
    """Parse the command line, train and evaluate."""
    started = time.monotonic()
    here = pathlib.Path(__file__).resolve().parent.parent
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=pathlib.Path, required=True)
    parser.add_argument("--target", type=pathlib.Path, required=True, help="target.safetensors")
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--model", type=pathlib.Path, default=here)
    parser.add_argument("--seconds", type=float, default=240, help="from the start of the script to the last step")
    parser.add_argument("--max-steps", type=int, help="count steps instead of seconds")
    parser.add_argument("--prompts", type=int, default=32768, help="greedy continuations to train on")
    parser.add_argument("--windows", type=int, default=100_000, help="real windows of 512 tokens to train on, at most")
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--blocks", type=int, default=32)
    parser.add_argument("--real-share", type=float, default=0.25)
    parser.add_argument("--rate", type=float, default=2e-3)
    parser.add_argument("--decay", type=float, default=0.05)
    parser.add_argument("--seed", type=int, default=42)
    parser.add_argument("--no-compile", action="store_true")
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    device = pick_device()
    settings = Settings.from_file(args.model / "config.json")
    target, drafter = Target(settings, device), Drafter(settings, device)
    frozen = load(args.target, device)
    own = trainable({k: v.to(device) for k, v in first_values(draft_shapes(settings), settings, args.seed).items()})
    prefixes = [f"mtp.{i}." for i in range(settings.stages)]
    log = Log(args.out / "drafter_log.jsonl")
    tokenizer = Tokenizer.from_file(str(args.model / "tokenizer.json"))
    prompts, lengths = (x.to(device) for x in load_prompts(args.model / "prompts.jsonl", tokenizer, settings.bos, 128))
    prompts = greedy_rollout(target, frozen, prompts, lengths)
    log(event="prompts continued")
    starts = load_stream(args.data / "starts.npy", device)
    continued = continue_prompts(target, frozen, starts, args.prompts, 4096, settings.bos)
    log(event="continuations", sequences=len(continued.ids))
    windows = fixed_windows(load_stream(args.data / "train.npy", device), settings.length)[: args.windows].clone()
    windows[::2, 0] = settings.bos
    real = observe(target, frozen, windows, torch.ones(len(windows), dtype=torch.long, device=device))
    log(event="real text", sequences=len(real.ids))
    optimizer = make_optimizer(own, args.decay)
    terms_weight = DraftWeights()

    def loss_of(frozen: Params, own: Params, b: dict[str, torch.Tensor]) -> tuple[torch.Tensor, dict, torch.Tensor]:
        p = frozen | own
        rows, shares = drafter.forward(
            p, b["features"], b["previous"][..., 0], b["anchors"], b["gamma"], ROWS, b["offset"]
        )
        live = (torch.arange(ROWS, device=rows.device) < b["gamma"][..., None]).float()
        laws = target.logits(p, b["rows"])
        draft = drafter.logits(p, rows, b["previous"])
        loss, terms = draft_loss(draft, laws, drafter.confidence(p, rows, b["previous"]), live, terms_weight)
        return loss, terms, shares

    step_loss = compiled(loss_of, not args.no_compile)
    schedule = Schedule(args.rate, started + args.seconds, args.max_steps)
    gathered: list[dict[str, torch.Tensor]] = []
    next_eval = 0.2
    while schedule.progress < 1:
        rate = schedule.rate()
        batch = draw_batch(real, continued, args.batch, args.real_share, args.blocks)
        loss, terms, shares = step_loss(frozen, own, batch)
        update(own, optimizer, loss, rate)
        balance(own, prefixes, shares, 1e-3 * rate / args.rate)
        gathered.append(terms | {"loss": loss.detach()})
        if schedule.step == 1:
            log(event="first step", loss=float(loss.detach()))
            schedule.restart()
        if schedule.step % 50 == 0:
            means = {k: float(torch.stack([t[k] for t in gathered]).mean()) for k in gathered[0]}
            gathered.clear()
            log(step=schedule.step, rate=rate, **means)
        if schedule.progress >= next_eval:
            next_eval = schedule.progress + 0.2
            report = accept_report(target, drafter, frozen | own, prompts, lengths, 128, range(5, 6))["5"]
            log(step=schedule.step, accept_len=report["accept_len"], ece=report["ece"])
            save(frozen | own, args.out / "model.safetensors")
    save(frozen | own, args.out / "model.safetensors")
    p = load(args.out / "model.safetensors", device)
    heldout = fixed_windows(load_stream(args.data / "heldout.npy", device), settings.length + 1)
    report = {"text": text_report(target, drafter, p, heldout[: 256 if args.max_steps is None else 8], settings.gamma)}
    report["greedy"] = accept_report(target, drafter, p, prompts, lengths, 128, range(1, 8))
    (args.out / "report.json").write_text(json.dumps(report, indent=2) + "\n")
    log(event="end", accept_len=report["greedy"]["5"]["accept_len"], ece=report["greedy"]["5"]["ece"])
    print(json.dumps(report))


if __name__ == "__main__":
    main()
