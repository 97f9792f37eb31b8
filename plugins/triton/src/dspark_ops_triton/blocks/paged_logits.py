"""Index logits of a query row from the split key cache, one page of keys or more to a program (A17b, A1).

A byte of a key or of a query holds an even and an odd lane. Matrix units that take fp4 with a scale per 32 get the
bytes; others get the even lanes and the odd ones as bfloat16, which holds their values exactly, and add both products.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from dspark_ops_triton.blocks.codes import e2m1_value, ue8m0_value

PAGE = tl.constexpr(64)
#: Bytes and scales of a key or a query of 128 lanes.
BYTES, CHUNKS = tl.constexpr(64), tl.constexpr(4)
NOTHING = tl.constexpr(float("-inf"))


@dataclass(frozen=True, slots=True)
class Tiles:
    """How the work is cut; it does not depend on the number of requests, so a row's bits do not either.

    Attributes:
        keys: keys of a program, a multiple of 64.
        warps: warps of a program.
        codes: codes and scales are multiplied, by a matrix unit that takes them.
        instruction: rows of AMD's matrix instruction, where that is to be chosen; 0 leaves it to the compiler.
    """

    keys: int
    warps: int
    codes: bool = False
    instruction: int = 0


@triton.jit
def load_keys(kv, kv_scale, table, column, seen):
    """Return the bytes [KEYS, 64] and scale bytes [KEYS, 4] of the keys at `column`; 0 and 2**0 where not `seen`."""
    page = tl.load(table + column // PAGE, mask=seen, other=0).to(tl.int64)
    slot = column % PAGE
    byte, chunk = tl.arange(0, BYTES)[None, :], tl.arange(0, CHUNKS)[None, :]
    place = (page * (PAGE * BYTES) + slot * 16)[:, None] + byte // 16 * (PAGE * 16) + byte % 16
    scale_place = (page * (PAGE * CHUNKS) + slot % 16 * (PAGE // 16) + slot // 16)[:, None] + chunk * PAGE
    codes = tl.load(kv + place, mask=seen[:, None], other=0)
    return codes, tl.load(kv_scale + scale_place, mask=seen[:, None], other=127)


@triton.jit
def load_queries(q, q_scale, row, head, heads, lanes_of_heads):
    """Return the bytes [HEADS, 64] and scale bytes [HEADS, 4] of one query row; 0 and 2**0 where there is no head."""
    live = (head < heads)[:, None]
    byte, chunk = tl.arange(0, BYTES)[None, :], tl.arange(0, CHUNKS)[None, :]
    codes = tl.load(q + (row * heads + head[:, None]) * BYTES + byte, mask=live, other=0)
    place = (row * CHUNKS + chunk) * (16 * lanes_of_heads) + (head % 16 * lanes_of_heads + head // 16)[:, None]
    return codes, tl.load(q_scale + place, mask=live, other=127)


@triton.jit
def even_and_odd_lanes(codes, scales, ROWS: tl.constexpr):
    """Return the even lanes and the odd ones, bfloat16 [ROWS, 64] each, of bytes [ROWS, 64] with scales [ROWS, 4]."""
    scale = ue8m0_value(scales.to(tl.int32))[:, :, None]
    code = tl.reshape(codes.to(tl.int32), (ROWS, CHUNKS, 16))
    even, odd = e2m1_value(code & 15) * scale, e2m1_value(code >> 4) * scale
    return tl.reshape(even.to(tl.bfloat16), (ROWS, BYTES)), tl.reshape(odd.to(tl.bfloat16), (ROWS, BYTES))


@triton.jit(do_not_specialize=["next_n", "heads", "lanes_of_heads", "table_width"])
def logits_kernel(
    q, q_scale, kv, kv_scale, block_tables, weights, context_lens, out,
    next_n, heads, lanes_of_heads, table_width, columns, weight_scale,
    HEADS: tl.constexpr, KEYS: tl.constexpr, CODES: tl.constexpr,
):  # fmt: skip
    """Write the logits of one query row for KEYS columns."""
    row = tl.program_id(1).to(tl.int64)
    request = row // next_n
    column = tl.program_id(0) * KEYS + tl.arange(0, KEYS)
    end = tl.load(context_lens + request) - next_n + 1 + (row - request * next_n)
    target = out + row * columns + column
    if tl.program_id(0) * KEYS >= end:
        tl.store(target, tl.full((KEYS,), NOTHING, tl.float32), mask=column < columns)
    else:
        seen = column < end
        key, key_scale = load_keys(kv, kv_scale, block_tables + request * table_width, column, seen)
        head = tl.arange(0, HEADS)
        query, query_scale = load_queries(q, q_scale, row, head, heads, lanes_of_heads)
        if CODES:
            scores = tl.dot_scaled(key, key_scale, "e2m1", tl.trans(query), query_scale, "e2m1")
        else:
            key_even, key_odd = even_and_odd_lanes(key, key_scale, KEYS)
            query_even, query_odd = even_and_odd_lanes(query, query_scale, HEADS)
            scores = tl.dot(key_even, tl.trans(query_even))
            scores = tl.dot(key_odd, tl.trans(query_odd), scores)
        weight = tl.load(weights + row * heads + head, mask=head < heads, other=0.0).to(tl.float32)
        total = tl.sum(tl.maximum(scores, 0.0) * weight[None, :], axis=1) * weight_scale
        tl.store(target, tl.where(seen, total, NOTHING), mask=column < columns)


def paged_logits(
    tiles: Tiles, q: Tensor, q_scale: Tensor, kv: Tensor, kv_scale: Tensor, block_tables: Tensor, weights: Tensor,
    context_lens: Tensor, max_seq_len: int, weight_scale: float,
) -> Tensor:  # fmt: skip
    """Return what `paged_mqa_logits_fp4` does, cut into `tiles`. The arguments are its own.

    Raises:
        ValueError: sizes that do not fit each other, or more than 128 heads.
    """
    batch, next_n, heads = q.shape[:3]
    lanes_of_heads = -(-heads // 64) * 4
    shapes = {
        "q": (q, [batch, next_n, heads, 64]),
        "q_scale": (q_scale, [batch, next_n, 1, 4, 16, lanes_of_heads]),
        "kv": (kv, [kv.shape[0], 1, 4, 64, 16]),
        "kv_scale": (kv_scale, [kv.shape[0], 1, 4, 64]),
        "weights": (weights, [batch * next_n, heads]),
    }
    for name, (tensor, shape) in shapes.items():
        if list(tensor.shape) != shape:
            raise ValueError(f"paged_mqa_logits_fp4: wanted {name} {shape}, got {list(tensor.shape)}")
    if not 0 < heads <= 128:
        raise ValueError(f"paged_mqa_logits_fp4: wanted 1 to 128 heads, got {heads}")
    out = torch.empty(batch * next_n, max_seq_len, dtype=torch.float32, device=q.device)
    if out.numel():
        logits_kernel[(triton.cdiv(max_seq_len, tiles.keys), batch * next_n)](
            q, q_scale, kv, kv_scale, block_tables, weights, context_lens, out,
            next_n, heads, lanes_of_heads, block_tables.shape[1], max_seq_len, weight_scale,
            **launch_constants(tiles, heads), **launch_options(tiles),
        )  # fmt: skip
    return out


def launch_constants(tiles: Tiles, heads: int) -> dict[str, Any]:
    """Return the compile-time arguments of a launch."""
    return {"HEADS": max(16, triton.next_power_of_2(heads)), "KEYS": tiles.keys, "CODES": tiles.codes}


def launch_options(tiles: Tiles) -> dict[str, Any]:
    """Return the compiler options of a launch. Contraction is pinned off: its default differs by version."""
    options = {"num_warps": tiles.warps, "enable_fp_fusion": False}
    return {**options, "matrix_instr_nonkdim": tiles.instruction} if tiles.instruction else options


def compile_paged_logits(tiles: Tiles, site: Any) -> None:
    """Compile what calls at a site launch, for results whose rows begin at 64-byte boundaries and for others."""
    heads = site.axes["H"]
    q = torch.zeros(1, 1, heads, 64, dtype=torch.uint8, device="cuda")
    q_scale = torch.zeros(1, 1, 1, 4, 16, -(-heads // 64) * 4, dtype=torch.uint8, device="cuda")
    kv = torch.zeros(1, 1, 4, 64, 16, dtype=torch.uint8, device="cuda")
    table = torch.zeros(1, 8, dtype=torch.int32, device="cuda")
    weights = torch.zeros(1, heads, dtype=torch.bfloat16, device="cuda")
    for columns in (16, 17):
        paged_logits(
            tiles, q, q_scale, kv, kv[..., 0].contiguous(), table, weights, table[0, :1], columns, 1.0
        )  # fmt: skip


__all__ = ["Tiles", "compile_paged_logits", "launch_constants", "launch_options", "logits_kernel", "paged_logits"]
