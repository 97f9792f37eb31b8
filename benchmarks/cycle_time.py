"""What a decode cycle of the small model takes on a GPU: packed steps, captured steps, folded captured steps.

    python benchmarks/cycle_time.py [--output benchmarks/results/cycle_time_h200.json]

Greedy, on held-out prompts that the model ships with. Every way decodes the same prompts for the same number of tokens,
ignoring the end of text, and must give the same tokens. The ways take turns, round after round; a cycle's time is the
wall time behind the prefills over the number of target forwards, and the figure is the median of the rounds. The first
round of each, in which kernels are compiled, is not counted. Capturing is outside the measured time.
"""

from __future__ import annotations

import argparse
import datetime
import json
import platform
import statistics
import sys
from pathlib import Path
from typing import Any

import torch

from dspark_ops.decode import DecodeOptions, Generation, Model, Request, generate, load_model
from dspark_ops.decode.options import Execution

ROOT = Path(__file__).resolve().parents[1]
MODEL = ROOT / "examples" / "tiny_v41"


def prompts(model: Model, count: int, tokens: int) -> list[Request]:
    """Return requests from the shipped prompts."""
    if model.tokenizer is None:
        raise SystemExit("the model has no tokenizer")
    lines = (MODEL / "prompts.jsonl").read_text(encoding="utf-8").splitlines()[:count]
    return [Request(model.tokenizer.encode(json.loads(line)["prompt"]), tokens) for line in lines]


def cycle_us(run: Generation) -> float:
    """Return the mean time of a cycle in microseconds."""
    return run.metrics.seconds / run.metrics.forwards * 1e6


def measure(model: Model, batch: int, tokens: int, rounds: int) -> dict[str, Any]:
    """Time every way for one batch size."""
    requests = prompts(model, batch, tokens)
    times: dict[str, list[float]] = {way.value: [] for way in Execution}
    texts, metrics = {}, {}
    for turn in range(rounds + 1):
        for way in Execution:
            run = generate(model, requests, DecodeOptions(max_batch=batch, execution=way, ignore_eos=True))
            texts[way.value] = [result.tokens for result in run.results]
            metrics[way.value] = run.metrics
            if turn:
                times[way.value].append(cycle_us(run))
    packed = texts[Execution.PACKED.value]
    return {
        "requests": batch,
        "tokens": tokens,
        "identical": {way: found == packed for way, found in texts.items()},
        "cycle_us": {way: round(statistics.median(values), 1) for way, values in times.items()},
        "cycle_us_rounds": {way: [round(value, 1) for value in values] for way, values in times.items()},
        "mean_accept_len": round(metrics[Execution.PACKED.value].mean_accept_len, 3),
        "folded": metrics[Execution.FOLDED.value].folded,
        "unfolded": dict(metrics[Execution.FOLDED.value].unfolded),
    }


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path)
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    model = load_model(MODEL, device=arguments.device, config={"policy": {"fallback": "allow"}})
    name = torch.cuda.get_device_name(0) if arguments.device == "cuda" else platform.processor()
    report = {
        "date": datetime.date.today().isoformat(),
        "machine": {"device": name, "torch": torch.__version__, "python": platform.python_version()},
        "runs": [measure(model, batch, arguments.tokens, arguments.rounds) for batch in arguments.batches],
    }
    text = json.dumps(report, indent=1)
    print(text)
    if arguments.output:
        arguments.output.write_text(text + "\n", encoding="utf-8")
    return 0 if all(all(run["identical"].values()) for run in report["runs"]) else 1


if __name__ == "__main__":
    sys.exit(main())
