"""Device functions of the hyper-connection update: a copy's share of the branch and its mix of the old copies."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def updated_copies(
    branch, residual, post, comb, lanes, mask, COPIES: tl.constexpr, HIDDEN: tl.constexpr,
):  # fmt: skip
    """Return lanes of one token's new copies, a tuple of float32 not yet rounded, in the order of roundings of N3.5.

    Everything is loaded before anything is returned, so that stores of the results do not hold up loads.

    Args:
        branch: pointer to the token's HIDDEN values of the branch output.
        residual: pointer to the token's COPIES * HIDDEN old values.
        post: pointer to the token's COPIES weights of the branch.
        comb: pointer to the token's COPIES * COPIES weights of the old copies, source first.
        lanes: columns; values where `mask` is false count as zeros.
        mask: which of them there are.
        COPIES: number of copies.
        HIDDEN: values of a copy.
    """
    shape: tl.constexpr = lanes.shape
    share = tl.load(branch + lanes, mask=mask, other=0.0).to(tl.float32)
    old = ()
    for source in tl.static_range(COPIES):
        old = old + (tl.load(residual + source * HIDDEN + lanes, mask=mask, other=0.0).to(tl.float32),)  # noqa: RUF005
    new = ()
    for copy in tl.static_range(COPIES):
        total = old[0] * tl.load(comb + copy)
        total = tl.fma(share, tl.load(post + copy).broadcast_to(shape), total)
        for source in tl.static_range(1, COPIES):
            total = tl.fma(old[source], tl.load(comb + source * COPIES + copy).broadcast_to(shape), total)
        new = new + (total,)  # noqa: RUF005
    return new
