"""One worker of record_gpu.py: prepares groups side by side with others, and times them alone. Not called by hand.

Work goes in waves, each some row counts of all operators. In the first one a worker takes operators that nobody has
taken, and it keeps those. Files in a shared folder say who may do what: ``start.W`` holds the time until which groups
of wave W may be begun; ``N.ready.W`` says that worker N has prepared its part, ``N.go.W`` lets it time, ``N.done.W``
says that it has.
"""

from __future__ import annotations

import argparse
import json
import signal
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from dspark_ops.bench.machine import require_gpu
from dspark_ops.bench.micro import Bench
from dspark_ops.bench.peers import load_peer
from dspark_ops.selection.settings import Settings

POLL = 0.05
#: Seconds for which a group may go on after the time at which none is begun.
GRACE = 20.0


def main() -> None:
    options = _options()
    folder = Path(__file__).parent / "peers"
    peers = [load_peer(name, folder) for name in options.vs.split(",") if name]
    compiled = [int(text) for text in options.compile_rows.split(",") if text]
    bench = Bench(require_gpu(), options.model, Settings(), peers, {"compile": compiled})
    signal.signal(signal.SIGALRM, _late)
    own: list[str] = []
    for wave, text in enumerate(options.waves.split("/")):
        until = float(_waited(options.folder / f"start.{wave}").read_text())
        operators: Iterable[str] = own if wave else _claimed(options, own)
        groups = list(_prepared(options, bench, operators, [int(count) for count in text.split(",")], until))
        _file(options, f"ready.{wave}").touch()
        _waited(_file(options, f"go.{wave}"))
        with _file(options, "json").open("a", encoding="utf-8") as lines:
            for group in groups:
                record = group if isinstance(group, dict) else group.timed(options.rounds)
                lines.write(json.dumps(record) + "\n")
                lines.flush()
        groups.clear()
        torch.cuda.empty_cache()
        _file(options, f"done.{wave}").touch()


def _options() -> Any:
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("ops", "waves", "vs", "compile-rows", "model", "worker"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--rounds", type=int, required=True)
    parser.add_argument("--folder", type=Path, required=True)
    return parser.parse_args()


def _prepared(options: Any, bench: Bench, operators: Iterable[str], counts: list[int], until: float) -> Iterator[Any]:
    """Yield groups that are ready to be timed, and records of those that are not."""
    signal.setitimer(signal.ITIMER_REAL, max(1.0, until + GRACE - time.time()))
    for operator in operators:
        for count in counts:
            if time.time() > until:
                why = "not reached in the time given"
                yield {"op": operator, "rows": count, "arms": {}, "unfit": {}, "failed": why}
                continue
            _file(options, "at").write_text(f"{operator} {count}")
            begin = time.monotonic()
            yield bench.group(operator, count)
            torch.cuda.synchronize()  # where the GPU context is broken, this ends the worker at the right operator
            print(f"{operator} {count}: {time.monotonic() - begin:.1f} s", flush=True)
        if time.time() > until:
            break
    signal.setitimer(signal.ITIMER_REAL, 0)


def _claimed(options: Any, own: list[str]) -> Iterator[str]:
    """Yield operators that no other worker has taken, and note them as this one's."""
    for operator in options.ops.split(","):
        with suppress(FileExistsError):
            with (options.folder / f"{operator}.claim").open("x") as claim:
                claim.write(options.worker)
            own.append(operator)
            yield operator


def _late(number: int, frame: Any) -> None:
    raise TimeoutError("not ready in the time given")


def _file(options: Any, kind: str) -> Path:
    return Path(options.folder / f"{options.worker}.{kind}")


def _waited(path: Path) -> Path:
    while not path.exists():
        time.sleep(POLL)
    return path


if __name__ == "__main__":
    main()
