"""Experts chosen for each token, a row to a program; how many warps share it is data."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from dspark_ops_triton.blocks.choosing import TAKEN, best_of_row, rank_key, side_by_side
from dspark_ops_triton.blocks.dependent_stages import let_next_be_set_up, wait_for_earlier
from dspark_ops_triton.blocks.elementary import sqrt_softplus
from dspark_ops_triton.blocks.expert_words import expert_word
from dspark_ops_triton.blocks.launching import RowTiles, row_options
from dspark_ops_triton.blocks.ptx import takes_ptx


@triton.jit(
    do_not_specialize=["row_stride", "alt_token_id", "pad_id"],
    do_not_specialize_on_alignment=["bias", "bias_alt", "input_ids", "num_valid", "column_stride"],
)
def gate_kernel(
    logits, bias, bias_alt, input_ids, num_valid, weights, ids, packed,
    row_stride, column_stride, routed_scaling, renorm_eps, pad_id, alt_token_id,
    EXPERTS: tl.constexpr, TOP: tl.constexpr, SLOTS: tl.constexpr, GROUPS: tl.constexpr, LANES: tl.constexpr,
    DEPTH: tl.constexpr, ALTERNATIVE: tl.constexpr, PADDED: tl.constexpr, PACKED: tl.constexpr,
    PTX: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Choose TOP of EXPERTS for one row; each of GROUPS warps first chooses from LANES * DEPTH of them."""
    row = tl.program_id(0)
    first = tl.arange(0, GROUPS)[:, None] * LANES + tl.arange(0, LANES)[None, :]
    start = logits + row.to(tl.int64) * row_stride
    # What needs no memory is computed before the wait.
    wait_for_earlier(PDL)
    # All loads come before the first score: they are under way together.
    experts, values, offsets, others = (), (), (), ()
    for block in tl.static_range(DEPTH):
        expert = first + block * (GROUPS * LANES)
        mask = expert < EXPERTS
        values = values + (tl.load(start + expert.to(tl.int64) * column_stride, mask=mask, other=0.0),)  # noqa: RUF005
        offsets = offsets + (tl.load(bias + expert, mask=mask, other=0.0),)  # noqa: RUF005
        if ALTERNATIVE:
            # both are loaded: waiting for the token to know which one would take longer
            others = others + (tl.load(bias_alt + expert, mask=mask, other=0.0),)  # noqa: RUF005
        experts = experts + (expert,)  # noqa: RUF005
    if ALTERNATIVE:
        other_bias = tl.load(input_ids + row) == alt_token_id
    if PADDED:
        live = row < tl.load(num_valid)
    let_next_be_set_up(PDL)
    keys, scores = (), ()
    for block in tl.static_range(DEPTH):
        score = sqrt_softplus(values[block].to(tl.float32), PTX)
        offset = offsets[block].to(tl.float32)
        if ALTERNATIVE:
            offset = tl.where(other_bias, others[block].to(tl.float32), offset)
        key = rank_key(score + offset)
        if (block + 1) * GROUPS * LANES > EXPERTS:
            key = tl.where(experts[block] < EXPERTS, key, TAKEN)
        keys = keys + (key,)  # noqa: RUF005
        scores = scores + (tl.where(score != score, 0x7FC00000, score.to(tl.int32, bitcast=True)),)  # noqa: RUF005
    places, columns, bits = best_of_row(keys, scores, experts, TOP, SLOTS)

    chosen_sum = tl.zeros((GROUPS, 1), tl.float32)
    for taken in tl.static_range(TOP):
        value = bits[taken].to(tl.float32, bitcast=True)
        chosen_sum += tl.where(places[taken] < TOP, value, 0.0)
    total = tl.sum(chosen_sum, axis=0, keep_dims=True)
    divisor = tl.where(renorm_eps > 0.0, total + renorm_eps, tl.where(total > 0.0, total, 1.0))
    # A lane of each group for each of its candidates: they are stored from where they are.
    place, column = side_by_side(places, LANES), side_by_side(columns, LANES)
    value = side_by_side(bits, LANES).to(tl.float32, bitcast=True)
    weight = tl.div_rn(value, divisor.broadcast_to(value.shape)) * routed_scaling
    if PADDED:
        weight = tl.where(live, weight, 0.0)
        column = tl.where(live, column, pad_id)
    chosen = (place < TOP) & (tl.arange(0, LANES)[None, :] < TOP)
    out = row.to(tl.int64) * TOP + place
    tl.store(weights + out, weight, mask=chosen)
    tl.store(ids + out, column, mask=chosen)
    if PACKED:
        tl.store(packed + out, expert_word(column, weight), mask=chosen)


