"""`dspark_ops_triton.blocks.dependent.begin` in two halves, and in a form for kernels that know their addresses first.

Which place is the fastest to let the next kernel in is a matter of measuring: on an H200, right behind the wait for
most kernels, where `begin` has it, and behind the first loads for some; those with many loads say it twice, early and
behind the loads, where it keeps the assembler from moving them (`row_blocks.loads_stay_before`). In front of the wait
would be right as well, as long as every kernel waits before its first access, for a kernel is over only when its own
wait is. But the operators of a whole cycle took 3 % longer so, and a kernel of another project that reads something
before its wait would find less of it finished.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from dspark_ops_triton.blocks.dependent import begin


@triton.jit
def wait_for_earlier(PDL: tl.constexpr):
    """Wait for the kernels before this one. It stands before the first access to what a step writes."""
    if PDL:
        gdc_wait()


@triton.jit
def let_next_be_set_up(PDL: tl.constexpr):
    """Let the next kernel be set up. It stands behind `wait_for_earlier`, never before it."""
    if PDL:
        gdc_launch_dependents()


@triton.jit
def begin_at(arguments, PDL: tl.constexpr):
    """Do what `begin` does, once pointers and integers have been computed: what the first accesses are made of.

    The arguments of a launch lie in memory of its own, from which the first that is read has to be fetched. Compilers
    put the wait first, and fetch and arithmetic behind it, where all wait for them; asking whether all `arguments`, a
    tuple, are 0 keeps them before it. One of them is a pointer to memory, so they never are.
    """
    if PDL:
        word = arguments[0].to(tl.int64)
        for index in tl.static_range(1, len(arguments)):
            word |= arguments[index].to(tl.int64)
        tl.inline_asm_elementwise(
            "{ .reg .pred p; setp.eq.s64 p, $1, 0; @p trap; mov.u32 $0, 0; }", "=r,l", [word],
            dtype=tl.int32, is_pure=False, pack=1,
        )  # fmt: skip
    begin(PDL)
