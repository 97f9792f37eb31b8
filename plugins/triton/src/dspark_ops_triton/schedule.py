"""Portable ``schedule_prefix``: verify lengths in one launch, by counting instead of sorting."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

#: Other drafts that every draft is compared with at a time, and comparisons at a time: 32 per thread.
OTHERS = 16
COMPARISONS = 8192
WARPS = 8
MODES = ("early_stop", "global", "budget")
#: Requests times slots, each rounded up to a power of two, that one program holds.
LIMIT = 2048


@triton.jit
def admission_key(value, index):
    """Return one int64 per draft that is larger the earlier it is admitted, and negative if it never is.

    Survivals are positive, so their bits order as integers. `index` counts drafts slot after slot, request after
    request inside a slot: that order decides between equal survivals. A NaN and what is below 1e-6 are not admitted.
    """
    order = (value.to(tl.int32, bitcast=True).to(tl.int64) << 32) | (0x7FFFFFFF - index).to(tl.int64)
    return tl.where(value >= 1e-6, order, -1)


@triton.jit(
    do_not_specialize=["requests", "columns", "rates", "least", "most"],
    do_not_specialize_on_alignment=["survival", "steps_per_second", "budget"],
)
def prefix_kernel(
    survival, steps_per_second, budget, verify_lens, requests, columns, rates, least, most,
    GAMMA: tl.constexpr, ROWS: tl.constexpr, SLOTS: tl.constexpr, OTHERS: tl.constexpr, MODE: tl.constexpr,
):  # fmt: skip
    """Decide for all requests at once. A draft's rank is the number of drafts that are admitted before it.

    ROWS and SLOTS are powers of two, at least the requests and GAMMA; only the first `columns` slots take part.
    """
    lane = tl.arange(0, ROWS * SLOTS)
    row, slot = lane // SLOTS, lane % SLOTS
    inside = (row < requests) & (slot < columns)
    value = tl.load(survival + row * GAMMA + slot, mask=inside, other=0.0)
    key = tl.where(inside, admission_key(value, slot * requests + row), -1)
    gain = tl.where(key >= 0, value, 0.0).to(tl.float64)
    rank = tl.zeros((ROWS * SLOTS,), tl.int32)
    before = tl.zeros((ROWS * SLOTS,), tl.float64)
    count = requests * columns
    for first in range(0, count, OTHERS):
        other = first + tl.arange(0, OTHERS)
        # Slot after slot: `other` is the very index that decides between equal survivals.
        place = (other % requests) * GAMMA + other // requests
        theirs = tl.load(survival + place, mask=other < count, other=0.0)
        their_key = tl.where(other < count, admission_key(theirs, other), -1)
        earlier = their_key[None, :] > key[:, None]
        rank += tl.sum(earlier.to(tl.int32), axis=1)
        before += tl.sum(tl.where(earlier, theirs[None, :], 0.0).to(tl.float64), axis=1)
    live = tl.sum((key >= 0).to(tl.int32), axis=0)
    if MODE == "budget":
        admitted = tl.load(budget)
    else:
        # Throughput without this draft and with it, all that are admitted before it being there.
        all_rows = requests.to(tl.float64)
        tokens = requests * tl.maximum(least, 1) + rank
        without = (before + all_rows) * tl.load(
            steps_per_second + tl.minimum(tokens, rates - 1), mask=key >= 0, other=0.0
        )
        enough = tl.load(steps_per_second + tl.minimum(tokens + 1, rates - 1), mask=key >= 0, other=0.0)
        throughput = ((before + gain) + all_rows) * enough
        if MODE == "early_stop":
            stops = (key >= 0) & (throughput <= without)
            admitted = tl.minimum(tl.min(tl.where(stops, rank, ROWS * SLOTS), axis=0), live)
        else:
            start = tl.minimum(requests * tl.maximum(least, 1), rates - 1)
            nothing = all_rows * tl.load(steps_per_second + start)
            best = tl.max(tl.where(key >= 0, throughput, float("-inf")), axis=0)
            reaches = (key >= 0) & (throughput == best)
            smallest = tl.min(tl.where(reaches, rank + 1, ROWS * SLOTS), axis=0)
            admitted = tl.where(best > nothing, smallest, 0)
    selected = (key >= 0) & (rank < admitted)
    counts = tl.sum(tl.reshape(selected.to(tl.int32), (ROWS, SLOTS)), axis=1) + least
    request = tl.arange(0, ROWS)
    lens = tl.minimum(tl.maximum(counts, tl.maximum(least, 1)), most)
    tl.store(verify_lens + request, lens, mask=request < requests)


def schedule_prefix(
    survival: Tensor,
    steps_per_second: Tensor,
    budget: Tensor | None = None,
    mode: str = "early_stop",
    min_verify: int = 1,
    max_verify: int = 0,
) -> Tensor:
    """Return the rows that each request verifies in this step, the anchor included.

    Args:
        survival: [R, G] float32, probabilities that do not rise along a row, contiguous.
        steps_per_second: [L] float64, rate of a step with b tokens at index b.
        budget: [1] int32, the number of drafts in mode ``budget``; None in the other modes.
        mode: ``early_stop``, ``global`` or ``budget``.
        min_verify: rows that each request verifies at least.
        max_verify: rows that each request verifies at most; 0 stands for G + 1.

    Returns:
        [R] int32.

    Raises:
        ValueError: unknown mode, negative `max_verify`, a budget that is missing or given without effect, or more than
            `LIMIT` drafts.

    Bytes moved: 4 per draft and request, and two rates per draft. Launches: 1 of one program, none for no requests.

    Source: C1.10.2 to C1.10.4, C1.10.8. Sums of survivals are exact in any order up to 512 expected tokens.
    """
    return PrefixScheduler(0)(survival, steps_per_second, budget, mode, min_verify, max_verify)


class PrefixScheduler:
    """``schedule_prefix`` with one build for all numbers of requests up to the planned ones."""

    __slots__ = ("_rows",)

    def __init__(self, rows: int) -> None:
        self._rows = rows

    def __call__(
        self,
        survival: Tensor,
        steps_per_second: Tensor,
        budget: Tensor | None = None,
        mode: str = "early_stop",
        min_verify: int = 1,
        max_verify: int = 0,
    ) -> Tensor:
        """Return what `schedule_prefix` returns."""
        requests, gamma = survival.shape
        if mode not in MODES or max_verify < 0 or (budget is not None) != (mode == "budget"):
            got = f"mode {mode!r}, max_verify {max_verify} and a budget of {budget if budget is None else 'a tensor'}"
            raise ValueError(f"schedule_prefix: wanted mode early_stop or global, or budget with a budget, got {got}")
        lens = torch.empty(requests, dtype=torch.int32, device=survival.device)
        if not requests:
            return lens
        most = max_verify or gamma + 1
        constants = launch_constants(max(requests, self._rows), gamma, mode)
        if constants["ROWS"] * constants["SLOTS"] > LIMIT:
            raise ValueError(f"schedule_prefix: wanted at most {LIMIT} drafts, got {requests} requests of {gamma}")
        prefix_kernel[(1,)](
            survival, steps_per_second, lens if budget is None else budget, lens, requests, min(most, gamma),
            steps_per_second.shape[0], min_verify, most, **constants, **launch_options(),
        )  # fmt: skip
        return lens


def launch_constants(requests: int, gamma: int, mode: str) -> dict[str, Any]:
    """Return the compile-time arguments of a launch."""
    rows, slots = triton.next_power_of_2(requests), triton.next_power_of_2(max(gamma, 1))
    others = max(1, min(OTHERS, COMPARISONS // (rows * slots)))
    return {"GAMMA": gamma, "ROWS": rows, "SLOTS": slots, "OTHERS": others, "MODE": mode}


def launch_options() -> dict[str, Any]:
    """Return the compiler options of a launch. Contraction is off: products and sums of rates are compared exactly."""
    return {"num_warps": WARPS, "enable_fp_fusion": False}


def prepare_schedule_prefix(device: Any, site: Any, rows: Sequence[int]) -> Callable[..., Tensor]:
    """Return `schedule_prefix`, compiled once per mode for up to the planned number of requests."""
    scheduler = PrefixScheduler(max(rows, default=0))
    if device.arch.vendor != "cpu":
        survival = torch.zeros(1, site.axes["G"], dtype=torch.float32, device="cuda")
        rates = torch.ones(2, dtype=torch.float64, device="cuda")
        budget = torch.zeros(1, dtype=torch.int32, device="cuda")
        for mode in MODES:
            scheduler(survival, rates, budget if mode == "budget" else None, mode)
    return scheduler
