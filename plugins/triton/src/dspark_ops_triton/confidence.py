"""Portable ``confidence_survival``: a program for each slot of a draft block, then the products of each block."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from dspark_ops_triton.blocks.cutting import Cut, cut_options, prepare_cut
from dspark_ops_triton.blocks.dependent_stages import begin_at
from dspark_ops_triton.blocks.exact_sums import add_product

#: Columns of one slot's state that a program has in hand at a time, and the warps that share them: 16 bytes per thread.
CUT, AMD_CUT = Cut(items=1024, warps=4), Cut(items=1024, warps=2)
#: Tiles whose loads are all under way at once, where a state has no more of them: 5 of 1024 at 5120.
UNROLL = 5
#: Requests of a program that multiplies: one per thread.
REQUESTS = Cut(items=32, warps=1)


@triton.jit(
    do_not_specialize=["row_stride", "slot_stride", "last_token", "has_bias", "has_temperatures"],
    do_not_specialize_on_alignment=["previous", "bias", "temperatures"],
)
def score_kernel(
    hidden, previous, embed, weight, bias, temperatures, confidence, row_stride, slot_stride,
    last_token, has_bias, has_temperatures,
    WIDTH: tl.constexpr, BLOCK: tl.constexpr, STRIDE_UNIT: tl.constexpr, MARKOV: tl.constexpr,
    MARKOV_BLOCK: tl.constexpr, UNROLL: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Write the confidence of one slot of one request; strides count groups of STRIDE_UNIT elements.

    The head's products are summed without losing bits: scores far from 0 are sums of large terms, and a confidence is
    wanted to two millionths.
    """
    request, slot = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    place = request * tl.num_programs(1) + slot
    start = hidden + request * row_stride * STRIDE_UNIT + slot * slot_stride * STRIDE_UNIT
    begin_at((start, weight, bias, temperatures, confidence, last_token), PDL)
    # What is needed last is on its way first: the state's products hide its latency.
    zero = tl.full((), 0, tl.int32)
    shift = tl.load(bias + zero, mask=zero + has_bias > 0, other=0.0)
    temperature = tl.load(temperatures + slot, mask=zero + has_temperatures > 0, other=1.0)
    if MARKOV:
        token = tl.minimum(tl.maximum(tl.load(previous + place), 0), last_token)
        column = tl.arange(0, MARKOV_BLOCK)
        known = tl.load(embed + token * MARKOV + column, mask=column < MARKOV, other=0.0).to(tl.float32)
        its_share = tl.load(weight + WIDTH + column, mask=column < MARKOV, other=0.0)
    lanes = tl.arange(0, BLOCK)
    high = tl.zeros((BLOCK,), tl.float32)
    low = tl.zeros((BLOCK,), tl.float32)
    for first in tl.range(0, WIDTH, BLOCK, loop_unroll_factor=UNROLL):
        inside = first + lanes < WIDTH
        state = tl.load(start + first + lanes, mask=inside, other=0.0).to(tl.float32)
        share = tl.load(weight + first + lanes, mask=inside, other=0.0)
        high, low = add_product(high, low, state, share)
    score = tl.sum(high.to(tl.float64) + low.to(tl.float64), axis=0)
    if MARKOV:
        nothing = tl.zeros((MARKOV_BLOCK,), tl.float32)
        high, low = add_product(nothing, nothing, known, its_share)
        score += tl.sum(high.to(tl.float64) + low.to(tl.float64), axis=0)
    score = ((score + shift.to(tl.float64)) / temperature.to(tl.float64)).to(tl.float32)
    tail = tl.exp(-tl.abs(score))
    tl.store(confidence + place, tl.where(score >= 0, 1.0, tail) / (1.0 + tail))


@triton.jit(do_not_specialize=["requests"])
def survival_kernel(
    confidence, survival, requests, GAMMA: tl.constexpr, REQUESTS: tl.constexpr, PDL: tl.constexpr
):  # fmt: skip
    """Write the products of the first confidences of REQUESTS requests, one factor after the other."""
    request = tl.program_id(0).to(tl.int64) * REQUESTS + tl.arange(0, REQUESTS)
    live = request < requests
    begin_at((confidence, survival, requests), PDL)
    values = ()
    for slot in tl.static_range(GAMMA):
        values = values + (tl.load(confidence + request * GAMMA + slot, mask=live, other=1.0),)  # noqa: RUF005
    running = values[0]
    tl.store(survival + request * GAMMA, running, mask=live)
    for slot in tl.static_range(1, GAMMA):
        running = running * values[slot]
        tl.store(survival + request * GAMMA + slot, running, mask=live)


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

    Bytes moved: the states once, the head's weight once per slot. Launches: 2, none for no requests.

    Source: C1.8, C1.9.
    """
    cut = AMD_CUT if torch.version.hip else CUT
    return _score(cut, hidden, previous, embed, weight, bias, temperatures)


def _score(
    cut: Cut, hidden: Tensor, previous: Tensor, embed: Tensor, weight: Tensor, bias: Tensor | None = None,
    temperatures: Tensor | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
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
        score_kernel[(requests, gamma)](
            hidden, previous, embed, weight, weight if bias is None else bias,
            weight if temperatures is None else temperatures, confidence,
            hidden.stride(0) // unit, hidden.stride(1) // unit,
            embed.shape[0] - 1, int(bias is not None), int(temperatures is not None),
            **score_constants(cut, width, unit, markov if weight.shape[1] > width else 0), **cut_options(cut),
        )  # fmt: skip
        multiply = replace(REQUESTS, pdl=cut.pdl)
        survival_kernel[(triton.cdiv(requests, multiply.items),)](
            confidence, survival, requests, **survival_constants(multiply, gamma), **cut_options(multiply)
        )
    return confidence, survival


def score_constants(cut: Cut, width: int, unit: int, markov: int) -> dict[str, Any]:
    """Return the compile-time arguments of the first launch; `markov` is 0 for a head without that half."""
    block = min(cut.items, triton.next_power_of_2(width))
    return {
        "WIDTH": width, "STRIDE_UNIT": unit, "MARKOV": markov, "BLOCK": block,
        "MARKOV_BLOCK": triton.next_power_of_2(max(markov, 1)),
        "UNROLL": UNROLL if unit > 1 and triton.cdiv(width, block) <= UNROLL else 1, "PDL": cut.pdl,
    }  # fmt: skip


def survival_constants(cut: Cut, gamma: int) -> dict[str, Any]:
    """Return the compile-time arguments of the second launch."""
    return {"GAMMA": gamma, "REQUESTS": cut.items, "PDL": cut.pdl}


def prepare_confidence_survival(device: Any, site: Any, rows: Sequence[int]) -> Callable[..., tuple[Tensor, Tensor]]:
    """Return `confidence_survival`, compiled for the site's sizes with and without the Markov half.

    A weight or a table that does not begin at a 16-byte boundary is compiled at its first call.
    """
    cut = AMD_CUT if device.arch.vendor == "amd" else CUT
    return prepare_cut(_score, cut, confidence_survival, _compile, device, site, rows)


def _compile(call: Callable[..., Any], site: Any, rows: Sequence[int]) -> None:
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
            call(hidden, previous, embed, weight)