def moe_gate_topk(
    tiles: RowTiles, logits: Tensor, bias: Tensor, top_k: int, routed_scaling: float = 1.5, renorm_eps: float = 1e-20,
    pad_id: int = -1, num_valid: Tensor | None = None, bias_alt: Tensor | None = None, input_ids: Tensor | None = None,
    alt_token_id: int = -1, numerics: str = "log1p",
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Return weights and ids of the chosen experts: ``moe_gate_topk`` (N2), arguments as in its contract."""
    optional = (num_valid, bias_alt, input_ids, alt_token_id)
    return _launch(tiles, False, logits, bias, top_k, routed_scaling, renorm_eps, pad_id, *optional)[:2]


def moe_gate_topk_packed(
    tiles: RowTiles, logits: Tensor, bias: Tensor, top_k: int, routed_scaling: float = 1.5, renorm_eps: float = 1e-20,
    pad_id: int = -1, num_valid: Tensor | None = None, bias_alt: Tensor | None = None, input_ids: Tensor | None = None,
    alt_token_id: int = -1, numerics: str = "log1p",
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Return weights, ids and packed words: ``moe_gate_topk_packed`` (N2), arguments as in its contract."""
    optional = (num_valid, bias_alt, input_ids, alt_token_id)
    return _launch(tiles, True, logits, bias, top_k, routed_scaling, renorm_eps, pad_id, *optional)


def _launch(
    tiles: RowTiles, pack: bool, logits: Tensor, bias: Tensor, top_k: int, routed_scaling: float, renorm_eps: float,
    pad_id: int, num_valid: Tensor | None, bias_alt: Tensor | None, input_ids: Tensor | None, alt_token_id: int,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    rows, experts = logits.shape
    weights = torch.empty(rows, top_k, dtype=torch.float32, device=logits.device)
    ids = torch.empty(rows, top_k, dtype=torch.int32, device=logits.device)
    packed = torch.empty_like(ids) if pack else ids
    alternative = bias_alt is not None and input_ids is not None
    if rows:
        gate_kernel[(rows,)](
            logits, bias, bias_alt if alternative else bias, input_ids if alternative else ids,
            ids if num_valid is None else num_valid, weights, ids, packed, logits.stride(0), logits.stride(1),
            float(routed_scaling), float(renorm_eps), pad_id, alt_token_id,
            **launch_constants(
                tiles, experts, top_k, alternative, num_valid is not None, pack, torch.version.hip is not None
            ),
            **row_options(tiles),
        )  # fmt: skip
    return weights, ids, packed


def launch_constants(
    tiles: RowTiles, experts: int, top_k: int, alternative: bool, padded: bool, pack: bool, amd: bool
) -> dict[str, Any]:
    """Return the compile-time arguments of a launch."""
    lanes = 64 if amd else 32
    return {
        "EXPERTS": experts, "TOP": top_k, "SLOTS": triton.next_power_of_2(top_k), "GROUPS": tiles.warps, "LANES": lanes,
        "DEPTH": triton.cdiv(experts, tiles.warps * lanes), "ALTERNATIVE": alternative, "PADDED": padded,
        "PACKED": pack, "PTX": takes_ptx(gate_kernel) and not amd, "PDL": tiles.pdl,
    }  # fmt: skip


def compile_moe_gate_topk(call: Callable[..., Any], site: Any, rows: Sequence[int]) -> None:
    """Call either operator once per build that a site needs: with and without what is optional."""
    experts, top_k = site.axes["E"], site.options["top_k"]
    dtypes = {name: getattr(torch, site.dtypes.get(name, "float32")) for name in ("logits", "bias", "bias_alt")}
    logits = torch.zeros(2, experts, dtype=dtypes["logits"], device="cuda")
    bias = torch.zeros(experts, dtype=dtypes["bias"], device="cuda")
    bias_alt = torch.zeros(experts, dtype=dtypes["bias_alt"], device="cuda")
    count = torch.ones(1, dtype=torch.int32, device="cuda")
    tokens = torch.zeros(2, dtype=torch.int64, device="cuda")
    call(torch.zeros(experts, 2, dtype=dtypes["logits"], device="cuda").T, bias, top_k)
    for num_valid in (None, count):
        call(logits, bias, top_k, num_valid=num_valid)
        call(logits, bias, top_k, num_valid=num_valid, bias_alt=bias_alt, input_ids=tokens)
