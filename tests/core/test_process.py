"""Plans and bound operators among threads, forks and other processes. Case O28 (a)."""

from __future__ import annotations

import copy
import itertools
import os
import pickle
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import dspark_ops
from dspark_ops.api import RankClass, axis
from dspark_ops.errors import BindingError
from dspark_ops.selection.device import Device
from dspark_ops.selection.plan import Plan

THREADS = 32


@pytest.fixture(scope="module", params=["cpu", "sm_103", "gfx950"])
def plan(request: pytest.FixtureRequest) -> Plan:
    return dspark_ops.plan(device=Device.simulate(request.param), rows=range(1, 9), config={})


def in_child(work: Callable[[], Any]) -> Any:
    """Run `work` in a forked child and return what it returned; an error there is an error here."""
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        # Python 3.12 and later warn of threads that a child does not have; none of them holds a lock here.
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        code = 1
        try:
            os.write(writing, pickle.dumps(work()))
            code = 0
        finally:
            os._exit(code)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        answer = pipe.read()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    return pickle.loads(answer)


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_a_plan_comes_back_from_a_pickle_equal_with_its_digest(plan: Plan, protocol: int) -> None:
    back = pickle.loads(pickle.dumps(plan, protocol))
    assert back == plan and hash(back) == hash(plan)
    assert back.digest == plan.digest and back.to_json() == plan.to_json()
    assert back.explain("argmax_rows") == plan.explain("argmax_rows")


def test_a_copy_of_a_plan_is_equal(plan: Plan) -> None:
    assert copy.deepcopy(plan) == plan == copy.copy(plan)


def test_another_process_reads_the_same_digest_from_a_pickle(plan: Plan, tmp_path: Any) -> None:
    (tmp_path / "plan").write_bytes(pickle.dumps(plan))
    code = "import pickle, sys; print(pickle.load(open(sys.argv[1], 'rb')).digest, 'torch' in sys.modules)"
    words = [sys.executable, "-W", "ignore", "-c", code, str(tmp_path / "plan")]
    done = subprocess.run(words, capture_output=True, text=True, env={**os.environ, "PYTHONHASHSEED": "7"})
    assert done.stdout.split() == [plan.digest, "False"], done.stderr


def test_bound_operators_refuse_pickling_and_copying_and_say_what_to_do(fakes: Any) -> None:
    fakes.function("one", lambda x, top=1: ("one", x))
    ops = fakes.bind(fakes.plan(fakes.kernel(), device=fakes.cpu))
    text = "cannot be pickled or copied: send the plan, and bind it in the other process"
    for view in (ops, ops.at(rows=6), ops.at(site="draft")):
        for attempt in (pickle.dumps, copy.copy, copy.deepcopy):
            with pytest.raises(BindingError, match=text):
                attempt(view)


def test_bound_operators_work_in_a_child_that_is_forked_after_binding(fakes: Any) -> None:
    fakes.function("few", lambda x, top=1: ("few", top))
    fakes.function("many", lambda x, top=1: ("many", top))
    few = fakes.kernel(variant="few", region=[axis("R").between(1, 8)], rank=RankClass.FUSED)
    ops = fakes.bind(fakes.plan(few, fakes.kernel(variant="many"), device=fakes.cpu))
    small, large = fakes.tensor(4, 4096), fakes.tensor(32, 4096)
    wanted = [("few", 1), ("many", 3), ("few", 2)]

    def calls() -> list[Any]:
        return [ops.pick(small), ops.pick(large, 3), ops.at(rows=4).pick(small, 2)]

    assert calls() == in_child(calls) == wanted
    # and a child may plan and bind anew
    assert in_child(lambda: fakes.bind(fakes.plan(few, device=fakes.cpu)).plan.digest).startswith("sha256:")


