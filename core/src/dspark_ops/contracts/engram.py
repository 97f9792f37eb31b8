"""Engram gather: rows of a sharded fp8 table, looked up by the n-gram hashes of each token."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from dspark_ops._lazy import torch
from dspark_ops.contracts.contract import Argument, Case, Contract, Option, Output, Site
from dspark_ops.contracts.exactness import bitwise
from dspark_ops.contracts.numerics import e4m3_decode, ue8m0_decode
from dspark_ops.errors import ContractError

if TYPE_CHECKING:
    from torch import Generator, Tensor

    from dspark_ops.contracts.model_shapes import ModelShapes

_GROUP = 32


def engram_gather(table: Tensor, scales: Tensor, ids: Tensor, lo: int, hi: int) -> Tensor:
    """Return the dequantised table row of each id that this rank holds, and zeros for every other id.

    Ranks hold disjoint rows, so the sum over them is the whole gather. An id outside is never used as an address. The
    product of value and scale is exact in float32 and rounded to bfloat16 once; -0.0 keeps its sign.

    Args:
        table: [rows, D] float8_e4m3fn, global rows `lo` to `hi` - 1.
        scales: [rows, D / 32] uint8, UE8M0: byte e is 2**(e - 127). Bytes 0 (a subnormal, which some devices flush) and
            255 (NaN) are outside the contract.
        ids: [T, I] int32 or int64, any strides; a list of ids is a view ``ids[:, None]``.
        lo: first global row held.
        hi: row after the last one held.

    Returns:
        [T * I, D] bfloat16, row after row of `ids`.

    Raises:
        ContractError: D is not a power of two of at least 32, scales do not fit the table, or the table has fewer than
            `hi - lo` rows.

    Source: A16.
    """
    rows, columns = table.shape
    if columns < _GROUP or columns & (columns - 1) or tuple(scales.shape) != (rows, columns // _GROUP):
        raise ContractError(
            f"engram_gather: table {list(table.shape)}, scales {list(scales.shape)}: wanted a power of two of at least "
            f"{_GROUP} columns, and one scale per {_GROUP} of them"
        )
    if not 0 <= lo <= hi <= lo + rows:
        raise ContractError(f"engram_gather: lo {lo}, hi {hi}: wanted 0 <= lo <= hi <= lo + {rows}, the table's rows")
    flat = ids.reshape(-1).long()
    held = ((flat >= lo) & (flat < hi)).unsqueeze(1)
    if hi == lo:
        return torch.zeros(len(flat), columns, dtype=torch.bfloat16, device=ids.device)
    row = torch.where(held.squeeze(1), flat - lo, 0)
    values = e4m3_decode(table.view(torch.uint8)[row])
    factors = ue8m0_decode(scales[row]).repeat_interleave(_GROUP, dim=1)
    return torch.where(held, values * factors, 0.0).bfloat16()


def _cases(scale: str, seed: int) -> Iterator[Case]:
    generator = torch.Generator().manual_seed(seed)
    sizes = ((50, 32, 3, 2), (97, 64, 4, 5), (200, 256, 6, 24)) if scale == "small" else ((4096, 256, 192, 24),)
    for rows, columns, tokens, each in sizes:
        lo = 1000
        plain = {**_table(generator, rows, columns), "lo": lo, "hi": lo + rows}
        name = f"{tokens}x{each} ids of {rows}x{columns}"
        ids = torch.randint(lo, lo + rows, (tokens, each), generator=generator)
        yield Case(f"{name}, all held", {**plain, "ids": ids})
        spread = torch.randint(lo - rows, lo + 2 * rows, (tokens, each), generator=generator)
        yield Case(f"{name}, some held", {**plain, "ids": spread})
        yield Case(f"{name}, int32", {**plain, "ids": spread.int()})
        yield Case(f"{name}, transposed", {**plain, "ids": spread.T.contiguous().T})
        deep = torch.randint(lo - 9, lo + rows + 9, (tokens, 3, each + 2), generator=generator)
        yield Case(f"{name}, a slice of a deeper tensor", {**plain, "ids": deep[:, 1, 1 : each + 1]})
        edges = torch.tensor([[lo - 1, lo, lo + rows - 1, lo + rows, -1, 2**31 - 1, -(2**31), 0]])
        yield Case(f"{name}, edges of the range", {**plain, "ids": edges})
        yield Case(f"{name}, ids beyond 32 bits", {**plain, "ids": edges + 2**40})
        yield Case(f"{name}, first rank", {**plain, "ids": edges - lo, "lo": 0, "hi": rows})
        yield Case(f"{name}, fewer rows held than stored", {**plain, "ids": ids, "hi": lo + rows // 2})
        nothing = torch.zeros(edges.numel(), columns, dtype=torch.bfloat16)
        yield Case(f"{name}, none held", {**plain, "ids": edges, "hi": lo}, {"output": nothing})
    table = _table(generator, 256, 32)
    codes = torch.arange(256, dtype=torch.uint8).unsqueeze(1).expand(256, 32).contiguous()
    every = {"table": codes.view(torch.float8_e4m3fn), "scales": table["scales"], "lo": 0, "hi": 256}
    yield Case("every code, NaN and -0.0 among them", {**every, "ids": torch.arange(256).view(16, 16)})
    exponents = torch.arange(1, 255, dtype=torch.uint8).unsqueeze(1)
    ones = torch.ones(254, 32).to(torch.float8_e4m3fn)
    ids = torch.arange(254).unsqueeze(1)
    wanted = torch.pow(2.0, torch.arange(-126, 128).double()).bfloat16().unsqueeze(1).expand(254, 32).contiguous()
    powers = {"table": ones, "scales": exponents, "ids": ids, "lo": 0, "hi": 254}
    yield Case("every scale but 0 and 255", powers, {"output": wanted})
    least = torch.ones(256, 1, dtype=torch.uint8)  # products down to a quarter of bfloat16's least subnormal
    yield Case("every code at the smallest scale", {**every, "scales": least, "ids": torch.arange(256).view(1, 256)})
    single = {**_table(generator, 1, 32), "lo": 5, "hi": 6, "ids": torch.tensor([[4, 5, 6]])}
    yield Case("a table of one row", single)
    empty = torch.empty(0, 24, dtype=torch.int64)
    yield Case("no tokens", {**every, "ids": empty}, {"output": torch.empty(0, 32, dtype=torch.bfloat16)})


def _table(generator: Generator, rows: int, columns: int) -> dict[str, Any]:
    values = torch.randn(rows, columns, generator=generator).to(torch.float8_e4m3fn)
    scales = torch.randint(96, 150, (rows, columns // _GROUP), generator=generator).to(torch.uint8)
    return {"table": values, "scales": scales}


def _sites(shapes: ModelShapes) -> tuple[Site, ...]:
    axes = {"I": shapes.engram_ids, "D": shapes.engram_dim}
    return (Site("verify", axes=axes, strides={"ids": "any"}),)


ENGRAM_GATHER = Contract(
    name="engram_gather",
    summary="Dequantised rows of this rank's part of an n-gram table, zeros for other ranks' rows.",
    source="A16",
    phases=("verify",),
    parameters=(
        Argument("table", ("*", "D"), ("float8_e4m3fn",), doc="this rank's rows"),
        Argument("scales", ("*", "D/32"), ("uint8",), doc="UE8M0 byte per 32 columns"),
        Argument("ids", ("T", "I"), ("int64", "int32"), strides="any", doc="global row of each n-gram"),
        Option("lo", "int", doc="first global row held"),
        Option("hi", "int", doc="row after the last one held"),
    ),
    outputs=(Output("output", ("T*I", "D"), "bfloat16", bitwise(), "row of each id, or zeros"),),
    rows="T",
    reference=engram_gather,
    cases=_cases,
    sites=_sites,
)

CONTRACTS = (ENGRAM_GATHER,)
