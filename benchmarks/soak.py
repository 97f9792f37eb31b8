"""Two hundred requests of all kinds through the service, with the shipped model: each compared with itself alone.

    python benchmarks/soak.py [--requests 200] [--output benchmarks/results/soak.json]
    python benchmarks/soak.py --device cuda --runtimes --output benchmarks/results/soak_h200.json

Prompts are held-out ones that the model ships with. Lengths, temperatures, stop strings, arrivals and cancellations are
drawn from a seed; the requests are dealt out among all ways to decode (`dspark_ops.conformance.soak.MODES`). Every
greedy request must give the tokens of plain decoding of its prompt alone, and nothing may be held when all have ended.

With --runtimes the ways are those whose steps are captured on a GPU, first with greedy requests alone, so that most
steps are folded, then with sampled ones among them. While a folded cycle is launched, waiting for the device is an
error. Then the same requests run with drawn accept lengths, of every law and scope, packed, captured and folded: tokens
and lengths must be the same. The exit code is 1 if something differs or is left.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import json
import os
import platform
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

import dspark_ops
from dspark_ops.conformance.soak import MODES, RUNTIME_MODES, SoakReport, SoakSpec, run_soak
from dspark_ops.decode import DecodeOptions, Model, Request, generate, load_model
from dspark_ops.decode.forced import ForcedAcceptance
from dspark_ops.decode.options import Execution
from dspark_ops.decode.runtimes.folded import FoldedSteps

ROOT = Path(__file__).resolve().parents[1]
MODEL = ROOT / "examples" / "tiny_v41"
LAWS = ("two_point", "per_position", "normal_clamped")
SCOPES = ("per_request", "per_step")


@contextmanager
def waiting_is_an_error(device: str) -> Iterator[list[int]]:
    """Let every folded cycle fail that waits for the device, and give a list that holds how many were watched."""
    launch, watched = FoldedSteps.step, [0]

    def step(steps: FoldedSteps, running: Any) -> None:
        watched[0] += 1
        if device == "cuda":
            torch.cuda.set_sync_debug_mode("error")
        try:
            launch(steps, running)
        finally:
            if device == "cuda":
                torch.cuda.set_sync_debug_mode("default")

    FoldedSteps.step = step  # type: ignore[method-assign]
    try:
        yield watched
    finally:
        FoldedSteps.step = launch  # type: ignore[method-assign]


def simulated(model: Model, prompts: list[tuple[int, ...]], tokens: int, mean: float) -> list[dict[str, Any]]:
    """Return what runs with drawn accept lengths give: one entry per law and scope."""
    asked = [Request(prompt, tokens + number) for number, prompt in enumerate(prompts)]
    entries = []
    for law in LAWS:
        for scope in SCOPES:
            forced = ForcedAcceptance(mean, law, scope, seed=1)
            ways = (Execution.PACKED, Execution.GRAPH, Execution.FOLDED)
            runs = {
                way.value: generate(
                    model, asked, DecodeOptions(max_batch=len(asked), forced=forced, ignore_eos=True, execution=way)
                )
                for way in ways
            }
            texts = [[result.tokens for result in run.results] for run in runs.values()]
            lengths = [dict(run.metrics.histogram) for run in runs.values()]
            folded = runs[Execution.FOLDED.value]
            entries.append(
                {
                    "same_tokens": all(text == texts[0] for text in texts),
                    "same_lengths": all(found == lengths[0] for found in lengths),
                    "all_marked": all(result.simulated for run in runs.values() for result in run.results),
                    "whole_run_folded": folded.metrics.folded == folded.metrics.forwards,
                    "cycle_us": {
                        way: round(1e6 * run.metrics.seconds / run.metrics.forwards, 1) for way, run in runs.items()
                    },
                    "report": dict(folded.simulated or {}),
                }
            )
    return entries


def versions() -> dict[str, str]:
    """Return the versions that matter."""
    found = {"dspark-ops": dspark_ops.__version__, "torch": torch.__version__, "python": platform.python_version()}
    try:
        found["triton"] = version("triton")
    except PackageNotFoundError:
        found["triton"] = "none"
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=200, help="of each soak")
    parser.add_argument("--prompts", type=int, default=10)
    parser.add_argument("--longest", type=int, default=24, help="most tokens of a request")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--runtimes", action="store_true", help="captured and folded ways, and drawn accept lengths")
    parser.add_argument("--mean", type=float, default=3.51, help="drawn tokens per step, with --runtimes")
    parser.add_argument("--output", type=Path, help="default: soak.json or soak_runtimes.json in benchmarks/results")
    asked = parser.parse_args()
    model = load_model(MODEL, device=asked.device, config={"policy": {"fallback": "allow"}})
    lines = (MODEL / "prompts.jsonl").read_text(encoding="utf-8").splitlines()[: asked.prompts]
    prompts = [model.text().encode(json.loads(line)["prompt"]) for line in lines]
    pages = max(-(-(len(prompt) + asked.longest + 8) // 128) for prompt in prompts)
    spec = SoakSpec(prompts, asked.requests, asked.longest, max_batch=8, cache_pages=5 * pages, seed=asked.seed)
    soaks = {"all kinds": (spec, MODES)}
    if asked.runtimes:
        greedy = dataclasses.replace(spec, sampled=0.0)
        soaks = {"greedy": (greedy, RUNTIME_MODES), "greedy and sampled": (spec, RUNTIME_MODES)}
    began = time.perf_counter()
    with waiting_is_an_error(asked.device) as watched:
        reports = {name: run_soak(model, *soak) for name, soak in soaks.items()}
    drawn = simulated(model, prompts[:4], asked.longest, asked.mean) if asked.runtimes else []
    plan = model.plan()
    record: dict[str, Any] = {
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "machine": {"processor": platform.machine(), "cores": os.cpu_count(), "device": plan.device.to_json()},
        "versions": versions(),
        "plan": plan.digest,
        "kernels": sorted({choice.kernel.id for each in plan.selections for choice in each.choices}),
        "spec": {
            "requests": spec.requests,
            "prompts": len(prompts),
            "longest": spec.longest,
            "max_batch": spec.max_batch,
            "cache_pages": spec.cache_pages,
            "seed": spec.seed,
        },
        "seconds": round(time.perf_counter() - began, 1),
        "captured": asked.runtimes and asked.device == "cuda",
        "folded_cycles_that_did_not_wait": watched[0] if asked.device == "cuda" else None,
    }
    if asked.runtimes:
        record |= {"soaks": {name: report.to_json() for name, report in reports.items()}, "simulated": drawn}
    else:
        record |= reports["all kinds"].to_json()
    default = "soak_runtimes.json" if asked.runtimes else "soak.json"
    output = asked.output or ROOT / "benchmarks" / "results" / default
    output.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    return 1 if any([*(said(name, report) for name, report in reports.items()), said_of_drawn(drawn)]) else 0


def said(name: str, report: SoakReport) -> bool:
    """Print what came out of a soak; return whether something is wrong."""
    folded = sum(metrics.folded for metrics in report.metrics.values())
    forwards = sum(metrics.forwards for metrics in report.metrics.values())
    print(
        f"{name}: {sum(report.modes.values())} requests, {report.compared} compared: {len(report.different)} differ; "
        f"{folded} of {forwards} cycles folded; {report.waited} steps waited for pages"
    )
    print("\n".join([*report.different, *report.leaked]) or "nothing is left")
    return bool(report.different or report.leaked)


def said_of_drawn(entries: list[dict[str, Any]]) -> bool:
    """Print what came out of the runs with drawn lengths; return whether something is wrong."""
    for entry in entries:
        found = entry["report"]
        wrong = [name for name in ("same_tokens", "same_lengths", "all_marked", "whole_run_folded") if not entry[name]]
        print(
            f"simulated {found['law']}, {found['scope']}: {found['realised_mean']:.3f} tokens per step of "
            f"{found['law_mean']:.3f}; us per cycle {entry['cycle_us']}; {', '.join(wrong) or 'all'} "
            f"{'is wrong' if wrong else 'as wanted'}"
        )
    keys = ("same_tokens", "same_lengths", "all_marked", "whole_run_folded")
    return not all(entry[key] for entry in entries for key in keys)


if __name__ == "__main__":
    sys.exit(main())
