"""Records the bench of every operator with a kernel on this machine's GPU, beside its peers: one command, one JSON.

    python benchmarks/record_gpu.py --out benchmarks/results/h200.json

Compiling takes far longer than timing, so workers (``record_worker.py``) prepare groups side by side: they make inputs,
compile, check numbers and capture graphs, and take the next operator when they are done with one. When all are ready
they time one after the other, so that nothing else runs on the GPU. That is done for the first row count, and then for
the others, two by two, which compile little. An operator that fails is recorded with the reason; one that breaks the
GPU context costs its worker only. What is not reached in time is recorded as such; a further call with ``--missing``
goes on with it, and with what failed; one with ``--ops`` replaces these and keeps the others. The file is written after
each worker.
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
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROWS = (6, 1, 48, 8, 64, 24)
MODEL = "deepseek-v4.1-flash/tp4"
POLL = 0.05
METHOD = (
    "microseconds per call inside CUDA graphs of 8 to 384 calls, one input set each, together 2 times the L2 cache "
    "where 384 sets can be; the graphs of a group take turns, forward and backward; median, first and last decile over "
    "the rounds; outputs are checked against the contract's reference before"
)


#: Operators whose peers take longest to compile: they are begun first.
FIRST = (
    "mhc_mix_sinkhorn", "compress_c2", "k_norm_rope_store", "mla_sched_meta", "q_rope_store", "compress_c1",
    "silu_mul_clamp", "sparse_mla_decode", "markov_block", "accept_sampled", "main_projection",
)  # fmt: skip


@dataclass
class Worker:
    """A process that prepares operators and times them when it may."""

    number: int
    folder: Path
    process: subprocess.Popen[bytes]
    lines_read: int = 0
    finished: bool = False

    def file(self, kind: str) -> Path:
        """Return the worker's file of a kind: ``at``, ``ready.W``, ``go.W``, ``done.W``, ``json`` or ``log``."""
        return self.folder / f"{self.number}.{kind}"

    @property
    def dead(self) -> bool:
        """Whether its process has ended."""
        return self.process.poll() is not None

    def why(self) -> str:
        """Return how its process ended."""
        tail = self.file("log").read_text(errors="replace").strip().splitlines()[-3:]
        return f"the worker ended with exit code {self.process.returncode}: {' | '.join(tail)[:600]}"

    def records(self) -> list[dict[str, Any]]:
        """Return the records that it has written since the last time."""
        path = self.file("json")
        lines = path.read_text().splitlines() if path.exists() else []
        new, self.lines_read = lines[self.lines_read :], len(lines)
        return [json.loads(line) for line in new]

    def claims(self) -> list[Path]:
        """Return the files of the operators that it has taken."""
        return [claim for claim in self.folder.glob("*.claim") if claim.read_text() == str(self.number)]


def main() -> None:
    options = _options()
    begin = time.monotonic()
    kept = (options.missing or options.ops) and options.out.exists()
    known = json.loads(options.out.read_text()) if kept else {"groups": []}
    rows = [int(text) for text in options.rows.split(",")]
    if options.earlier:
        mark_earlier(options, known, set(rows))
        return
    done = {
        (one["op"], one["rows"])
        for one in known["groups"]
        if options.missing and "failed" not in one and "earlier" not in one
    }
    ops = [op for op in _operators(options) if any((op, count) not in done for count in rows)]
    groups: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as name:
        folder = options.logs or Path(name)
        folder.mkdir(parents=True, exist_ok=True)
        for more, facts in _run_all(options, folder, ops, waves_of(rows)):
            groups += more
            _write(options, known, groups, facts)
    for line in _lines(sorted(groups, key=lambda one: (one["op"], one["rows"]))):
        print(line)
    print(f"{len(groups)} groups in {time.monotonic() - begin:.0f} s", flush=True)


