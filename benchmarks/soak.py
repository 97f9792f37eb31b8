"""Two hundred requests of all kinds through the service, with the shipped model: each compared with itself alone.

    python benchmarks/soak.py [--requests 200] [--output benchmarks/results/soak.json]

Prompts are held-out ones that the model ships with. Lengths, temperatures, stop strings, arrivals and cancellations are
drawn from a seed; the requests are dealt out among all ways to decode (`dspark_ops.conformance.soak.MODES`). Every
greedy request must give the tokens of plain decoding of its prompt alone, and nothing may be held when all have ended.
The exit code is 1 if one differs or something is left.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import sys
import time
from pathlib import Path

import torch

import dspark_ops
from dspark_ops.conformance.soak import SoakSpec, run_soak
from dspark_ops.decode import load_model

ROOT = Path(__file__).resolve().parents[1]
MODEL = ROOT / "examples" / "tiny_v41"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, default=200)
    parser.add_argument("--prompts", type=int, default=10)
    parser.add_argument("--longest", type=int, default=24)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--output", type=Path, default=ROOT / "benchmarks" / "results" / "soak.json")
    asked = parser.parse_args()
    model = load_model(MODEL, device=asked.device)
    lines = (MODEL / "prompts.jsonl").read_text(encoding="utf-8").splitlines()[: asked.prompts]
    prompts = [model.text().encode(json.loads(line)["prompt"]) for line in lines]
    pages = max(-(-(len(prompt) + asked.longest + 8) // 128) for prompt in prompts)
    spec = SoakSpec(prompts, asked.requests, asked.longest, max_batch=8, cache_pages=5 * pages, seed=asked.seed)
    began = time.perf_counter()
    report = run_soak(model, spec)
    record = {
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "machine": {"processor": platform.machine(), "cores": os.cpu_count(), "device": asked.device},
        "versions": {
            "dspark-ops": dspark_ops.__version__,
            "torch": torch.__version__,
            "python": platform.python_version(),
        },
        "plan": model.plan().digest,
        "spec": {
            "requests": spec.requests,
            "prompts": len(prompts),
            "longest": spec.longest,
            "max_batch": spec.max_batch,
            "cache_pages": spec.cache_pages,
            "seed": spec.seed,
        },
        "seconds": round(time.perf_counter() - began, 1),
        **report.to_json(),
    }
    asked.output.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    print(f"{sum(report.modes.values())} requests, {report.compared} compared: {len(report.different)} differ")
    print("\n".join([*report.different, *report.leaked]) or "nothing is left")
    return 1 if report.different or report.leaked else 0


if __name__ == "__main__":
    sys.exit(main())
