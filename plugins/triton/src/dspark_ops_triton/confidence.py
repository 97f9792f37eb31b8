"""Portable ``confidence_survival``: the confidence head of a whole draft block in one launch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from dspark_ops_triton.blocks.exact_sums import add_product

#: Values of all slots of a request that a program has in hand at a time, and threads that share them.
TILE = 8192
THREADS = 512
#: Tiles whose loads are all under way at once, where a state has no more of them: 5 of 1024 at 5120.
UNROLL = 5

_NOT_SPECIALIZED = ["row_stride", "slot_stride", "last_token", "has_bias", "has_temperatures"]


@triton.jit(
    do_not_specialize=_NOT_SPECIALIZED,
    do_not_specialize_on_alignment=["previous", "weight", "bias", "temperatures", "embed"],
)
def confidence_kernel(
    hidden, previous, embed, weight, bias, temperatures, confidence, survival, row_stride, slot_stride,
    last_token, has_bias, has_temperatures,
    GAMMA: tl.constexpr, SLOTS: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr, STRIDE_UNIT: tl.constexpr,
    MARKOV: tl.constexpr, MARKOV_BLOCK: tl.constexpr, UNROLL: tl.constexpr,
):  # fmt: skip
    """Score the GAMMA slots of one request; strides count groups of STRIDE_UNIT elements, SLOTS is a power of two.

    The head's products are summed without losing bits: scores far from 0 are sums of large terms, and a confidence is
    wanted to two millionths.
    """
    request = tl.program_id(0).to(tl.int64)
    slot = tl.arange(0, SLOTS)
    live = slot < GAMMA
    lanes = tl.arange(0, BLOCK)
    high = tl.zeros((SLOTS, BLOCK), tl.float32)
    low = tl.zeros((SLOTS, BLOCK), tl.float32)
    start = hidden + request * row_stride * STRIDE_UNIT + (slot.to(tl.int64) * slot_stride * STRIDE_UNIT)[:, None]
    for first in tl.range(0, WIDTH, BLOCK, loop_unroll_factor=UNROLL):
        column = first + lanes
        inside = column < WIDTH
        state = tl.load(start + column[None, :], mask=live[:, None] & inside[None, :], other=0.0).to(tl.float32)
        share = tl.load(weight + column, mask=inside, other=0.0)
        high, low = add_product(high, low, state, share[None, :].broadcast_to((SLOTS, BLOCK)))
    score = tl.sum(high.to(tl.float64) + low.to(tl.float64), axis=1)
    if MARKOV:
        token = tl.load(previous + request * GAMMA + slot, mask=live, other=0)
        token = tl.minimum(tl.maximum(token, 0), last_token)
        column = tl.arange(0, MARKOV_BLOCK)
        inside = column < MARKOV
        rows = tl.load(
            embed + token[:, None] * MARKOV + column[None, :], mask=live[:, None] & inside[None, :], other=0.0
        ).to(tl.float32)
        share = tl.load(weight + WIDTH + column, mask=inside, other=0.0)
        nothing = tl.zeros((SLOTS, MARKOV_BLOCK), tl.float32)
        high, low = add_product(nothing, nothing, rows, share[None, :].broadcast_to((SLOTS, MARKOV_BLOCK)))
        score += tl.sum(high.to(tl.float64) + low.to(tl.float64), axis=1)
    none = tl.zeros((SLOTS,), tl.int32)
    score += tl.load(bias + none, mask=none + has_bias > 0, other=0.0).to(tl.float64)
    score /= tl.load(temperatures + slot, mask=live & (none + has_temperatures > 0), other=1.0).to(tl.float64)
    score = score.to(tl.float32)
    tail = tl.exp(-tl.abs(score))
    value = tl.where(score >= 0, 1.0, tail) / (1.0 + tail)
    product = value
    running = 1.0
    for position in tl.static_range(GAMMA):
        # One product after the other, as the contract has it: a scan would associate them otherwise.
        running = running * tl.sum(tl.where(slot == position, value, 0.0), axis=0)
        product = tl.where(slot == position, running, product)
    tl.store(confidence + request * GAMMA + slot, value, mask=live)
    tl.store(survival + request * GAMMA + slot, product, mask=live)


def confidence_survival(
    hidden: Tensor,
    previous: Tensor,
    embed: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    temperatures: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Return the confidence of each draft and the survival probability of each prefix.

    Args:
        hidden: [R, G, D] bfloat16, last stride 1.
        previous: [R, G] int64, contiguous; ids outside the table read its nearest row.
        embed: [V, M] bfloat16 or float32, contiguous.
        weight: [1, D + M] float32, or [1, D] for a head without the Markov half.
        bias: [1] float32 or None.
        temperatures: [G] float32 or None.

    Returns:
        confidence and survival, [R, G] float32 each.

    Raises:
        ValueError: `weight` has neither width.

    Bytes moved: the states once, the head's weight once per request. Launches: 1, none for no requests.

    Source: C1.8, C1.9.
    """
    requests, gamma, width = hidden.shape
    markov = embed.shape[1]
    if weight.shape[1] not in (width, width + markov):
        raise ValueError(
            f"confidence_survival: wanted weight [1, {width}] or [1, {width + markov}], got {list(weight.shape)}"
        )
    confidence = torch.empty(requests, gamma, dtype=torch.float32, device=hidden.device)
    survival = torch.empty_like(confidence)
    if requests and gamma:
        aligned = hidden.data_ptr() % 16 == 0 and hidden.stride(0) % 8 == 0 and hidden.stride(1) % 8 == 0
        unit = 8 if aligned else 1
        confidence_kernel[(requests,)](
            hidden, previous, embed, weight, weight if bias is None else bias,
            weight if temperatures is None else temperatures, confidence, survival,
            hidden.stride(0) // unit, hidden.stride(1) // unit,
            embed.shape[0] - 1, int(bias is not None), int(temperatures is not None),
            **launch_constants(gamma, width, unit, markov if weight.shape[1] > width else 0),
            **launch_options(torch.version.hip is not None),
        )  # fmt: skip
    return confidence, survival


