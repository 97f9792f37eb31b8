"""Decodes some shipped prompts on one rank and on several, compares every token, and times the cycles.

    python benchmarks/ranks.py --device cuda --ranks 1 2 --execution packed graph folded --out FILE.json
    python benchmarks/ranks.py --device cpu --ranks 1 2 4 --prompts 2 --max-tokens 16 --out FILE.json

On cuda every rank has a GPU of its own, over NCCL; where there is only one, all ranks share it, over gloo, and steps
can then not be captured in graphs. The model is far too small to gain from ranks: the times say what exchanges cost.
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from pathlib import Path
from typing import Any

import torch

import dspark_ops
from dspark_ops.decode import DecodeOptions, Request, decode_plain, generate, load_model
from dspark_ops.decode.options import Execution
from dspark_ops.decode.ranks.group import SOLO, RankGroup
from dspark_ops.decode.ranks.launch import run_processes
from dspark_ops.errors import DsparkOpsError

MODEL = Path(__file__).parents[1] / "examples" / "tiny_v41"


def decoded(group: RankGroup, device: str, prompts: list[str], most: int, execution: str) -> dict[str, Any]:
    """Return what one rank finds: tokens of both ways, seconds, cycles, and the plan's digest."""
    model = load_model(MODEL, device=device, config={"policy": {"fallback": "allow"}}, ranks=group)
    requests = [Request(model.text().encode(text), most) for text in prompts]
    options = DecodeOptions(max_batch=len(requests), execution=Execution(execution))
    generate(model, requests[:1], options)  # compiles
    began = time.perf_counter()
    found = generate(model, requests, options)
    seconds = time.perf_counter() - began
    plain = decode_plain(model, requests, options)
    return {
        "tokens": [list(result.tokens) for result in found.results],
        "as_plain": [left.tokens == right.tokens for left, right in zip(found.results, plain.results, strict=True)],
        "seconds": round(seconds, 3),
        "cycles": found.metrics.forwards,
        "cycle_ms": round(1e3 * found.metrics.seconds / max(found.metrics.forwards, 1), 3),
        "tokens_per_step": round(found.metrics.mean_accept_len, 3),
        "plan": model.plan().digest,
        "device": model.plan().device.to_json(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="file that receives the findings as JSON")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--execution", nargs="+", default=["packed"], choices=[way.value for way in Execution])
    parser.add_argument("--prompts", type=int, default=4)
    parser.add_argument("--max-tokens", type=int, default=32)
    options = parser.parse_args()
    lines = (MODEL / "prompts.jsonl").read_text(encoding="utf-8").splitlines()
    prompts = [json.loads(line)["prompt"] for line in lines][: options.prompts]

    runs = []
    for execution in options.execution:
        arguments = (options.device, prompts, options.max_tokens, execution)
        alone = decoded(SOLO, *arguments)
        for ranks in options.ranks:
            entry: dict[str, Any] = {"ranks": ranks, "execution": execution}
            try:
                found = alone if ranks == 1 else run_processes(decoded, arguments, ranks, device=options.device)
            except DsparkOpsError as error:
                entry["error"] = f"{type(error).__name__}: {error}"
                print(f"{ranks} ranks, {execution}: {entry['error']}")
            else:
                entry |= found
                entry["as_one_rank"] = [
                    left == right for left, right in zip(entry.pop("tokens"), alone["tokens"], strict=True)
                ]
                print(
                    f"{ranks} ranks, {execution}, {len(prompts)} prompts: {sum(entry['as_one_rank'])} as on one rank, "
                    f"{sum(entry['as_plain'])} as in plain decoding, {entry['cycle_ms']} ms per cycle"
                )
            runs.append(entry)
    report = {
        "what": "greedy DSpark decoding of the shipped model on one rank and on several",
        "host": platform.platform(),
        "gpus": torch.cuda.device_count() if options.device == "cuda" else 0,
        "versions": {"dspark_ops": dspark_ops.__version__, "torch": torch.__version__},
        "prompts": len(prompts),
        "max_tokens": options.max_tokens,
        "method": "one run after one that compiles; cycle_ms is the time of all cycles, no prefill, by their number",
        "runs": runs,
    }
    options.out.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
