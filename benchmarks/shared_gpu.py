"""What another process on the GPU changes: the same graphs timed alone, and after another process had a context there.

    python benchmarks/shared_gpu.py --out benchmarks/results/shared_gpu_h200.json

A context of another process changes, for as long as this one lives, how soon a kernel that is set up early begins (PDL,
programmatic dependent launch): kernels that let the next one be set up at their end, as SGLang's do, take about 0.1 us
less from then on, though the other process is gone. `record_gpu.py` times in that state, since its workers all have
contexts; a server that has a GPU to itself may be in the other one. So what is compared is compared in both.
"""

from __future__ import annotations

import argparse
import copy
import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from dspark_ops.bench.machine import machine_facts, require_gpu
from dspark_ops.bench.micro import Bench, Group
from dspark_ops.bench.peers import load_peer
from dspark_ops.selection.settings import Settings

MODEL = "deepseek-v4.1-flash/tp4"
#: Operators of a microsecond or two that SGLang has, too.
OPERATORS = (
    "accept_greedy", "candidate_lengths", "compress_c1", "compress_c2", "index_k_store", "k_norm_rope_store",
    "mhc_post", "q_rope_store", "silu_mul_clamp",
)  # fmt: skip
#: A process that makes a context and ends.
VISITOR = "import torch; torch.zeros(1, device='cuda'); torch.cuda.synchronize()"


def timed(groups: Mapping[str, Group], rounds: int) -> dict[str, dict[str, Any]]:
    """Return the figures of every group's arms, by operator."""
    return {name: copy.deepcopy(group.timed(rounds)["arms"]) for name, group in groups.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="file that receives the figures as JSON")
    parser.add_argument("--ops", default=",".join(OPERATORS), help="operators, with commas between")
    parser.add_argument("--vs", default="sglang", help="peers, with commas between")
    parser.add_argument("--rows", type=int, default=6)
    parser.add_argument("--rounds", type=int, default=12)
    options = parser.parse_args()
    device = require_gpu()
    peers = [load_peer(name, Path(__file__).parent / "peers") for name in options.vs.split(",") if name]
    bench = Bench(device, MODEL, Settings(), peers)
    groups = {name: bench.group(name, options.rows) for name in options.ops.split(",")}
    failed = {name: group.record["failed"] for name, group in groups.items() if "failed" in group.record}
    for name in failed:
        del groups[name]
    states = {"alone": timed(groups, options.rounds)}
    subprocess.run([sys.executable, "-c", VISITOR], check=True)
    states["after_another_process"] = timed(groups, options.rounds)
    record = {
        "what": "microseconds per call as in record_gpu.py, in one process: alone on the GPU, and after another "
        "process had a context there and ended",
        "model": MODEL,
        "rows": options.rows,
        "rounds": options.rounds,
        "machine": machine_facts(device),
        "failed": failed,
        "states": states,
    }
    for name in groups:
        for state, arms in states.items():
            figures = "  ".join(f"{arm} {figure['median_us']:.2f}" for arm, figure in arms[name].items())
            print(f"{name:26} {state:22} {figures}", flush=True)
    if options.out:
        options.out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    torch.cuda.synchronize()


if __name__ == "__main__":
    main()
