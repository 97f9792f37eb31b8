"""Programmatic dependent launch: a kernel is set up while the one before it still runs, where the device can.

A kernel launched so has to wait, before it touches what the kernels before it write or read, until they have finished
and their stores are seen. Our kernels wait and then let the next one be set up: that one waits in turn, so it may not
see less than in an ordinary launch, and the results are the same bit for bit. What no kernel of a step writes, weights,
may be read before the wait; kernels that do say so in their notes.
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait


@triton.jit
def begin(PDL: tl.constexpr):
    """Wait for the kernels before this one, then let the next one be set up: before all accesses but to weights."""
    if PDL:
        gdc_wait()
        gdc_launch_dependents()


def pdl_option(pdl: bool) -> dict[str, Any]:
    """Return the launch option that goes with a kernel built with PDL; none without it, since AMD knows none."""
    return {"launch_pdl": True} if pdl else {}


def has_pdl(device: Any) -> bool:
    """Return whether kernels prepared for a planned device are launched so."""
    return "pdl" in device.features