def launch_constants(gamma: int, width: int, unit: int, markov: int) -> dict[str, Any]:
    """Return the compile-time arguments of a launch; `markov` is 0 for a head without that half."""
    slots = triton.next_power_of_2(gamma)
    block = min(TILE // slots, triton.next_power_of_2(width))
    return {
        "GAMMA": gamma, "SLOTS": slots, "WIDTH": width, "STRIDE_UNIT": unit, "MARKOV": markov, "BLOCK": block,
        "MARKOV_BLOCK": triton.next_power_of_2(max(markov, 1)),
        "UNROLL": UNROLL if unit > 1 and triton.cdiv(width, block) <= UNROLL else 1,
    }  # fmt: skip


def launch_options(amd: bool) -> dict[str, Any]:
    """Return the compiler options of a launch. Contraction is off: it would break the exact sums."""
    return {"num_warps": THREADS // (64 if amd else 32), "enable_fp_fusion": False}


def prepare_confidence_survival(device: Any, site: Any, rows: Sequence[int]) -> Callable[..., tuple[Tensor, Tensor]]:
    """Return `confidence_survival`, compiled for the site's sizes with and without the Markov half."""
    if device.arch.vendor != "cpu":
        gamma, width, markov = (site.axes[name] for name in "GDM")
        embed = torch.zeros(1, markov, dtype=getattr(torch, site.dtypes.get("embed", "bfloat16")), device="cuda")
        previous = torch.zeros(1, gamma, dtype=torch.int64, device="cuda")
        row = triton.cdiv(width, 8) * 8
        buffer = torch.zeros(gamma * (row + 1) + 1, dtype=torch.bfloat16, device="cuda")
        aligned = buffer[: gamma * row].view(1, gamma, row)[..., :width]
        odd = buffer[1:].view(1, gamma, row + 1)[..., :width]
        first = buffer[:-1].view(1, gamma, row + 1)[..., :width]
        for columns in (width + markov, width):
            weight = torch.zeros(1, columns, dtype=torch.float32, device="cuda")
            for hidden in (aligned, odd, first):
                confidence_survival(hidden, previous, embed, weight)
    return confidence_survival
