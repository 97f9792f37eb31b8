"""How the programs of a launch find out which of them is the last, and sees what all others have written."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def is_last_to_arrive(counter, parts):
    """Return whether this program is the last of `parts` that get here; it may then read what all of them stored.

    `counter` points to a word of `ArrivalState`, 0 at rest; the last program puts it back to 0.
    """
    # The count is one thread's: the barrier puts the stores of all others before it.
    tl.debug_barrier()
    last = tl.atomic_add(counter, 1, sem="acq_rel") == parts - 1
    if last:
        tl.store(counter, 0)
    return last
