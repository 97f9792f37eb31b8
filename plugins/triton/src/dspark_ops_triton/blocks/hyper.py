"""Device functions of the hyper-connection update: a copy's share of the branch and its mix of the old copies."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def load_copies(x, lanes, mask, COPIES: tl.constexpr, HIDDEN: tl.constexpr):
    """Return lanes of one token's copies as a tuple of blocks, as they are stored.

    All of them are loaded before any result is stored: a store in between would hold up the loads behind it.
    """
    copies = ()
    for copy in tl.static_range(COPIES):
        copies = copies + (tl.load(x + copy * HIDDEN + lanes, mask=mask, other=0.0),)  # noqa: RUF005
    return copies


@triton.jit
def load_weights(weights, COUNT: tl.constexpr):
    """Return COUNT numbers as a tuple."""
    loaded = ()
    for index in tl.static_range(COUNT):
        loaded = loaded + (tl.load(weights + index),)  # noqa: RUF005
    return loaded


@triton.jit
def updated_copy(branch, old, post, comb, COPY: tl.constexpr, COPIES: tl.constexpr):
    """Return lanes of one token's new copy COPY as float32, not yet rounded, in the order of roundings of N3.5.

    Args:
        branch: lanes of the branch output.
        old: the old copies, from `load_copies`.
        post: tuple of COPIES weights of the branch.
        comb: tuple of COPIES * COPIES weights of the old copies, source first.
        COPY: the destination.
        COPIES: number of copies.
    """
    shape: tl.constexpr = branch.shape
    total = old[0].to(tl.float32) * comb[COPY]
    total = tl.fma(branch.to(tl.float32), post[COPY].broadcast_to(shape), total)
    for source in tl.static_range(1, COPIES):
        total = tl.fma(old[source].to(tl.float32), comb[source * COPIES + COPY].broadcast_to(shape), total)
    return total
