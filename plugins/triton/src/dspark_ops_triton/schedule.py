"""Portable ``schedule_prefix``: verify lengths in one launch of one program, which sorts all drafts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from dspark_ops_triton.blocks.dependent import begin, has_pdl, pdl_option

WARPS = 8
#: Requests that share a build of their own, since what is sorted is padded to what a build holds.
FEW = 8
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
    GAMMA: tl.constexpr, ROWS: tl.constexpr, SLOTS: tl.constexpr, MODE: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Decide for all requests at once. A draft's rank, its place in sorted order, is how many are admitted before it.

    ROWS and SLOTS are powers of two, at least the requests and GAMMA; only the first `columns` slots take part.
    """
    begin(PDL)
    lane = tl.arange(0, ROWS * SLOTS)
    row, slot = lane // SLOTS, lane % SLOTS
    inside = (row < requests) & (slot < columns)
    value = tl.load(survival + row * GAMMA + slot, mask=inside, other=0.0)
    key = tl.where(inside, admission_key(value, slot * requests + row), -1)
    # A key holds all that follows needs: the survival in its high half.
    order = tl.sort(key, descending=True)
    rank = lane
    live = order >= 0
    gain = tl.where(live, (order >> 32).to(tl.int32).to(tl.float32, bitcast=True), 0.0).to(tl.float64)
    after = tl.cumsum(gain, axis=0)
    alive = tl.sum(live.to(tl.int32), axis=0)
    if MODE == "budget":
        admitted = tl.load(budget)
    else:
        # Throughput without this draft and with it, all that are admitted before it being there.
        all_rows = requests.to(tl.float64)
        tokens = requests * tl.maximum(least, 1) + rank
        without = ((after - gain) + all_rows) * tl.load(
            steps_per_second + tl.minimum(tokens, rates - 1), mask=live, other=0.0
        )
        enough = tl.load(steps_per_second + tl.minimum(tokens + 1, rates - 1), mask=live, other=0.0)
        throughput = (after + all_rows) * enough
        if MODE == "early_stop":
            stops = live & (throughput <= without)
            admitted = tl.minimum(tl.min(tl.where(stops, rank, ROWS * SLOTS), axis=0), alive)
        else:
            start = tl.minimum(requests * tl.maximum(least, 1), rates - 1)
            nothing = all_rows * tl.load(steps_per_second + start)
            best = tl.max(tl.where(live, throughput, float("-inf")), axis=0)
            reaches = live & (throughput == best)
            smallest = tl.min(tl.where(reaches, rank + 1, ROWS * SLOTS), axis=0)
            admitted = tl.where(best > nothing, smallest, 0)
    # the key of the last draft that is admitted
    least_key = tl.min(tl.where(live & (rank < admitted), order, 0x7FFFFFFFFFFFFFFF), axis=0)
    selected = key >= least_key
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
    """``schedule_prefix`` with two builds per mode: for up to `FEW` requests, and for up to the planned number."""

    __slots__ = ("_pdl", "_rows")

    def __init__(self, rows: int, pdl: bool = False) -> None:
        self._rows = rows
        self._pdl = pdl

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
        sorted_rows = max(requests, self._rows)
        constants = launch_constants(min(sorted_rows, FEW) if requests <= FEW else sorted_rows, gamma, mode, self._pdl)
        if constants["ROWS"] * constants["SLOTS"] > LIMIT:
            raise ValueError(f"schedule_prefix: wanted at most {LIMIT} drafts, got {requests} requests of {gamma}")
        prefix_kernel[(1,)](
            survival, steps_per_second, lens if budget is None else budget, lens, requests, min(most, gamma),
            steps_per_second.shape[0], min_verify, most, **constants, **launch_options(self._pdl),
        )  # fmt: skip
        return lens


def launch_constants(requests: int, gamma: int, mode: str, pdl: bool) -> dict[str, Any]:
    """Return the compile-time arguments of a launch."""
    rows, slots = triton.next_power_of_2(requests), triton.next_power_of_2(max(gamma, 2))
    return {"GAMMA": gamma, "ROWS": rows, "SLOTS": slots, "MODE": mode, "PDL": pdl}


def launch_options(pdl: bool) -> dict[str, Any]:
    """Return the compiler options of a launch. Contraction is off: products and sums of rates are compared exactly."""
    return {"num_warps": WARPS, "enable_fp_fusion": False, **pdl_option(pdl)}


def prepare_schedule_prefix(device: Any, site: Any, rows: Sequence[int]) -> Callable[..., Tensor]:
    """Return `schedule_prefix`, compiled for few requests and for up to the planned number of them in every mode."""
    scheduler = PrefixScheduler(max(rows, default=0), has_pdl(device))
    if device.arch.vendor != "cpu":
        rates = torch.ones(2, dtype=torch.float64, device="cuda")
        budget = torch.zeros(1, dtype=torch.int32, device="cuda")
        for requests in {1, max(rows, default=1)}:
            survival = torch.zeros(requests, site.axes["G"], dtype=torch.float32, device="cuda")
            for mode in MODES:
                scheduler(survival, rates, budget if mode == "budget" else None, mode)
    return scheduler