def mark_earlier(options: Any, known: dict[str, Any], rows: set[int]) -> None:
    """Mark the figures of operators at row counts as those of kernels that have changed since, and write the file.

    The page shows them apart and compares nothing with them; measuring a group again removes the mark.
    """
    facts = {key: value for key, value in known.items() if key != "groups"}
    marked = [
        {**one, "earlier": options.earlier}
        for one in known["groups"]
        if one["op"] in options.ops.split(",") and one["rows"] in rows and "failed" not in one
    ]
    _write(options, known, marked, facts)


def waves_of(rows: list[int]) -> list[list[int]]:
    """Return the row counts in waves: the first one alone, since it compiles, the others two by two to spare memory."""
    return [rows[:1], *(rows[at : at + 2] for at in range(1, len(rows), 2))]


def _options() -> Any:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="file that receives the figures as JSON")
    parser.add_argument("--ops", default="", help="operators, with commas between; default: all that have a kernel")
    parser.add_argument("--rows", default=",".join(map(str, ROWS)), help="row counts, in the order of preparation")
    parser.add_argument("--vs", default="torch,compile,sglang,flashmla", help="peers, with commas between")
    parser.add_argument("--compile-rows", default="6,48", help="row counts at which torch.compile takes part")
    parser.add_argument("--workers", type=int, default=max(1, min(15, (os.cpu_count() or 2) - 1)))
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument(
        "--prepare-seconds", type=float, default=150.0, help="the first row count is begun within these"
    )
    parser.add_argument("--rest-seconds", type=float, default=60.0, help="for beginning each later wave")
    parser.add_argument("--missing", action="store_true", help="go on with what the file lacks or has as failed")
    parser.add_argument(
        "--earlier", metavar="COMMIT", help="measure nothing: --ops at --rows were timed at COMMIT, and have changed"
    )
    parser.add_argument("--wait-for", type=Path, help="file that must exist before anything is timed")
    parser.add_argument("--logs", type=Path, help="folder that keeps the workers' logs")
    return parser.parse_args()


def _operators(options: Any) -> list[str]:
    if options.ops:
        return [str(name) for name in options.ops.split(",")]
    import dspark_ops
    from dspark_ops.bench.micro import Bench
    from dspark_ops.selection.settings import Settings

    device = dspark_ops.probe()
    if not device.is_accelerator:
        sys.exit("no GPU here: dspark-ops devices lists what is seen")
    found = Bench(device, MODEL, Settings()).operators()
    return [*(name for name in FIRST if name in found), *(name for name in found if name not in FIRST)]


def _write(options: Any, known: dict[str, Any], groups: list[dict[str, Any]], facts: dict[str, Any]) -> None:
    fresh = {(one["op"], one["rows"]) for one in groups}
    kept = [one for one in known["groups"] if (one["op"], one["rows"]) not in fresh]
    merged = sorted([*kept, *groups], key=lambda one: (one["op"], one["rows"]))
    facts = {"what": METHOD, "model": MODEL, "rounds": options.rounds, **facts}
    lines = ",\n".join(json.dumps(group) for group in merged)  # one line per group: differences stay readable
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(f'{json.dumps(facts, indent=1)[:-2]},\n "groups": [\n{lines}\n]}}\n', encoding="utf-8")


def _run_all(
    options: Any, folder: Path, ops: list[str], waves: list[list[int]]
) -> Iterator[tuple[list[dict[str, Any]], dict[str, Any]]]:
    """Yield the records of groups as they come, with the facts of the machine and its floor."""
    from dspark_ops.bench.floors import MachineFloor
    from dspark_ops.bench.machine import add_floor

    workers: list[Worker] = []
    facts: dict[str, Any] = {}
    for wave, counts in enumerate(waves if ops else []):
        begin = time.time()
        until = begin + (options.rest_seconds if wave else options.prepare_seconds)
        start = folder / f"start.{wave}"
        start.with_suffix(".new").write_text(str(until))
        start.with_suffix(".new").rename(start)  # appears as a whole
        if not workers:
            workers = [_start(options, folder, number, ops, waves) for number in range(min(options.workers, len(ops)))]
        broken = _wait_until_ready(options, folder, ops, waves, wave, workers, until)
        print(f"wave {wave + 1}: prepared after {time.time() - begin:.0f} s", flush=True)
        if not facts:
            while options.wait_for and not options.wait_for.exists():
                time.sleep(POLL)
            facts = _machine()
        floor = MachineFloor.from_json(facts["floor"])
        seen = {(one["op"], one["rows"]) for one in broken}
        yield broken, facts
        for worker in (one for one in workers if not one.finished):
            worker.file(f"go.{wave}").touch()
            while not worker.file(f"done.{wave}").exists() and not worker.dead:
                time.sleep(POLL)
            found = worker.records()
            if not worker.file(f"done.{wave}").exists():
                worker.finished = True
                found += _lost(worker, counts, {(one["op"], one["rows"]) for one in found})
            seen |= {(one["op"], one["rows"]) for one in found}
            yield [add_floor(one, floor) for one in found], facts
        late = [(name, count) for name in ops for count in counts if (name, count) not in seen]
        yield [_failed(name, count, "not reached in the time given") for name, count in late], facts
    for worker in workers:
        worker.process.wait()


