"""Every kernel that is set up early, on a real GPU, right behind one that stores its inputs late: it waits for them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import triton
import triton.language as tl

from dspark_ops import contracts
from dspark_ops.bench.inputs import Place, bench_inputs
from dspark_ops.binding.targets import resolve
from dspark_ops.selection.probe import probe
from dspark_ops.selection.problem import Problem
from dspark_ops_triton.blocks.dependent import begin, has_pdl, pdl_option
from dspark_ops_triton.plugin import KERNELS

pytestmark = pytest.mark.gpu

MODEL = contracts.model_shapes("deepseek-v4.1-flash/tp4")
EARLY = {kernel.op: kernel for kernel in KERNELS if kernel.traits.pdl}
#: Weights that a kernel reads before it waits, as it says: the kernel just before it must not write them.
READ_BEFORE = {
    **dict.fromkeys(("compress_c1", "compress_c2", "index_k_store", "k_norm_rope_store"), ("weight",)),
    **dict.fromkeys(("mhc_combine_norm", "mhc_combine_norm_mxfp8"), ("weight",)),
    "mhc_mix_sinkhorn": ("fn",),
    **dict.fromkeys(("mhc_post_combine_norm", "mhc_post_combine_norm_fp8_grid"), ("weight",)),
}
ROWS = 6
#: Steps of arithmetic, each on the result of the one before, between a load and its store: some microseconds.
DELAY = 4000


@pytest.fixture(autouse=True)
def gpu_that_launches_early() -> None:
    if not torch.cuda.is_available() or not has_pdl(probe(0)):
        pytest.skip("no GPU with programmatic dependent launch")


@triton.jit(do_not_specialize=["count", "delay", "zero"])
def late_copy_kernel(source, target, count, delay, zero, BLOCK: tl.constexpr):
    """Let the next kernel be set up, and copy BLOCK bytes long after; `zero` is 0, which the compiler cannot know."""
    begin(True)
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(source + place, mask=place < count, other=0)
    turned = value.to(tl.int32)
    for _ in range(delay):
        turned = turned * 1664525 + 1013904223
    tl.store(target + place, value + (turned * zero).to(tl.uint8), mask=place < count)


def storage_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """Return the bytes of a tensor's memory, those between its elements too."""
    return torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(tensor.untyped_storage())


def copied(inputs: dict[str, Any]) -> dict[str, Any]:
    """Return inputs whose tensors have memory of their own, with the same strides and bytes."""
    fresh = {}
    for name, value in inputs.items():
        fresh[name] = value
        if isinstance(value, torch.Tensor):
            storage = storage_bytes(value).clone().untyped_storage()
            fresh[name] = torch.empty(0, dtype=value.dtype, device="cuda").set_(
                storage, value.storage_offset(), value.shape, value.stride()
            )
    return fresh


def copy_late(source: torch.Tensor, target: torch.Tensor) -> None:
    """Copy the memory of a tensor in a kernel whose stores come long after the next one is set up."""
    old, new = storage_bytes(source), storage_bytes(target)
    late_copy_kernel[(triton.cdiv(old.numel(), 4096),)](
        old, new, old.numel(), DELAY, 0, BLOCK=4096, num_warps=4, **pdl_option(True)
    )


def seen(function: Callable[..., Any], inputs: dict[str, Any]) -> list[torch.Tensor]:
    """Return what a call returns and what it leaves in its arguments."""
    returned = function(**inputs)
    outputs = returned if isinstance(returned, tuple) else (returned,)
    kept = [item for item in outputs if isinstance(item, torch.Tensor)]
    return kept + [value.clone() for value in inputs.values() if isinstance(value, torch.Tensor)]


@pytest.mark.parametrize("name", EARLY)
def test_a_kernel_that_is_set_up_early_sees_what_the_kernel_before_it_stores_last(name: str) -> None:
    contract, kernel = contracts.get(name), EARLY[name]
    site = contract.sites(MODEL)[0]
    prepare = resolve(kernel.prepare, name, name)
    early = prepare(probe(0), Problem.at(contract, site), (ROWS,))
    ordinary = resolve(kernel.target, name, name)
    place = Place(contract, site, ROWS, torch.Generator("cuda").manual_seed(5))
    sets = [bench_inputs(place) for _ in range(2)]
    tensors = [key for key, value in sets[0].items() if isinstance(value, torch.Tensor)]
    static = copied(sets[0])
    early(**static)
    late = [key for key in tensors if storage_bytes(static[key]).numel() <= 2**22]
    late = [key for key in late if key not in READ_BEFORE.get(name, ())]
    for key in late:
        copy_late(sets[0][key], static[key])
    torch.cuda.synchronize()
    graph, got = torch.cuda.CUDAGraph(), []
    with torch.cuda.graph(graph):
        for turn, last in enumerate(late):
            source = sets[(turn + 1) % 2]
            for key in tensors:
                storage_bytes(static[key]).copy_(storage_bytes(source[key]))
            # What is stored last was something else until then: that of the other set.
            storage_bytes(static[last]).copy_(storage_bytes(sets[turn % 2][last]))
            copy_late(source[last], static[last])
            got.append(seen(early, static))
    for _ in range(2):
        graph.replay()
        torch.cuda.synchronize()
        for turn, last in enumerate(late):
            wanted = seen(ordinary, copied(sets[(turn + 1) % 2]))
            for mine, right in zip(got[turn], wanted, strict=True):
                same = torch.equal(mine.flatten().view(torch.uint8), right.flatten().view(torch.uint8))
                assert same, f"{name}: {last} was read before it was stored"
