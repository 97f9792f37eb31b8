"""Ranks as processes of this machine: started together, watched, and ended together."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, Final

from dspark_ops._lazy import torch
from dspark_ops.decode.ranks.distributed import SECONDS, DistributedGroup, PeerError
from dspark_ops.errors import DsparkOpsError, ModelError, RankError

__all__ = ["MAX_RANKS", "run_processes"]

MAX_RANKS: Final = 8
_GRACE: Final = 10.0
"""Seconds in which ranks may end by themselves after one has failed, or all have a result; then they are ended."""


@dataclass(frozen=True, slots=True)
class _Place:
    """Where one rank runs."""

    rank: int
    size: int
    store: str
    backend: str
    device: str
    seconds: float


def run_processes(
    function: Callable[..., Any],
    arguments: tuple[Any, ...],
    size: int,
    *,
    device: str = "cpu",
    seconds: float = SECONDS,
) -> Any:
    """Run a function in one new process per rank, and return what it returned on rank 0.

    The store through which ranks compare plans is a file that only this user may read, so it outlives every rank. If a
    rank fails or dies, the others end within seconds: by themselves, being told, or by force.

    Args:
        function: takes the rank's `RankGroup`, then `arguments`; importable by its name, like what is passed to
            ``multiprocessing`` with "spawn".
        arguments: of the function, able to be pickled; what rank 0 returns must be, too.
        size: number of ranks, 1 to 8.
        device: ``cpu`` (gloo); ``cuda``: one GPU per rank (NCCL), or gloo where all share a single one.
        seconds: longest wait of a rank for the others.

    Raises:
        DsparkOpsError: what the first rank that failed raised.
        RankError: a rank has died, or raised what is no error of this library; or there are too few GPUs.
        ModelError: a size out of range.
    """
    if not 1 <= size <= MAX_RANKS:
        raise ModelError(f"{size} ranks: wanted 1 to {MAX_RANKS}")
    backend = _backend(device, size)
    folder = tempfile.TemporaryDirectory(prefix="dspark-ops-ranks-", ignore_cleanup_errors=True)
    store = str(Path(folder.name, "store"))
    context = multiprocessing.get_context("spawn")
    processes: list[Any] = []
    pipes: list[Connection] = []
    try:
        for rank in range(size):
            ours, theirs = context.Pipe(duplex=False)
            place = _Place(rank, size, store, backend, device, seconds)
            process = context.Process(
                target=_rank_main,
                args=(place, theirs, function, arguments),
                name=f"dspark-ops rank {rank}",
                daemon=True,
            )
            process.start()
            theirs.close()
            processes.append(process)
            pipes.append(ours)
        return _watch(processes, pipes)
    finally:
        _end(processes)
        for pipe in pipes:
            pipe.close()
        folder.cleanup()


def _backend(device: str, size: int) -> str:
    if device == "cpu" or size == 1:
        return "gloo"
    count = torch.cuda.device_count()
    if 1 < count < size:
        raise RankError(f"{size} ranks on cuda: wanted {size} GPUs, or one that all ranks share, got {count}")
    return "nccl" if count >= size else "gloo"


def _rank_main(place: _Place, pipe: Connection, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    """Run one rank, and send ``(True, result)`` or ``(False, error)``."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the process that started this one ends it
    if sys.platform == "linux":
        # Ranks of one machine need no other interface, and gloo finds this one whatever the host's name resolves to.
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.set_num_threads(max(1, torch.get_num_threads() // place.size))
    if place.device == "cuda":
        torch.cuda.set_device(place.rank % torch.cuda.device_count())
    store = torch.distributed.FileStore(place.store, place.size)
    group = DistributedGroup(store, place.rank, place.size, backend=place.backend, seconds=place.seconds)
    try:
        result = function(group, *arguments)
    except DsparkOpsError as error:
        group.failed(f"{type(error).__name__}: {error}")
        pipe.send((False, error))
        raise SystemExit(1) from None
    except Exception as error:
        group.failed(f"{type(error).__name__}: {error}")
        pipe.send((False, RankError(f"rank {place.rank} of {place.size} failed: {type(error).__name__}: {error}")))
        raise
    pipe.send((True, result if place.rank == 0 else None))
    group.close()


def _watch(processes: list[Any], pipes: list[Connection]) -> Any:
    """Return rank 0's result once all ranks have ended, or raise what went wrong first."""
    results: dict[int, Any] = {}
    wrong: dict[int, DsparkOpsError] = {}
    going = dict(enumerate(processes))
    silent: set[int] = set()
    deadline: float | None = None
    while going:
        left = None if deadline is None else max(0.0, deadline - time.monotonic())
        heard = {*results, *wrong, *silent}
        if not wait(
            [*(item.sentinel for item in going.values()), *(pipes[rank] for rank in going.keys() - heard)], left
        ):
            break
        for rank, process in list(going.items()):
            alive = process.is_alive()  # asked first: what a rank has sent before its end is there then
            if rank not in heard and pipes[rank].poll():
                try:
                    good, value = pipes[rank].recv()
                except EOFError:  # it has ended, or is about to
                    silent.add(rank)
                else:
                    (results if good else wrong)[rank] = value
            if not alive:
                del going[rank]
                if rank not in results and rank not in wrong:
                    end = f"rank {rank} of {len(processes)} {_ending(process)}; the others were ended"
                    wrong[rank] = RankError(end)
        # With all results there, a rank that does not end is of no more use than one whose peer has failed.
        if deadline is None and (wrong or len(results) == len(processes)):
            deadline = time.monotonic() + _GRACE
    if wrong:
        raise _cause(list(wrong.values()))
    return results[0]


def _cause(wrong: list[DsparkOpsError]) -> DsparkOpsError:
    """Return the error that the others follow from: a death or a rank's own error before a report of one."""
    causes = [error for error in wrong if not isinstance(error, PeerError)]
    return (causes or wrong)[0]


def _ending(process: Any) -> str:
    process.join()
    code = process.exitcode
    if code is not None and code < 0:
        return f"was ended by {signal.Signals(-code).name}"
    return f"ended with exit code {code} and no result"


def _end(processes: list[Any]) -> None:
    for process in processes:
        if process.is_alive():
            process.kill()
    for process in processes:
        process.join()
