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
from dspark_ops_triton.blocks.dependent import pdl_option
from dspark_ops_triton.blocks.dependent_stages import let_next_be_set_up, wait_for_earlier

PAGE = tl.constexpr(64)
#: Bytes and scales of a key or a query of 128 lanes.
BYTES, CHUNKS = tl.constexpr(64), tl.constexpr(4)
NOTHING = tl.constexpr(float("-inf"))


@dataclass(frozen=True, slots=True)
class Tiles:
    """How the work is cut. A logit does not depend on which keys share a program, so a row's bits are its own.

    Attributes:
        keys: keys of a program at a time, a multiple of 64.
        warps: warps of a program.
        codes: codes and scales are multiplied, by a matrix unit that takes them.
        instruction: rows of AMD's matrix instruction, where that is to be chosen; 0 leaves it to the compiler.
        programs: as long as there are more programs than twice these, each takes another `keys` keys with the same
            query; 0: never.
        pdl: the kernel is set up while the one before it runs.
    """

    keys: int
    warps: int
    codes: bool = False
    instruction: int = 0
    programs: int = 0
    pdl: bool = False


@triton.jit
def place_keys(kv, kv_scale, page, column):
    """Return pointers to the bytes [KEYS, 64] and to the scale bytes [KEYS, 4] of the keys at `column`."""
    page = page.to(tl.int64)
    slot = column % PAGE
    byte, chunk = tl.arange(0, BYTES)[None, :], tl.arange(0, CHUNKS)[None, :]
    place = (page * (PAGE * BYTES) + slot * 16)[:, None] + byte // 16 * (PAGE * 16) + byte % 16
    scale_place = (page * (PAGE * CHUNKS) + slot % 16 * (PAGE // 16) + slot // 16)[:, None] + chunk * PAGE
    return kv + place, kv_scale + scale_place


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


@triton.jit
def logits_of_keys(
    query, query_more, weight, key, key_scale, out, column, seen, columns, weight_scale,
    KEYS: tl.constexpr, CODES: tl.constexpr,
):  # fmt: skip
    """Write the logits of keys [KEYS] at `column`, of which a row sees those that are `seen`.

    With CODES, `query` and `query_more` are the codes and scales of the heads, else their even and their odd lanes.
    """
    if CODES:
        scores = tl.dot_scaled(key, key_scale, "e2m1", tl.trans(query), query_more, "e2m1")
    else:
        key_even, key_odd = even_and_odd_lanes(key, key_scale, KEYS)
        scores = tl.dot(key_even, tl.trans(query))
        scores = tl.dot(key_odd, tl.trans(query_more), scores)
    total = tl.sum(tl.maximum(scores, 0.0) * weight[None, :], axis=1) * weight_scale
    tl.store(out + column, tl.where(seen, total, NOTHING), mask=column < columns)


@triton.jit(do_not_specialize=["next_n", "heads", "lanes_of_heads", "table_width", "tiles"])
def logits_kernel(
    q, q_scale, kv, kv_scale, block_tables, weights, context_lens, out,
    next_n, heads, lanes_of_heads, table_width, columns, weight_scale, tiles,
    HEADS: tl.constexpr, KEYS: tl.constexpr, CODES: tl.constexpr, SEVERAL: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Write the logits of one query row for KEYS columns, or for `tiles` times as many, whose query is decoded once.

    The length and the first page are under way together, then the query and the first keys. The next kernel is let in
    between these loads, since the compiler moves none across that: the keys' shuffle would come before the rest.
    """
    row = tl.program_id(1).to(tl.int64)
    request = row // next_n
    first = tl.program_id(0) * tiles * KEYS
    lane = tl.arange(0, KEYS)
    column = first + lane
    target, table = out + row * columns, block_tables + request * table_width
    wait_for_earlier(PDL)
    # a result may be wider than the table, and columns that a row does not see have no page
    page = tl.load(table + column // PAGE, mask=(column < columns) & (column // PAGE < table_width), other=0)
    end = tl.load(context_lens + request) - next_n + 1 + (row - request * next_n)
    if first >= end:
        for tile in range(tiles):
            column = first + tile * KEYS + lane
            tl.store(target + column, tl.full((KEYS,), NOTHING, tl.float32), mask=column < columns)
    else:
        head = tl.arange(0, HEADS)
        seen = (column < end) & (column < columns)
        weight = tl.load(weights + row * heads + head, mask=head < heads, other=0.0).to(tl.float32)
        query, query_more = load_queries(q, q_scale, row, head, heads, lanes_of_heads)
        key_at, scale_at = place_keys(kv, kv_scale, page, column)
        let_next_be_set_up(PDL)
        key = tl.load(key_at, mask=seen[:, None], other=0)
        key_scale = tl.load(scale_at, mask=seen[:, None], other=127)
        if not CODES:
            query, query_more = even_and_odd_lanes(query, query_more, HEADS)
        logits_of_keys(
            query, query_more, weight, key, key_scale, target, column, seen, columns, weight_scale, KEYS, CODES
        )
        if SEVERAL:
            for tile in range(1, tiles):
                column = first + tile * KEYS + lane
                seen = (column < end) & (column < columns)
                page = tl.load(table + column // PAGE, mask=seen, other=0)
                key_at, scale_at = place_keys(kv, kv_scale, page, column)
                key_scale = tl.load(scale_at, mask=seen[:, None], other=127)
                key = tl.load(key_at, mask=seen[:, None], other=0)
                logits_of_keys(
                    query, query_more, weight, key, key_scale, target, column, seen, columns, weight_scale,
                    KEYS, CODES,
                )  # fmt: skip


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
        count = triton.cdiv(max_seq_len, tiles.keys)
        each = max(1, count * batch * next_n // tiles.programs) if tiles.programs else 1
        logits_kernel[(triton.cdiv(count, each), batch * next_n)](
            q, q_scale, kv, kv_scale, block_tables, weights, context_lens, out,
            next_n, heads, lanes_of_heads, block_tables.shape[1], max_seq_len, weight_scale, each,
            **launch_constants(tiles, heads, each > 1), **launch_options(tiles),
        )  # fmt: skip
    return out


def launch_constants(tiles: Tiles, heads: int, several: bool = False) -> dict[str, Any]:
    """Return the compile-time arguments of a launch; `several`: a program takes more than one tile."""
    return {
        "HEADS": max(16, triton.next_power_of_2(heads)), "KEYS": tiles.keys, "CODES": tiles.codes, "SEVERAL": several,
        "PDL": tiles.pdl,
    }  # fmt: skip


def launch_options(tiles: Tiles) -> dict[str, Any]:
    """Return the compiler options of a launch. Contraction is pinned off: its default differs by version.

    The loop over tiles is not pipelined: the other programs of a multiprocessor fill the wait, and need its registers.
    """
    options = {"num_warps": tiles.warps, "num_stages": 1, "enable_fp_fusion": False, **pdl_option(tiles.pdl)}
    return {**options, "matrix_instr_nonkdim": tiles.instruction} if tiles.instruction else options


def compile_paged_logits(tiles: Tiles, site: Any) -> None:
    """Compile what calls at a site launch, for results whose rows begin at 64-byte boundaries and for others.

    Both forms are compiled: programs of one tile, as short results have, and of several.
    """
    heads = site.axes["H"]
    q = torch.zeros(1, 1, heads, 64, dtype=torch.uint8, device="cuda")
    q_scale = torch.zeros(1, 1, 1, 4, 16, -(-heads // 64) * 4, dtype=torch.uint8, device="cuda")
    kv = torch.zeros(1, 1, 4, 64, 16, dtype=torch.uint8, device="cuda")
    table = torch.zeros(1, 8, dtype=torch.int32, device="cuda")
    weights = torch.zeros(1, heads, dtype=torch.bfloat16, device="cuda")
    many = 2 * tiles.programs * tiles.keys
    for columns in (16, 17, *((many, many + 1) if many else ())):
        paged_logits(
            tiles, q, q_scale, kv, kv[..., 0].contiguous(), table, weights, table[0, :1], columns, 1.0
        )  # fmt: skip


__all__ = ["Tiles", "compile_paged_logits", "launch_constants", "launch_options", "logits_kernel", "paged_logits"]
