"""Ranks as processes: the command line gives the tokens of one rank, and no rank waits for one that is gone."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from dspark_ops.cli import main
from dspark_ops.decode import Request, generate, load_model
from dspark_ops.decode.ranks import launch
from dspark_ops.decode.ranks.launch import run_processes
from dspark_ops.errors import DsparkOpsError, ModelError, RankError

TINY = Path(__file__).parents[2] / "examples" / "tiny_v41"

# A file of its own, because processes that are spawned import what they run by name.
PROGRAM = """
import json, os, signal, sys, threading, time
import torch
from dspark_ops import Device
from dspark_ops.decode import Model, Request, generate
from dspark_ops.decode.ranks.distributed import DistributedGroup
from dspark_ops.decode.ranks.shards import cut_weights
from dspark_ops.decode.v41.synthetic import random_weights, small_config
from dspark_ops.errors import DsparkOpsError, RankError

CONFIG = small_config()

def model(group, **config):
    weights = cut_weights(CONFIG, random_weights(CONFIG, seed=4), group.rank, group.size)
    return Model(CONFIG, weights, device=Device.simulate("cpu"), configuration=config, ranks=group)

def exact(group):
    for dtype in (torch.bfloat16, torch.float32, torch.float64, torch.int64, torch.int32, torch.uint8, torch.bool):
        mine = (torch.arange(6).view(2, 3) + group.rank > 2) if dtype is torch.bool else torch.arange(6).view(2, 3)
        mine = (mine + group.rank if dtype is not torch.bool else mine).to(dtype)
        found = group.gather(mine.T)
        assert found.dtype == dtype and found.shape == (group.size, 3, 2)
        assert torch.equal(found[group.rank], mine.T)
        same = group.same(mine)
        assert torch.equal(same, found[0].T)
    strange = torch.tensor([0x7FC12345, -2147483648, 1], dtype=torch.int32).view(torch.float32)
    assert torch.equal(group.gather(strange)[0].view(torch.int32), strange.view(torch.int32))
    assert group.gather(torch.empty(0, 3)).shape == (group.size, 0, 3)
    assert group.exchange("names", f"rank {group.rank}") == [f"rank {rank}" for rank in range(group.size)]
    return [group.size, group.rank]

def dies(group, how):
    ready = model(group)
    count = 0

    def on_tokens(index, tokens):
        nonlocal count
        count += 1
        if group.rank == 1 and count == 2:
            if how == "killed":
                os.kill(os.getpid(), signal.SIGKILL)
            if how == "exits":
                os._exit(7)
            raise DsparkOpsError("rank 1 has had enough") if how == "refuses" else ValueError("a fault of rank 1")

    generate(ready, [Request((5, 6, 7), 40)], on_tokens=on_tokens)

def lingers(group):
    threading.Thread(target=time.sleep, args=(300,)).start()
    return group.rank

def alone(rank, size, store, action):
    # as an engine starts its ranks: nobody watches them
    group = DistributedGroup(torch.distributed.FileStore(store, size), rank, size, seconds=90)
    try:
        ready = model(group, **({"policy": {"fallback": "warn" if rank else "allow"}} if action == "differ" else {}))
        def on_tokens(index, tokens):
            if action == "die" and rank == 1:
                os._exit(3)
        generate(ready, [Request((5, 6, 7), 40)], on_tokens=on_tokens)
    except RankError as error:
        print(json.dumps([str(error), time.time()]))

if __name__ == "__main__":
    rank, size, store, action = sys.argv[1:]
    alone(int(rank), int(size), store, action)
"""


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    (tmp_path / "ranks_program.py").write_text(PROGRAM)
    monkeypatch.syspath_prepend(tmp_path)
    yield importlib.import_module("ranks_program")
    del sys.modules["ranks_program"]


@pytest.mark.parametrize("ranks", [2, 4])
def test_the_shipped_model_gives_the_tokens_of_one_rank(ranks: int, capfd: pytest.CaptureFixture[str]) -> None:
    model = load_model(TINY)
    alone = generate(model, [Request(model.text().encode("def read(self"), 8)]).results[0]
    words = ("--model", TINY, "--prompt", "def read(self", "--max-tokens", 8, "--no-compare", "--json", "--tp", ranks)
    code = main(["decode", *map(str, words)])
    out, err = capfd.readouterr()
    assert code == 0, err
    report = json.loads(out)
    assert report["options"]["tp"] == ranks
    assert report["prompts"][0]["tokens"] == list(alone.tokens)
    assert report["prompts"][0]["mean_accept_len"] == alone.metrics.mean_accept_len
    assert "argmax_vocab_parallel_local" in {entry["operator"] for entry in report["plan"]["operators"]}


def test_every_dtype_and_every_bit_pattern_passes_between_processes(program: ModuleType) -> None:
    assert run_processes(program.exact, (), 2) == [2, 0]


@pytest.mark.parametrize(
    "how, kind, text",
    [
        ("killed", RankError, "rank 1 of 2 was ended by SIGKILL; the others were ended"),
        ("refuses", DsparkOpsError, "rank 1 has had enough"),
    ],
)
def test_a_rank_that_ends_in_the_middle_ends_all_with_its_own_reason(
    program: ModuleType, how: str, kind: type[Exception], text: str
) -> None:
    with pytest.raises(kind, match=f"^{text}$") as raised:
        run_processes(program.dies, (how,), 2)
    assert type(raised.value) is kind


def started(program: ModuleType, action: str) -> list[list[Any]]:
    """What each of two ranks that nobody watches says at its end, with the time."""
    processes = [
        subprocess.Popen(
            [sys.executable, str(program.__file__), str(rank), "2", f"{program.__file__}.store", action],
            stdout=subprocess.PIPE, text=True,
        )
        for rank in range(2)
    ]  # fmt: skip
    texts = [process.communicate(timeout=300)[0] for process in processes]
    return [json.loads(text.splitlines()[-1]) if text else [] for text in texts]


def test_ranks_without_a_launcher_have_one_text_within_seconds_of_each_other(program: ModuleType) -> None:
    first, second = started(program, "differ")
    assert first[0] == second[0]
    assert first[0].startswith("the plans of 2 ranks differ:")
    assert abs(first[1] - second[1]) < 20


def test_a_rank_without_a_launcher_stops_when_its_peer_dies(program: ModuleType) -> None:
    began = time.time()
    survivor, dead = started(program, "die")
    assert dead == []
    assert survivor[0].startswith("rank 0 of 2 stops: another rank has ended, or has not answered for 90 s (")
    assert survivor[1] - began < 80


def test_a_rank_that_has_a_result_and_does_not_end_is_ended(
    program: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch, "_GRACE", 0.2)
    began = time.monotonic()
    assert run_processes(program.lingers, (), 1) == 0
    assert time.monotonic() - began < 200


def test_a_number_of_ranks_that_cannot_be_is_refused_before_anything_starts() -> None:
    for size in (0, 9):
        with pytest.raises(ModelError, match=f"{size} ranks: wanted 1 to 8"):
            run_processes(print, (), size)
