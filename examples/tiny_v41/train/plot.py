"""Draw ``training.png`` from the two committed logs: what the target and the drafter learned, and when."""

from __future__ import annotations

import argparse
import json
import pathlib

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt


def read_log(path: pathlib.Path) -> list[dict]:
    """The records of a JSON-lines log."""
    return [json.loads(line) for line in path.read_text().splitlines()]


def curve(records: list[dict], key: str) -> tuple[list[int], list[float]]:
    """(steps, values) of the records that hold ``key``."""
    rows = [(record["step"], record[key]) for record in records if key in record and "step" in record]
    return [row[0] for row in rows], [row[1] for row in rows]


def draw(target: list[dict], drafter: list[dict], report: dict) -> plt.Figure:
    """Four panels: target loss, drafter losses, agreement while training, accept length by gamma."""
    figure, axes = plt.subplots(2, 2, figsize=(11, 7), constrained_layout=True)
    panel = axes[0, 0]
    panel.plot(*curve(target, "loss"), label="training (with dropout)", lw=1)
    panel.plot(*curve(target, "heldout"), "o-", ms=3, label="held-out, 128 windows")
    panel.set(title="target: next-token loss", xlabel="step", ylabel="nats a token", ylim=(1.3, 4))
    panel = axes[0, 1]
    for key, label in (("hard", "cross-entropy, target argmax"), ("soft", "cross-entropy, target law")):
        panel.plot(*curve(drafter, key), label=label, lw=1)
    for key, label in (("distance", "total variation"), ("trust", "confidence BCE")):
        panel.plot(*curve(drafter, key), label=label, lw=1)
    panel.set(title="drafter: loss terms", xlabel="step", ylim=(0, 3))
    panel = axes[1, 0]
    steps, same = curve(drafter, "same")
    panel.plot(steps, same, lw=1, label="rows equal to the target's argmax (training)")
    panel.set(title="drafter: agreement", xlabel="step", ylim=(0, 1))
    other = panel.twinx()
    other.plot(*curve(drafter, "accept_len"), "o-", ms=4, color="tab:green", label="accept length, gamma 5 (held-out)")
    other.set(ylim=(1, 6), ylabel="tokens a cycle")
    lines = panel.get_lines() + other.get_lines()
    panel.legend(lines, [line.get_label() for line in lines], loc="lower right", fontsize=8)
    panel = axes[1, 1]
    gammas = [int(gamma) for gamma in report["greedy"]]
    lengths = [report["greedy"][str(gamma)]["accept_len"] for gamma in gammas]
    bars = panel.bar(gammas, lengths, color="tab:green", alpha=0.7, label="greedy, 50 held-out prompts")
    panel.bar_label(bars, fmt="%.2f", fontsize=8)
    panel.plot(gammas, [gamma + 1 for gamma in gammas], "k:", lw=1, label="gamma + 1")
    panel.set(title="accept length by gamma", xlabel="gamma", ylabel="tokens a cycle")
    for panel in (axes[0, 0], axes[0, 1], axes[1, 1]):
        panel.legend(fontsize=8)
    for panel in axes.flat:
        panel.grid(alpha=0.3)
    return figure


def main() -> None:
    """Read ``logs/`` and write the picture beside ``config.json``."""
    here = pathlib.Path(__file__).resolve().parent
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--logs", type=pathlib.Path, default=here / "logs")
    parser.add_argument("--out", type=pathlib.Path, default=here.parent / "training.png")
    args = parser.parse_args()
    report = json.loads((args.logs / "report.json").read_text())
    figure = draw(read_log(args.logs / "target.jsonl"), read_log(args.logs / "drafter.jsonl"), report)
    figure.savefig(args.out, dpi=100)


if __name__ == "__main__":
    main()
