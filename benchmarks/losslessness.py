"""Is greedy DSpark output equal to plain greedy decoding? The whole grid, on held-out prompts, once.

    python benchmarks/losslessness.py [--workers 2] [--minutes 30] [--output benchmarks/results/losslessness.json]

Every cell of gamma 1 to 7 x batch 1 and 4 x four schedules with the model's own drafter, and of gamma x batch with a
drafter that is always wrong and one that is always right, decodes 50 held-out prompts for 128 tokens and compares each
token with plain decoding of the same prompt, one request at a time. A run that is stopped goes on where it was, on
another machine too: cells that the output file holds for the same weights, prompts and code version are not run again,
and each cell names the machine it ran on. Needs the shipped model.

Speeds are those of the machine while it does this, with `--workers` processes side by side: for orientation only.
"""

from __future__ import annotations

import argparse
import datetime
import hashlib
import itertools
import json
import multiprocessing
import multiprocessing.pool
import os
import platform
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

import dspark_ops
from dspark_ops.decode import (
    DecodeOptions,
    Model,
    PrefixPolicy,
    Request,
    StaticPolicy,
    ThresholdPolicy,
    VerifyPolicy,
    decode_plain,
    generate,
    load_model,
)
from dspark_ops.decode.doubles import OracleDrafter

ROOT = Path(__file__).resolve().parents[1]
MODEL = ROOT / "examples" / "tiny_v41"
GAMMAS, BATCHES = range(1, 8), (1, 4)
SCHEDULES: dict[str, VerifyPolicy] = {
    "static": StaticPolicy(),
    "threshold 0.5": ThresholdPolicy(0.5),
    "prefix, early stop": PrefixPolicy(),
    "prefix, global": PrefixPolicy(mode="global"),
}
DRAFTERS = ("model", "always wrong", "always right")


@dataclass(frozen=True, slots=True)
class Cell:
    """One way to decode."""

    drafter: str
    schedule: str
    gamma: int
    batch: int

    def __str__(self) -> str:
        return f"{self.drafter}, {self.schedule}, gamma {self.gamma}, batch {self.batch}"


def grid() -> Iterator[Cell]:
    """Yield the cells; schedules change what is verified, so the stand-in drafters run under the static one only."""
    for gamma, batch, schedule in itertools.product(GAMMAS, BATCHES, SCHEDULES):
        yield Cell("model", schedule, gamma, batch)
    for drafter, gamma, batch in itertools.product(DRAFTERS[1:], GAMMAS, BATCHES):
        yield Cell(drafter, "static", gamma, batch)


@dataclass(slots=True)
class Bench:
    """What every cell needs, in each process once."""

    model: Model
    requests: list[Request]
    plain: list[tuple[int, ...]]

    @classmethod
    def prepared(cls, prompts: int, tokens: int, plain: Sequence[str]) -> Bench:
        """Return a bench with the model loaded; `plain` holds one row of token numbers per prompt."""
        torch.set_num_threads(1)
        model = load_model(MODEL)
        assert model.tokenizer is not None
        lines = (MODEL / "prompts.jsonl").read_text(encoding="utf-8").splitlines()[:prompts]
        texts = [json.loads(line)["prompt"] for line in lines]
        requests = [Request(model.tokenizer.encode(text), tokens) for text in texts]
        return cls(model, requests, [tuple(map(int, row.split())) for row in plain])

    def run(self, cell: Cell) -> dict[str, Any]:
        """Return the record of one cell."""
        options = DecodeOptions(cell.gamma, SCHEDULES[cell.schedule], max_batch=cell.batch, ignore_eos=True)
        drafter = None
        if cell.drafter != "model":
            known = [request.prompt + tokens for request, tokens in zip(self.requests, self.plain, strict=True)]
            right = 0 if cell.drafter == "always wrong" else cell.gamma
            drafter = OracleDrafter(known, self.model.config.vocab, right)
        found = generate(self.model, self.requests, options, drafter)
        pairs = zip(found.results, self.plain, strict=True)
        different = [number for number, (result, tokens) in enumerate(pairs) if result.tokens != tokens]
        metrics = found.metrics
        return {
            **asdict(cell),
            "prompts": len(self.requests),
            "identical": len(self.requests) - len(different),
            "different_prompts": different,
            "tokens": metrics.emitted,
            "mean_accept_len": round(metrics.mean_accept_len, 4),
            "histogram": dict(sorted(metrics.histogram.items())),
            "verified_rows": metrics.verified_rows,
            "target_forwards": metrics.forwards,
            "seconds": round(metrics.seconds, 2),
            "tokens_per_second": round(metrics.tokens_per_second, 1),
            "plan": self.model.plan(cell.gamma).digest,
            "processor": _processor(),
            "torch": version("torch"),
        }


_BENCH: list[Bench] = []
"""The worker process's own bench; filled by the pool's initialiser."""


def _start(prompts: int, tokens: int, plain: Sequence[str]) -> None:
    _BENCH.append(Bench.prepared(prompts, tokens, plain))


