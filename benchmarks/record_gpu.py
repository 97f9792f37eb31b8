"""Records the bench of every operator with a kernel on this machine's GPU, beside its peers: one command, one JSON.

    python benchmarks/record_gpu.py --out benchmarks/results/h200.json

Compiling takes far longer than timing, so workers prepare all groups at once, each some operators: they make inputs,
compile, check numbers and capture graphs. When all are ready they time one after the other, so that nothing else runs
on the GPU. An operator that fails is recorded with the reason; one that breaks the GPU context costs its worker only,
whose other operators start again elsewhere. What is not reached in time is recorded as such; a further call with
``--missing`` goes on with it, and with what failed.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROWS = (6, 1, 48, 8, 64, 24)
MODEL = "deepseek-v4.1-flash/tp4"
POLL = 0.05
METHOD = (
    "microseconds per call inside CUDA graphs of 8 to 32 calls, one input set each, together larger than 2.5 times the "
    "L2 cache where 32 sets can be; the graphs of a group take turns, forward and backward; median, first and last "
    "decile over the rounds; outputs are checked against the contract's reference on the CPU before"
)


@dataclass
class Worker:
    """A process with the operators that it prepares."""

    number: int
    ops: list[str]
    folder: Path
    process: subprocess.Popen[bytes]
    finished: bool = False
    log: Path = field(init=False)

    def __post_init__(self) -> None:
        self.log = self.file("log")

    def file(self, kind: str) -> Path:
        """Return the worker's file of a kind: ``at``, ``ready``, ``go``, ``json`` or ``log``."""
        return self.folder / f"{self.number}.{kind}"

    @property
    def waiting(self) -> bool:
        """Whether it has prepared everything."""
        return self.file("ready").exists()

    @property
    def dead(self) -> bool:
        """Whether its process has ended."""
        return self.process.poll() is not None


def main() -> None:
    options = _options()
    if options.worker is not None:
        _work(options)
        return
    begin = time.monotonic()
    known = json.loads(options.out.read_text()) if options.missing and options.out.exists() else {"groups": []}
    done = {(one["op"], one["rows"]) for one in known["groups"] if "failed" not in one}
    rows = [int(text) for text in options.rows.split(",")]
    ops = [op for op in _operators(options) if any((op, count) not in done for count in rows)]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        groups, facts = _run_all(options, folder, ops, begin)
    fresh = {(one["op"], one["rows"]) for one in groups}
    kept = [one for one in known["groups"] if (one["op"], one["rows"]) not in fresh]
    merged = sorted([*kept, *groups], key=lambda one: (one["op"], one["rows"]))
    report = {"what": METHOD, "model": MODEL, **facts, "rounds": options.rounds, "groups": merged}
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    _summary(groups)
    print(f"{len(groups)} groups in {time.monotonic() - begin:.0f} s", flush=True)


