"""Real operators among threads and after a fork: one binding, many callers, the same numbers. Case O28 (a)."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import torch

import dspark_ops
from dspark_ops.selection.device import Device

NAMES = ("argmax_rows", "accept_greedy", "fp8_grid_quantize")
THREADS = 32

_FORK = """
import os
import torch
import dspark_ops

torch.set_num_threads(1)
plan = dspark_ops.plan(device=dspark_ops.Device.simulate("cpu"), rows=range(1, 9), operators=["argmax_rows"], config={})
ops = plan.bind()
registered = plan.register_torch_ops(ops)
x = torch.tensor([[1.0, 3.0, 2.0], [5.0, 4.0, 5.0]])
assert ops.argmax_rows(x).tolist() == [1, 0]
child = os.fork()
if child == 0:
    bound_again = plan.bind().argmax_rows(x).tolist()
    same = ops.argmax_rows(x).tolist() == torch.ops.dspark_ops.argmax_rows(x).tolist() == bound_again == [1, 0]
    os._exit(0 if same and torch.ops.dspark_ops.plan_digest() == plan.digest else 7)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
print(ops.argmax_rows(x).tolist(), torch.cuda.is_initialized())
"""


def test_a_child_that_is_forked_after_binding_calls_and_binds_like_its_parent() -> None:
    environ = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
    done = subprocess.run([sys.executable, "-c", _FORK], capture_output=True, text=True, env=environ, timeout=120)
    assert (done.returncode, done.stdout) == (0, "[1, 0] False\n"), done.stderr


def test_threads_that_bind_and_call_at_once_get_the_numbers_of_one_thread() -> None:
    plan = dspark_ops.plan(device=Device.simulate("cpu"), rows=range(1, 9), operators=NAMES, config={})
    shared = plan.bind()
    start = threading.Barrier(THREADS)

    def inputs(number: int) -> tuple[torch.Tensor, ...]:
        generator = torch.Generator().manual_seed(number)
        logits = torch.randn(6, 97, generator=generator)
        return logits, logits.argmax(-1).view(2, 3), torch.randn(4, 64, generator=generator).bfloat16()

    def calls(ops: dspark_ops.BoundOps, number: int) -> list[torch.Tensor]:
        logits, candidates, rows = inputs(number)
        ids = ops.argmax_rows(logits)
        codes, scales = ops.fp8_grid_quantize(rows)
        return [ids, *ops.accept_greedy(candidates, ids.view(2, 3)), codes.view(torch.uint8), scales]

    def work(number: int) -> list[list[torch.Tensor]]:
        start.wait()
        return [calls(ops, number) for ops in (shared, plan.bind(), shared)]

    wanted = [calls(shared, number) for number in range(THREADS)]
    with ThreadPoolExecutor(THREADS) as pool:
        for number, results in enumerate(pool.map(work, range(THREADS))):
            for got in results:
                assert all(torch.equal(one, other) for one, other in zip(got, wanted[number], strict=True))
