"""Decodes the shipped prompts on the GPU and on the CPU, compares every token, and looks into every difference.

    python benchmarks/decode_on_gpu.py --out benchmarks/results/decode_h200.json

A greedy token can differ where two logits are nearly equal: kernels and references round sums differently, by a unit
of bfloat16 here and there, and the layers behind carry that on. So for the first different token of a prompt both
targets see the same tokens before it, and what is recorded is the distance of the two tokens' logits on the CPU, and
how far the GPU's logits are from the CPU's there. The same deviation is taken at the end of some prompts' CPU texts, to
say what is usual. And to say what rounding alone can do, the CPU's target is run again with one unit of bfloat16 added
to or taken from one per cent of its operators' outputs, at random: `noise` is how far that moves its logits.
DSpark on the GPU is compared with plain decoding on the GPU too.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any

import torch

import dspark_ops
from dspark_ops.decode import DecodeOptions, Request, decode_plain, generate, load_model
from dspark_ops.decode.v41.rows import Rows

#: About so many prompts say which deviation of logits is usual.
SOME = 12
#: Share of the values that `noise` moves.
SHARE = 0.01
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
    plain = decode_plain(model, requests, DecodeOptions(max_batch=10))
    differences = [
        difference(model, cpu, number, request, mine, theirs)
        for number, (request, mine, theirs) in enumerate(zip(requests, tokens, wanted, strict=True))
        if mine != theirs
    ]
    some = list(zip(requests, wanted, strict=True))[:: max(1, len(requests) // SOME)]
    usual = [deviation(model, cpu, [*request.prompt, *text])[0] for request, text in some]
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
        "same_as_plain_on_the_gpu": sum(
            left.tokens == right.tokens for left, right in zip(found.results, plain.results, strict=True)
        ),
        "usual_deviation": {"median": round(statistics.median(usual), 4), "largest": round(max(usual), 4)},
        "differences": differences,
    }
    options.out.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    print(f"{report['identical_prompts']} of {len(prompts)} prompts identical, {report['tokens']} tokens")
    print(f"{report['same_as_plain_on_the_gpu']} prompts as in plain decoding on the GPU; {report['usual_deviation']}")
    for entry in differences:
        print(entry)


def difference(gpu: Any, cpu: Any, number: int, request: Request, mine: list[int], theirs: list[int]) -> dict[str, Any]:
    """Return where two outputs part, how far the two tokens' logits are apart, and how far the two targets are."""
    pairs = zip(mine, theirs, strict=False)
    place = next((at for at, (left, right) in enumerate(pairs) if left != right), min(len(mine), len(theirs)))
    found, logits = deviation(gpu, cpu, [*request.prompt, *theirs[:place]])
    tokens = [*theirs[place : place + 1], *mine[place : place + 1]]
    values = [float(logits[token]) for token in tokens]
    return {
        "prompt": number,
        "at": place,
        "tokens_cpu_gpu": tokens,
        "logits": [round(value, 4) for value in values],
        "distance": round(max(values) - min(values), 4),
        "deviation": round(found, 4),
        "noise": round(max(noise(cpu, [*request.prompt, *theirs[:place]], seed) for seed in range(2)), 4),
    }


def deviation(gpu: Any, cpu: Any, tokens: list[int]) -> tuple[float, torch.Tensor]:
    """Return the largest difference of the two targets' logits behind some tokens, and the CPU's logits."""
    both = [logits_behind(model, model.ops().at(site="verify"), tokens) for model in (gpu, cpu)]
    return float((both[0] - both[1]).abs().max()), both[1]


def noise(model: Any, tokens: list[int], seed: int) -> float:
    """Return the largest change of a CPU target's logits by a unit in one per cent of its operators' outputs."""
    ops = model.ops().at(site="verify")
    noisy = Noisy(ops, torch.Generator().manual_seed(seed))
    return float((logits_behind(model, noisy, tokens) - logits_behind(model, ops, tokens)).abs().max())


def logits_behind(model: Any, ops: Any, tokens: list[int]) -> torch.Tensor:
    """Return the target's logits behind some tokens, on the CPU."""
    with torch.inference_mode():
        rows = Rows.of([(0, position, token) for position, token in enumerate(tokens)], model.torch_device)
        last = torch.tensor([len(tokens) - 1], device=model.torch_device)
        return model.target.forward(ops, model.state(1), rows, last).logits[0].cpu()


class Noisy:
    """Operators that return one in a hundred bfloat16 values a unit higher or lower."""

    def __init__(self, ops: Any, generator: torch.Generator) -> None:
        self._ops, self._generator = ops, generator

    def __getattr__(self, name: str) -> Any:
        function = getattr(self._ops, name)

        def call(*arguments: Any, **options: Any) -> Any:
            returned = function(*arguments, **options)
            return tuple(map(self._moved, returned)) if isinstance(returned, tuple) else self._moved(returned)

        return call

    def _moved(self, value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or value.dtype != torch.bfloat16:
            return value
        draws = torch.rand(2, *value.shape, generator=self._generator)
        step = torch.where(draws[0] < SHARE, torch.where(draws[1] < 0.5, 1, -1), 0)
        return (value.contiguous().view(torch.int16) + step.short()).view(torch.bfloat16)


if __name__ == "__main__":
    main()
