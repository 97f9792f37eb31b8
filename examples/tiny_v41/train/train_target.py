"""Train the target on the training stream for a given number of seconds.

Writes ``target.safetensors`` (the best held-out loss so far) and ``target_log.jsonl``. The learning rate follows the
wall clock, so a run of any length ends its decay and loses nothing to a time limit.
"""

from __future__ import annotations

import argparse
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
    random_windows,
    trainable,
    update,
)
from losses import next_token_loss
from model import Target
from settings import Settings
from weights import first_values, save, target_shapes


@torch.no_grad()
def heldout_loss(target: Target, params: Params, windows: torch.Tensor, batch: int = 32) -> float:
    """Mean next-token loss (nats a token) over int64 ``windows [N, T + 1]``."""
    total = 0.0
    for part in windows.split(batch):
        hidden, _, _ = target.forward(params, part[:, :-1])
        total += float(next_token_loss(target.logits(params, hidden), part[:, 1:])) * len(part)
    return total / len(windows)


def main() -> None:
    """Parse the command line and train."""
    started = time.monotonic()
    here = pathlib.Path(__file__).resolve().parent.parent
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=pathlib.Path, required=True)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--model", type=pathlib.Path, default=here)
    parser.add_argument("--seconds", type=float, default=360, help="from the start of the script to the last step")
    parser.add_argument("--max-steps", type=int, help="count steps instead of seconds")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--rate", type=float, default=3e-3)
    parser.add_argument("--decay", type=float, default=0.1)
    parser.add_argument("--drop", type=float, default=0.05)
    parser.add_argument("--seed", type=int, default=41)
    parser.add_argument("--eval-every", type=float, default=0.08, help="share of the run between held-out evaluations")
    parser.add_argument("--no-compile", action="store_true")
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    device = pick_device()
    settings = Settings.from_file(args.model / "config.json")
    target = Target(settings, device)
    params = {k: v.to(device) for k, v in first_values(target_shapes(settings), settings, args.seed).items()}
    params = trainable(params)
    prefixes = [f"layers.{i}." for i in range(settings.layers)]
    stream = load_stream(args.data / "train.npy", device)
    heldout = fixed_windows(load_stream(args.data / "heldout.npy", device), args.length + 1)
    log = Log(args.out / "target_log.jsonl")
    optimizer = make_optimizer(params, args.decay)

    def loss_of(params: Params, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        hidden, _, shares = target.forward(params, ids[:, :-1], drop=args.drop)
        return next_token_loss(target.logits(params, hidden), ids[:, 1:]), shares

    step_loss = compiled(loss_of, not args.no_compile)
    schedule = Schedule(args.rate, started + args.seconds, args.max_steps)
    best, next_eval, smooth = float("inf"), args.eval_every, []
    while schedule.progress < 1:
        rate = schedule.rate()
        ids = random_windows(stream, args.batch, args.length + 1, settings.bos)
        loss, shares = step_loss(params, ids)
        norm = update(params, optimizer, loss, rate)
        balance(params, prefixes, shares, 1e-3 * rate / args.rate)
        smooth.append(loss.detach())
        if schedule.step == 1:
            log(event="first step", loss=float(loss.detach()), tokens=args.batch * args.length)
            schedule.restart()
        if schedule.step % 50 == 0:
            mean = float(torch.stack(smooth).mean())
            smooth.clear()
            log(step=schedule.step, loss=mean, rate=rate, norm=float(norm), share=float(shares.max()))
        if schedule.progress >= min(next_eval, 1.0):
            next_eval = schedule.progress + args.eval_every
            value = heldout_loss(target, params, heldout[:128])
            log(step=schedule.step, heldout=value)
            if value < best:
                best = value
                save(params, args.out / "target.safetensors")
    value = heldout_loss(target, params, heldout[:128])
    if value < best:
        save(params, args.out / "target.safetensors")
    full = heldout_loss(target, params, heldout) if args.max_steps is None else value
    log(step=schedule.step, heldout=value, full=full, event="end")


if __name__ == "__main__":
    main()
