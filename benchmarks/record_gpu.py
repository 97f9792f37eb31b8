"""Records the bench of every operator with a kernel on this machine's GPU, beside its peers: one command, one JSON.

    python benchmarks/record_gpu.py --out benchmarks/results/h200.json

Compiling takes far longer than timing, so workers prepare all groups at once: they make inputs, compile, check numbers
and capture graphs, and take the next operator when they are done with one. When all are ready they time one after the
other, so that nothing else runs on the GPU. An operator that fails is recorded with the reason; one that breaks the GPU
context costs its worker only, whose other operators are taken by a new one. What is not reached in time is recorded as
such; a further call with ``--missing`` goes on with it, and with what failed. The file is written after each worker.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROWS = (6, 1, 48, 8, 64, 24)
MODEL = "deepseek-v4.1-flash/tp4"
POLL = 0.05
METHOD = (
    "microseconds per call inside CUDA graphs of 8 to 384 calls, one input set each, together twice the L2 cache where "
    "384 sets can be; the graphs of a group take turns, forward and backward; median, first and last "
    "decile over the rounds; outputs are checked against the contract's reference before"
)


#: Seconds for which a group may go on after the time at which none is begun.
GRACE = 20.0
#: Operators whose peers take longest to compile: they are begun first.
FIRST = (
    "mhc_mix_sinkhorn", "compress_c2", "k_norm_rope_store", "mla_sched_meta", "q_rope_store", "compress_c1",
    "silu_mul_clamp", "sparse_mla_decode", "markov_block", "accept_sampled", "main_projection",
)  # fmt: skip


@dataclass
class Worker:
    """A process that prepares operators, one after the other."""

    number: int
    folder: Path
    process: subprocess.Popen[bytes]
    finished: bool = False

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

    def why(self) -> str:
        """Return how its process ended."""
        tail = self.file("log").read_text(errors="replace").strip().splitlines()[-3:]
        return f"the worker ended with exit code {self.process.returncode}: {' | '.join(tail)[:600]}"


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
        folder = options.logs or Path(name)
        folder.mkdir(parents=True, exist_ok=True)
        facts: dict[str, Any] = {}
        groups: list[dict[str, Any]] = []
        for more, facts in _run_all(options, folder, ops, rows):
            groups += more
            _write(options, known, groups, facts)
    for line in _lines(sorted(groups, key=lambda one: (one["op"], one["rows"]))):
        print(line)
    print(f"{len(groups)} groups in {time.monotonic() - begin:.0f} s", flush=True)


def _options() -> Any:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="file that receives the figures as JSON")
    parser.add_argument("--ops", default="", help="operators, with commas between; default: all that have a kernel")
    parser.add_argument("--rows", default=",".join(map(str, ROWS)), help="row counts, in the order of preparation")
    parser.add_argument("--vs", default="torch,compile,sglang,flashmla", help="peers, with commas between")
    parser.add_argument("--compile-rows", default="6,48", help="row counts at which torch.compile takes part")
    parser.add_argument("--workers", type=int, default=max(1, min(15, (os.cpu_count() or 2) - 1)))
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--prepare-seconds", type=float, default=180.0, help="no group is begun after this")
    parser.add_argument("--missing", action="store_true", help="go on with what the file lacks or has as failed")
    parser.add_argument("--wait-for", type=Path, help="file that must exist before anything is timed")
    parser.add_argument("--logs", type=Path, help="folder that keeps the workers' logs")
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

    device = dspark_ops.probe()
    if not device.is_accelerator:
        sys.exit("no GPU here: dspark-ops devices lists what is seen")
    found = Bench(device, MODEL, Settings()).operators()
    return [*(name for name in FIRST if name in found), *(name for name in found if name not in FIRST)]


def _write(options: Any, known: dict[str, Any], groups: list[dict[str, Any]], facts: dict[str, Any]) -> None:
    fresh = {(one["op"], one["rows"]) for one in groups}
    kept = [one for one in known["groups"] if (one["op"], one["rows"]) not in fresh]
    merged = sorted([*kept, *groups], key=lambda one: (one["op"], one["rows"]))
    facts = {"what": METHOD, "model": MODEL, **facts, "rounds": options.rounds}
    lines = ",\n".join(json.dumps(group) for group in merged)  # one line per group: differences stay readable
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(f'{json.dumps(facts, indent=1)[:-2]},\n "groups": [\n{lines}\n]}}\n', encoding="utf-8")


def _run_all(
    options: Any, folder: Path, ops: list[str], rows: list[int]
) -> Iterator[tuple[list[dict[str, Any]], dict[str, Any]]]:
    """Yield the records of groups as they come, with the facts of the machine and its floor."""
    from dspark_ops.bench.floors import MachineFloor
    from dspark_ops.bench.machine import add_floor

    if not ops:
        return
    begin = time.time()
    until = begin + options.prepare_seconds
    workers = [_start(options, folder, number, ops, until) for number in range(min(options.workers, len(ops)))]
    groups: list[dict[str, Any]] = []
    while any(not worker.waiting and not worker.finished for worker in workers):
        for worker in [one for one in workers if one.dead and not one.finished and not one.waiting]:
            worker.finished = True
            groups.append(_after_death(worker, folder))
            if time.time() < until:
                workers.append(_start(options, folder, len(workers), ops, until))
        time.sleep(POLL)
    print(f"prepared after {time.time() - begin:.0f} s", flush=True)
    while options.wait_for and not options.wait_for.exists():
        time.sleep(POLL)
    facts = _machine()
    floor = MachineFloor.from_json(facts["floor"])
    yield groups, facts
    seen = {one["op"] for one in groups}
    for worker in (one for one in workers if not one.finished):
        worker.file("go").touch()
        worker.process.wait()
        found = _results(worker, folder)
        seen |= {one["op"] for one in found}
        yield [add_floor(one, floor) for one in found], facts
    late = [_failed(name, count, "not reached in the time given") for name in ops if name not in seen for count in rows]
    yield late, facts


def _start(options: Any, folder: Path, number: int, ops: list[str], until: float) -> Worker:
    command = [
        sys.executable, __file__, "--out", str(options.out), "--ops", ",".join(ops), "--rows", options.rows,
        "--vs", options.vs, "--compile-rows", options.compile_rows, "--rounds", str(options.rounds),
        "--worker", str(number), "--folder", str(folder), "--until", str(until),
    ]  # fmt: skip
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TORCHINDUCTOR_COMPILE_THREADS": "1", "MAX_JOBS": "1"}
    with (folder / f"{number}.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=environment)
    return Worker(number, folder, process)


def _failed(operator: str, rows: int, why: str) -> dict[str, Any]:
    return {"op": operator, "rows": rows, "arms": {}, "unfit": {}, "failed": why}


def _after_death(worker: Worker, folder: Path) -> dict[str, Any]:
    """Return the record of the operator at which a worker died, and let the others that it had be taken again."""
    at = worker.file("at")
    operator, rows = at.read_text().split() if at.exists() else ("(start of a worker)", "0")
    for claim in folder.glob("*.claim"):
        if claim.read_text() == str(worker.number) and claim.stem != operator:
            claim.unlink()
    return _failed(operator, int(rows), worker.why())


def _results(worker: Worker, folder: Path) -> list[dict[str, Any]]:
    path = worker.file("json")
    groups = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    if worker.process.returncode:
        claimed = [claim.stem for claim in folder.glob("*.claim") if claim.read_text() == str(worker.number)]
        lost = [name for name in claimed if not any(one["op"] == name for one in groups)]
        groups += [_failed(name, 0, worker.why()) for name in lost]
    return groups


def _machine() -> dict[str, Any]:
    import dspark_ops
    from dspark_ops.bench.floors import measure_floor
    from dspark_ops.bench.machine import machine_facts

    return {"machine": machine_facts(dspark_ops.probe()), "floor": measure_floor().to_json()}


def _claimed(options: Any) -> Iterator[str]:
    """Yield operators that no other worker has taken."""
    for operator in options.ops.split(","):
        with suppress(FileExistsError):
            with (options.folder / f"{operator}.claim").open("x") as claim:
                claim.write(str(options.worker))
            yield operator


def _work(options: Any) -> None:
    """Prepare groups, wait for the turn, time them."""
    import torch

    from dspark_ops.bench.machine import require_gpu
    from dspark_ops.bench.micro import Bench
    from dspark_ops.bench.peers import load_peer
    from dspark_ops.selection.settings import Settings

    def file(kind: str) -> Path:
        return Path(options.folder / f"{options.worker}.{kind}")

    def late(number: int, frame: Any) -> None:
        raise TimeoutError("not ready in the time given")

    folder = Path(__file__).parent / "peers"
    peers = [load_peer(name, folder) for name in options.vs.split(",") if name]
    compiled = [int(text) for text in options.compile_rows.split(",") if text]
    bench = Bench(require_gpu(), MODEL, Settings(), peers, {"compile": compiled})
    signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, max(1.0, options.until + GRACE - time.time()))
    groups: list[Any] = []
    rows = [int(text) for text in options.rows.split(",")]
    for operator in _claimed(options):
        for count in rows:
            if time.time() > options.until:
                groups.append(_failed(operator, count, "not reached in the time given"))
                continue
            file("at").write_text(f"{operator} {count}")
            begin = time.monotonic()
            groups.append(bench.group(operator, count))
            torch.cuda.synchronize()  # where the GPU context is broken, this ends the worker at the right operator
            print(f"{operator} {count}: {time.monotonic() - begin:.1f} s", flush=True)
        if time.time() > options.until:
            break
    signal.setitimer(signal.ITIMER_REAL, 0)
    file("ready").touch()
    while not file("go").exists():
        time.sleep(POLL)
    with file("json").open("w", encoding="utf-8") as lines:
        for group in groups:
            record = group if isinstance(group, dict) else group.timed(options.rounds)
            lines.write(json.dumps(record) + "\n")
            lines.flush()


def _lines(groups: list[dict[str, Any]]) -> Iterator[str]:
    for one in groups:
        arms = "  ".join(f"{name} {arm.get('median_us', 0):.2f}" for name, arm in one["arms"].items())
        own = one["arms"].get("own", {})
        tail = f"  floor {one['floor_us']:.2f}" if "floor_us" in one else ""
        why = f"  FAILED {one['failed'][:200]}" if "failed" in one else ""
        yield f"{one['op']:28} {one['rows']:3}  {arms}  n={own.get('launches')}{tail}{why}"


if __name__ == "__main__":
    main()