def _run(cell: Cell) -> tuple[Cell, dict[str, Any]]:
    return cell, _BENCH[0].run(cell)


def _plain(number: int) -> tuple[tuple[int, ...], float]:
    """Return the plain continuation of one prompt, and the seconds that it took."""
    bench = _BENCH[0]
    found = decode_plain(bench.model, [bench.requests[number]], DecodeOptions(max_batch=1, ignore_eos=True))
    return found.results[0].tokens, found.metrics.seconds


def subject(prompts: int, tokens: int) -> dict[str, Any]:
    """Return what the answer is about; records of another subject are not mixed in."""
    files = ("config.json", "tokenizer.json", "model.safetensors", "prompts.jsonl")
    digests = {name: hashlib.sha256((MODEL / name).read_bytes()).hexdigest() for name in files}
    return {"files": digests, "prompts": prompts, "tokens_per_prompt": tokens, "dspark-ops": dspark_ops.__version__}


def machine() -> dict[str, Any]:
    """Return where it ran."""
    names = ("torch", "safetensors", "tokenizers")
    return {
        "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
        "cpu": _processor(),
        "cores": os.cpu_count(),
        "system": platform.platform(),
        "python": platform.python_version(),
        "versions": {name: version(name) for name in names},
        "device": "cpu",
    }


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    return next(
        (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.processor()
    )


def write(path: Path, record: dict[str, Any]) -> None:
    """Write the record whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    part.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    part.replace(path)


def summary(record: dict[str, Any], cells: int) -> dict[str, Any]:
    done = record["cells"]
    compared = sum(cell["prompts"] for cell in done)
    return {
        "cells": f"{len(done)} of {cells}",
        "sequences_compared": compared,
        "sequences_identical": sum(cell["identical"] for cell in done),
        "tokens_compared": sum(cell["tokens"] for cell in done),
    }


def with_plain(path: Path, prompts: int, tokens: int, workers: int, fresh: bool) -> dict[str, Any]:
    """Return the record to go on with: the one in the file, or a new one with the plain tokens."""
    about = subject(prompts, tokens)
    if path.exists() and not fresh:
        record: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        if record["subject"] == about:
            return record
        sys.exit(f"{path} is about other weights, prompts or code: give --fresh to start anew, or another --output")
    print(f"plain decoding of {prompts} prompts x {tokens} tokens ...", flush=True)
    with _pool(workers, (prompts, tokens, ())) as pool:
        found = pool.map(_plain, range(prompts), chunksize=1)
    record = {
        "subject": about,
        "machine": machine(),
        "summary": {},
        "plain": {
            "tokens_per_second": round(prompts * (tokens - 1) / sum(seconds for _, seconds in found), 1),
            "tokens": [" ".join(map(str, row)) for row, _ in found],
        },
        "cells": [],
    }
    write(path, record)
    return record


def _pool(workers: int, setup: tuple[int, int, Sequence[str]]) -> multiprocessing.pool.Pool:
    return multiprocessing.get_context("spawn").Pool(max(1, workers), _start, setup)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=int, default=50)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--workers", type=int, default=1, help="processes, one thread each")
    parser.add_argument("--most-cells", type=int, default=0, help="stop after so many cells; 0 runs all")
    parser.add_argument("--minutes", type=float, default=0, help="stop after about so long; 0 has no limit")
    parser.add_argument("--output", type=Path, default=ROOT / "benchmarks" / "results" / "losslessness.json")
    parser.add_argument("--fresh", action="store_true", help="forget what the output file holds")
    arguments = parser.parse_args()
    cells = list(grid())
    record = with_plain(arguments.output, arguments.prompts, arguments.tokens, arguments.workers, arguments.fresh)
    keys = [field for field in asdict(cells[0])]
    done = {Cell(**{key: entry[key] for key in keys}) for entry in record["cells"]}
    left = [cell for cell in cells if cell not in done]
    left = left[: arguments.most_cells] if arguments.most_cells else left
    began, setup = time.perf_counter(), (arguments.prompts, arguments.tokens, record["plain"]["tokens"])
    with _pool(arguments.workers, setup) as pool:
        for count, (cell, entry) in enumerate(pool.imap_unordered(_run, left), 1):
            record["cells"] = sorted([*record["cells"], entry], key=lambda item: [str(item[key]) for key in keys])
            record["summary"] = summary(record, len(cells))
            write(arguments.output, record)
            minutes = (time.perf_counter() - began) / count * (len(left) - count) / 60
            print(
                f"[{len(record['cells'])}/{len(cells)}] {cell}: {entry['identical']}/{entry['prompts']} identical, "
                f"{entry['mean_accept_len']:.2f} tokens per step, {entry['tokens_per_second']:.0f} tokens/s; "
                f"about {minutes:.0f} min left",
                flush=True,
            )
            if 0 < arguments.minutes * 60 < time.perf_counter() - began:
                break
    print(json.dumps(record["summary"]))
    return 0 if all(entry["identical"] == entry["prompts"] for entry in record["cells"]) else 1


if __name__ == "__main__":
    sys.exit(main())