def test_threads_that_plan_bind_and_call_at_once_all_get_the_same(fakes: Any) -> None:
    counter = itertools.count()
    prepared: list[int] = []

    def prepare(device: Any, problem: Any, rows: Any) -> Any:
        number = next(counter)
        prepared.append(number)
        return lambda x, top=1: (number, x.shape[0], top)

    fakes.function("prepare", prepare)
    fakes.function("one", lambda x, top=1: ("one", x.shape[0], top))
    kernel = fakes.kernel(prepare="fake_kernels:prepare")
    start = threading.Barrier(THREADS)

    def work(number: int) -> tuple[str, list[Any]]:
        start.wait()
        made = fakes.plan(kernel, device=fakes.cpu)
        ops = fakes.bind(made)
        rows = number % 8 + 1
        pick = ops.at(rows=rows, site="verify").pick
        return made.digest, [pick(fakes.tensor(rows, 4), number) for _ in range(50)]

    with ThreadPoolExecutor(THREADS) as pool:
        results = list(pool.map(work, range(THREADS)))
    assert len({digest for digest, _ in results}) == 1
    for number, (_, calls) in enumerate(results):
        assert len(set(calls)) == 1, "a thread's calls reached two preparations"
        assert calls[0][1:] == (number % 8 + 1, number)
    # each binding prepares its own two sites, and shares what it prepared with nobody
    assert sorted(prepared) == list(range(2 * THREADS))
    assert len({calls[0][0] for _, calls in results}) == THREADS


def test_threads_share_bound_operators(fakes: Any) -> None:
    fakes.function("few", lambda x, top=1: ("few", x.shape[0], top))
    fakes.function("many", lambda x, top=1: ("many", x.shape[0], top))
    few = fakes.kernel(variant="few", region=[axis("R").between(1, 8)], rank=RankClass.FUSED)
    ops = fakes.bind(fakes.plan(few, fakes.kernel(variant="many"), device=fakes.cpu))
    start = threading.Barrier(THREADS)

    def work(number: int) -> list[Any]:
        start.wait()
        return [ops.pick(fakes.tensor(rows, 4), number) for rows in range(1, 65)]

    with ThreadPoolExecutor(THREADS) as pool:
        for number, calls in enumerate(pool.map(work, range(THREADS))):
            assert calls == [("few" if rows < 9 else "many", rows, number) for rows in range(1, 65)]


def test_importing_the_library_from_many_threads_at_once_gives_one_of_everything() -> None:
    code = (
        "import threading\n"
        "from concurrent.futures import ThreadPoolExecutor\n"
        "import dspark_ops\n"
        f"start = threading.Barrier({THREADS})\n"
        "def work(number):\n"
        "    start.wait()\n"
        "    device = dspark_ops.Device.simulate('sm_103')\n"
        "    return dspark_ops.plan(device=device, rows=[1, 6], operators=['argmax_rows'], config={}).digest\n"
        f"with ThreadPoolExecutor({THREADS}) as pool:\n"
        f"    print(len(set(pool.map(work, range({THREADS})))))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "1\n"), done.stderr


def test_o28_ranks_that_plan_alone_have_one_digest_and_a_rank_without_a_plugin_another(site: Any) -> None:
    """Nothing is timed and no order of registration counts, so equal installations give equal plans."""
    site.plugin("acme", "name='acme', api='>=1,<2', kernels=[Kernel('argmax_rows', 'fast', 'acme_plugin:run')]")
    site.plugin("bolt", "name='bolt', api='>=1,<2', kernels=[Kernel('argmax_rows', 'fast', 'bolt_plugin:run')]")
    code = (
        "import dspark_ops\n"
        "plan = dspark_ops.plan(device=dspark_ops.Device.simulate('sm_103'), rows=[1, 6], operators=['argmax_rows'])\n"
        "print(plan.digest, plan.selections[0].choices[0].kernel.id)"
    )

    def rank(seed: int, plugins: str) -> list[str]:
        environ = {
            **os.environ,
            "PYTHONPATH": str(site.path),
            "PYTHONHASHSEED": str(seed),
            "DSPARK_OPS_PLUGINS": plugins,
        }
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environ, cwd=site.path)
        assert done.returncode == 0, done.stderr
        return done.stdout.split()

    with ThreadPoolExecutor(4) as pool:
        same = list(pool.map(rank, (1, 2, 3), ["acme,bolt"] * 3))
        digest, kernel = rank(4, "bolt")
    assert [item[1] for item in same] == ["acme/argmax_rows/fast"] * 3 and kernel == "bolt/argmax_rows/fast"
    assert same[0] == same[1] == same[2] and digest != same[0][0]