def _wait_until_ready(
    options: Any, folder: Path, ops: list[str], waves: list[list[int]], wave: int, workers: list[Worker], until: float
) -> list[dict[str, Any]]:
    """Wait until every living worker has prepared its part; return the records of what died on the way."""
    broken: list[dict[str, Any]] = []
    while any(not one.finished and not one.file(f"ready.{wave}").exists() for one in workers):
        for worker in [one for one in workers if one.dead and not one.finished]:
            worker.finished = True
            at = worker.file("at")
            operator, rows = at.read_text().split() if at.exists() else ("(start of a worker)", "0")
            broken.append(_failed(operator, int(rows), f"while it was prepared, {worker.why()}"))
            if wave:
                broken += _lost(worker, waves[wave], {(operator, int(rows))})
            elif time.time() < until:
                for claim in worker.claims():  # others may take what it had, but not what it died of
                    if claim.stem != operator:
                        claim.unlink()
                workers.append(_start(options, folder, len(workers), ops, waves))
        time.sleep(POLL)
    return broken


def _lost(worker: Worker, counts: list[int], known: set[tuple[str, int]]) -> list[dict[str, Any]]:
    """Return records of what a dead worker had taken and not finished."""
    left = [(claim.stem, count) for claim in worker.claims() for count in counts]
    return [_failed(name, count, f"beside it, {worker.why()}") for name, count in left if (name, count) not in known]


def _start(options: Any, folder: Path, number: int, ops: list[str], waves: list[list[int]]) -> Worker:
    text = "/".join(",".join(map(str, counts)) for counts in waves)
    command = [
        sys.executable, str(Path(__file__).with_name("record_worker.py")), "--ops", ",".join(ops), "--waves", text,
        "--vs", options.vs, "--compile-rows", options.compile_rows, "--model", MODEL, "--rounds", str(options.rounds),
        "--worker", str(number), "--folder", str(folder),
    ]  # fmt: skip
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TORCHINDUCTOR_COMPILE_THREADS": "1", "MAX_JOBS": "1"}
    with (folder / f"{number}.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=environment)
    return Worker(number, folder, process)


def _failed(operator: str, rows: int, why: str) -> dict[str, Any]:
    return {"op": operator, "rows": rows, "arms": {}, "unfit": {}, "failed": why}


def _machine() -> dict[str, Any]:
    import dspark_ops
    from dspark_ops.bench.floors import measure_floor
    from dspark_ops.bench.machine import machine_facts

    return {"machine": machine_facts(dspark_ops.probe()), "floor": measure_floor().to_json()}


def _lines(groups: list[dict[str, Any]]) -> Iterator[str]:
    for one in groups:
        arms = "  ".join(f"{name} {arm.get('median_us', 0):.2f}" for name, arm in one["arms"].items())
        own = one["arms"].get("own", {})
        tail = f"  floor {one['floor_us']:.2f}" if "floor_us" in one else ""
        why = f"  FAILED {one['failed'][:200]}" if "failed" in one else ""
        yield f"{one['op']:28} {one['rows']:3}  {arms}  n={own.get('launches')}{tail}{why}"


if __name__ == "__main__":
    main()
