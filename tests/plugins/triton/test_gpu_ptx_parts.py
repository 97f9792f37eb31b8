"""Device functions written in PTX, each alone, on a real GPU: sums over warps and clusters, bfloat16 pairs, roots."""

from __future__ import annotations

import pytest
import torch
import triton
import triton.language as tl

from dspark_ops.selection.probe import probe
from dspark_ops_triton.blocks.bf16_pairs import rounded, widened
from dspark_ops_triton.blocks.dependent import has_pdl
from dspark_ops_triton.blocks.elementary import sqrt_rounded
from dspark_ops_triton.blocks.row_blocks import block_lanes, load_lanes, row_blocks
from dspark_ops_triton.blocks.row_sums import open_row, row_sum, slot_index

pytestmark = pytest.mark.gpu

ROW = 5120


@pytest.fixture(autouse=True)
def gpu_with_clusters() -> None:
    if not torch.cuda.is_available() or not has_pdl(probe(0)):
        pytest.skip("no GPU of compute capability 9.0 or more, which has clusters")


@triton.jit
def _sum_kernel(
    x, total, ROW: tl.constexpr, BLOCK: tl.constexpr, BLOCKS: tl.constexpr, MORE: tl.constexpr,
    PROGRAMS: tl.constexpr, WARPS: tl.constexpr, SLOT: tl.constexpr,
):  # fmt: skip
    """Give each lane of the row that a program holds the row's sum, so that what every thread got is seen."""
    room = open_row(PROGRAMS, SLOT)
    x += tl.program_id(0) * ROW
    values = tl.zeros((PROGRAMS * BLOCK,), tl.float32)
    for part in tl.static_range(BLOCKS):
        lane = block_lanes(part, ROW, PROGRAMS, BLOCK, BLOCKS, MORE)
        values += widened(load_lanes(x, lane, part, ROW, BLOCK, BLOCKS, MORE), True)
    more = None
    if MORE:
        lane = block_lanes(BLOCKS, ROW, PROGRAMS, BLOCK, BLOCKS, MORE)
        more = widened(load_lanes(x, lane, BLOCKS, ROW, BLOCK, BLOCKS, MORE), True)
    whole = row_sum(values, more, room, PROGRAMS, WARPS, SLOT)
    lanes = tl.arange(0, PROGRAMS * BLOCK)
    tl.store(total + tl.program_id(0) * (PROGRAMS * BLOCK) + lanes, whole + 0.0 * values)


@pytest.mark.parametrize(("threads", "programs"), [(128, 1), (256, 1), (512, 1), (1024, 1), (128, 2), (128, 4)])
def test_every_thread_gets_the_sum_of_its_row_and_again_in_replays(threads: int, programs: int) -> None:
    warps, rows = threads // 32, 300  # more rows than multiprocessors: rooms are used again
    blocks = row_blocks(ROW, threads, programs)
    constants = {**blocks, "PROGRAMS": programs, "WARPS": warps, "SLOT": slot_index(warps, programs, True)}
    x = torch.zeros(rows, ROW, dtype=torch.bfloat16, device="cuda")
    total = torch.zeros(rows, programs * blocks["BLOCK"], device="cuda")

    def call() -> None:
        _sum_kernel[(rows,)](x, total, ROW=ROW, **constants, num_warps=warps, num_ctas=programs, enable_fp_fusion=False)

    call()
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        call()
    generator = torch.Generator("cuda").manual_seed(threads)
    for _ in range(20):
        # integers that bfloat16 holds, and their sums float32: any order gives the same
        x.copy_(torch.randint(-100, 100, x.shape, generator=generator, device="cuda"))
        total.fill_(torch.nan)
        graph.replay()
        assert torch.equal(total, x.float().sum(1, keepdim=True).expand_as(total))


@triton.jit
def _pairs_kernel(x, wide, y, narrow, COUNT: tl.constexpr):
    lanes = tl.arange(0, COUNT)
    tl.store(wide + lanes, widened(tl.load(x + lanes), True))
    tl.store(narrow + lanes, rounded(tl.load(y + lanes), True))


def test_pairs_of_bfloat16_are_widened_and_rounded_as_torch_does() -> None:
    bits = torch.arange(1 << 16, dtype=torch.int32, device="cuda")
    x = bits.to(torch.int16).view(torch.bfloat16)
    # every bfloat16 that is a number with each kind of rest: below, at and above the middle
    rest = torch.tensor([0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF], dtype=torch.int32, device="cuda")
    y = (bits[:, None] << 16 | rest).view(torch.float32)
    for column in range(len(rest)):
        source = torch.where(y[:, column].isnan(), 0.0, y[:, column]).contiguous()
        wide, narrow = torch.empty_like(source), torch.empty_like(x)
        _pairs_kernel[(1,)](x, wide, source, narrow, COUNT=1 << 16, num_warps=8)
        assert torch.equal(wide.view(torch.int32), x.view(torch.int16).int() << 16)
        assert torch.equal(narrow.view(torch.int16), source.bfloat16().view(torch.int16))


@triton.jit
def _root_kernel(out, first, BLOCK: tl.constexpr):
    """Write the roots of BLOCK float32 values whose bits follow each other."""
    lane = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + lane, sqrt_rounded((first + lane).to(tl.float32, bitcast=True)))


def test_roots_are_rounded_correctly_for_all_floats_from_zero_to_infinity() -> None:
    step = 1 << 24
    out, bits = torch.empty(step, device="cuda"), torch.arange(step, dtype=torch.int32, device="cuda")
    for first in range(0, 0x7F800001, step):
        _root_kernel[(step // 1024,)](out, first, BLOCK=1024, num_warps=4, enable_fp_fusion=False)
        # float64 has more than twice the digits: rounding its root once more is the root rounded once
        wanted = (bits + first).view(torch.float32).double().sqrt().float()
        valid = bits <= 0x7F800000 - first
        assert torch.equal(out[valid], wanted[valid]), hex(first)
