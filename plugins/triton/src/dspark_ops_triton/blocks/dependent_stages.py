"""The two halves of `dspark_ops_triton.blocks.dependent.begin`, for a kernel that lets the next one be set up later.

Which place is the fastest is a matter of measuring: on an H200, right behind the wait for most kernels, where `begin`
has it, and behind the first loads for some. In front of the wait would be right as well, as long as every kernel waits
before its first access, for a kernel is over only when its own wait is. But the operators of a whole cycle took 3 %
longer so, and a kernel of another project that reads something before its wait would find less of it finished.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait


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