def _options() -> Any:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="file that receives the figures as JSON")
    parser.add_argument("--ops", default="", help="operators, with commas between; default: all that have a kernel")
    parser.add_argument("--rows", default=",".join(map(str, ROWS)), help="row counts, in the order of preparation")
    parser.add_argument("--vs", default="torch,compile,sglang,flashmla", help="peers, with commas between")
    parser.add_argument("--compile-rows", default="6,48", help="row counts at which torch.compile takes part")
    parser.add_argument("--workers", type=int, default=max(1, min(14, (os.cpu_count() or 2) - 2)))
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--prepare-seconds", type=float, default=180.0, help="no group is begun after this")
    parser.add_argument("--missing", action="store_true", help="go on with what the file lacks or has as failed")
    parser.add_argument("--worker", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--until", type=float, help=argparse.SUPPRESS)
    return parser.parse_args()


def _operators(options: Any) -> list[str]:
    if options.ops:
        return [str(name) for name in options.ops.split(",")]
    import dspark_ops
    from dspark_ops.bench.micro import Bench
    from dspark_ops.selection.settings import Settings

    return list(Bench(dspark_ops.probe(), MODEL, Settings()).operators())


def _run_all(options: Any, folder: Path, ops: list[str], begin: float) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Return the records of all groups, and the facts of the machine with its floor."""
    until = time.time() + options.prepare_seconds
    count = max(1, min(options.workers, len(ops)))
    workers = [_start(options, folder, number, ops[number::count], until) for number in range(count)]
    broken: list[dict[str, Any]] = []
    facts: dict[str, Any] = {}
    while any(not worker.waiting and not worker.finished for worker in workers):
        for worker in [one for one in workers if one.dead and not one.finished and not one.waiting]:
            worker.finished = True
            culprit, rest = _after_death(worker)
            broken.append(culprit)
            if rest and time.time() < until:
                workers.append(_start(options, folder, len(workers), rest, until))
        time.sleep(POLL)
    print(f"prepared after {time.monotonic() - begin:.0f} s", flush=True)
    if ops:
        facts = _machine()
    groups = list(broken)
    for worker in workers:
        if not worker.finished:
            worker.file("go").touch()
            worker.process.wait()
            groups += _results(worker)
    from dspark_ops.bench.floors import MachineFloor
    from dspark_ops.bench.micro import add_floor

    if facts:
        measured = facts["floor"]
        floor = MachineFloor(
            measured["copy_bytes_per_second"], measured["empty_launch_us"], measured["dependent_load_us"]
        )
        groups = [add_floor(one, floor) for one in groups]
    return groups, facts


def _start(options: Any, folder: Path, number: int, ops: list[str], until: float) -> Worker:
    command = [
        sys.executable, __file__, "--out", str(options.out), "--ops", ",".join(ops), "--rows", options.rows,
        "--vs", options.vs, "--compile-rows", options.compile_rows, "--rounds", str(options.rounds),
        "--worker", str(number), "--folder", str(folder), "--until", str(until),
    ]  # fmt: skip
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TORCHINDUCTOR_COMPILE_THREADS": "1"}
    with (folder / f"{number}.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=environment)
    return Worker(number, ops, folder, process)


def _after_death(worker: Worker) -> tuple[dict[str, Any], list[str]]:
    """Return the record of the operator at which a worker died, and the operators that it had left."""
    at = worker.file("at")
    operator, rows = at.read_text().split() if at.exists() else (worker.ops[0], "0")
    tail = worker.log.read_text(errors="replace").strip().splitlines()[-3:]
    failed = f"the worker ended with exit code {worker.process.returncode} while preparing it: {' | '.join(tail)}"
    record = {"op": operator, "rows": int(rows), "arms": {}, "unfit": {}, "failed": failed}
    return record, [name for name in worker.ops if name != operator]


def _results(worker: Worker) -> list[dict[str, Any]]:
    path = worker.file("json")
    groups = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    if worker.process.returncode:
        tail = worker.log.read_text(errors="replace").strip().splitlines()[-3:]
        for name in worker.ops:
            if not any(one["op"] == name for one in groups):
                failed = f"the worker ended with exit code {worker.process.returncode}: {' | '.join(tail)}"
                groups.append({"op": name, "rows": 0, "arms": {}, "unfit": {}, "failed": failed})
    return groups


def _machine() -> dict[str, Any]:
    import dspark_ops
    from dspark_ops.bench.floors import measure_floor
    from dspark_ops.bench.micro import machine_facts

    return {"machine": machine_facts(dspark_ops.probe()), "floor": measure_floor().to_json()}


def _work(options: Any) -> None:
    """Prepare this worker's groups, wait for the turn, time them."""
    import torch

    from dspark_ops.bench.micro import Bench, require_gpu
    from dspark_ops.bench.peers import load_peer
    from dspark_ops.selection.settings import Settings

    def file(kind: str) -> Path:
        return Path(options.folder / f"{options.worker}.{kind}")

    folder = Path(__file__).parent / "peers"
    peers = [load_peer(name, folder) for name in options.vs.split(",") if name]
    compiled = [int(text) for text in options.compile_rows.split(",") if text]
    bench = Bench(require_gpu(), MODEL, Settings(), peers, {"compile": compiled})
    groups = []
    rows = [int(text) for text in options.rows.split(",")]
    for count, operator in ((count, operator) for operator in options.ops.split(",") for count in rows):
        if time.time() > options.until:
            failed = "not reached in the time given"
            groups.append({"op": operator, "rows": count, "arms": {}, "unfit": {}, "failed": failed})
            continue
        file("at").write_text(f"{operator} {count}")
        begin = time.monotonic()
        groups.append(bench.group(operator, count))
        torch.cuda.synchronize()  # where the GPU context is broken, this ends the worker at the right operator
        print(f"{operator} {count}: {time.monotonic() - begin:.1f} s", flush=True)
    file("ready").touch()
    while not file("go").exists():
        time.sleep(POLL)
    with file("json").open("w", encoding="utf-8") as lines:
        for group in groups:
            record = group if isinstance(group, dict) else group.timed(options.rounds)
            lines.write(json.dumps(record) + "\n")
            lines.flush()


def _summary(groups: list[dict[str, Any]]) -> None:
    for line in _lines(sorted(groups, key=lambda one: (one["op"], one["rows"]))):
        print(line)


def _lines(groups: list[dict[str, Any]]) -> Iterator[str]:
    for one in groups:
        arms = "  ".join(f"{name} {arm.get('median_us', 0):.2f}" for name, arm in one["arms"].items())
        own = one["arms"].get("own", {})
        tail = f"  floor {one['floor_us']:.2f}" if "floor_us" in one else ""
        why = f"  FAILED {one['failed'][:200]}" if "failed" in one else ""
        yield f"{one['op']:28} {one['rows']:3}  {arms}  n={own.get('launches')}{tail}{why}"


if __name__ == "__main__":
    main()
