"""Decodes the shipped prompts on the GPU and on the CPU, compares every token, and looks into every difference.

    python benchmarks/decode_on_gpu.py --out benchmarks/results/decode_h200.json

A greedy token can differ where two logits are nearly equal: kernels and references round sums differently. So for the
first different token of a prompt the CPU target's two largest logits at that place are recorded, with their distance.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import torch

import dspark_ops
from dspark_ops.decode import DecodeOptions, Request, generate, load_model
from dspark_ops.decode.v41.rows import Rows

MODEL = Path(__file__).parents[1] / "examples" / "tiny_v41"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="file that receives the findings as JSON")
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--prompts", type=int, default=0, help="only the first so many; 0: all")
    parser.add_argument("--cpu-tokens", type=Path, help="what `dspark-ops decode --json` gave on a CPU for the same")
    parser.add_argument("--model", type=Path, default=MODEL, help="model directory with prompts.jsonl")
    parser.add_argument("--config", help="configuration of the operator selection")
    options = parser.parse_args()
    lines = (options.model / "prompts.jsonl").read_text(encoding="utf-8").splitlines()
    prompts = [json.loads(line)["prompt"] for line in lines][: options.prompts or None]

    model = load_model(options.model, device="cuda", config=options.config)
    requests = [Request(model.tokenizer.encode(text), options.max_tokens) for text in prompts]
    generate(model, requests[:2], DecodeOptions())  # compiles
    began = time.perf_counter()
    found = generate(model, requests, DecodeOptions(max_batch=10))
    seconds = time.perf_counter() - began
    tokens = [list(result.tokens) for result in found.results]
    cpu = load_model(options.model, device="cpu", config=options.config)
    if options.cpu_tokens:
        wanted = [entry["tokens"] for entry in json.loads(options.cpu_tokens.read_text())["prompts"]][: len(prompts)]
    else:
        wanted = [list(result.tokens) for result in generate(cpu, requests, DecodeOptions(max_batch=10)).results]
    differences = [
        difference(cpu, number, request, mine, theirs)
        for number, (request, mine, theirs) in enumerate(zip(requests, tokens, wanted, strict=True))
        if mine != theirs
    ]
    plan = model.plan()
    report = {
        "what": "greedy DSpark decoding of the shipped prompts on the GPU, each token compared with the CPU's",
        "device": plan.device.to_json(),
        "versions": {"dspark_ops": dspark_ops.__version__, "torch": torch.__version__},
        "plan": plan.digest,
        "kernels": sorted({choice.kernel.id for one in plan.selections for choice in one.choices}),
        "prompts": len(prompts),
        "max_tokens": options.max_tokens,
        "tokens": sum(map(len, tokens)),
        "seconds_on_the_gpu": round(seconds, 2),
        "tokens_per_step": round(found.metrics.mean_accept_len, 3),
        "identical_prompts": len(prompts) - len(differences),
        "differences": differences,
    }
    options.out.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    print(f"{report['identical_prompts']} of {len(prompts)} prompts identical, {report['tokens']} tokens")
    for entry in differences:
        print(entry)


def difference(cpu: Any, number: int, request: Request, mine: list[int], theirs: list[int]) -> dict[str, Any]:
    """Return where two outputs part, and how far the two tokens' logits are apart on the CPU."""
    pairs = zip(mine, theirs, strict=False)
    place = next((at for at, (left, right) in enumerate(pairs) if left != right), min(len(mine), len(theirs)))
    prefix = [*request.prompt, *theirs[:place]]
    with torch.inference_mode():
        state = cpu.state(1)
        rows = Rows.of([(0, position, token) for position, token in enumerate(prefix)])
        last = torch.tensor([len(prefix) - 1])
        logits = cpu.target.forward(cpu.ops().at(site="verify"), state, rows, last).logits[0]
    top = logits.topk(2)
    return {
        "prompt": number,
        "at": place,
        "gpu": mine[place : place + 1],
        "cpu": theirs[place : place + 1],
        "top_two": top.indices.tolist(),
        "logits": [round(value, 6) for value in top.values.tolist()],
        "distance": round(float(top.values[0] - top.values[1]), 6),
    }


if __name__ == "__main__":
    main()
