"""The product of activations on the fp8 grid and an MXFP8 weight, split along K: rows on the grid, parts, their sum.

Matrix units that take eight-bit floats with a scale per 32 get the codes; others get bfloat16, which holds every value
of either side exactly. Sums are float32 and in one order for every number of rows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from dspark_ops_triton.blocks.codes import e4m3_value, e4m3_value_by_fnuz, ue8m0_value
from dspark_ops_triton.blocks.dependent import begin, pdl_option
from dspark_ops_triton.blocks.fp8_grid import GROUPS, grid_codes_kernel, grid_values_kernel
from dspark_ops_triton.blocks.fp8_grid import launch_options as grid_options
from dspark_ops_triton.blocks.ptx import takes_ptx
from dspark_ops_triton.blocks.scratch import ScratchMemory
from dspark_ops_triton.blocks.tile_table import tiles_for
from dspark_ops_triton.blocks.word_product import word_parts_kernel

#: Elements of a program of the last launch, and its warps.
SUMMED, SUM_WARPS = 1024, 4


@dataclass(frozen=True, slots=True)
class Tiles:
    """How the product is cut for up to `rows` rows.

    Attributes:
        rows: rows of a program.
        columns: columns of the result of a program: 32, or a multiple where codes are multiplied or decoded by words.
        depth: columns of K that are read at a time.
        splits: parts of K, as far as they divide its tiles. The same in all lines of a table: rows then have the same
            bits whatever their number.
        warps: warps of a program.
        stages: tiles that are under way at a time.
        codes: codes and scales are multiplied, by a matrix unit that takes them.
        words: codes are decoded four at a time by integer arithmetic, in PTX of Hopper.
        fnuz: the device converts e4m3fnuz, not e4m3.
        instruction: rows of AMD's matrix instruction, where that is to be chosen; 0 leaves it to the compiler.
        pdl: all three kernels are set up while the one before runs.
    """

    rows: int
    columns: int
    depth: int
    splits: int
    warps: int
    stages: int
    codes: bool = False
    words: bool = False
    fnuz: bool = False
    instruction: int = 0
    pdl: bool = False


@triton.jit(do_not_specialize=["rows", "columns"])
def value_parts_kernel(
    x, weight, scales, parts, rows, columns,
    LANES: tl.constexpr, SPLITS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr,
    FNUZ: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Multiply ROWS bfloat16 rows on the grid by 32 decoded rows of the weight, over one part of K."""
    begin(PDL)
    block = tl.program_id(0)
    column = (block * COLUMNS + tl.arange(0, COLUMNS)).to(tl.int64)
    row = (tl.program_id(2) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    here = row < rows
    TILES: tl.constexpr = LANES // DEPTH // SPLITS
    first = tl.program_id(1) * (TILES * DEPTH)
    source = x + row[:, None] * LANES + first + tl.arange(0, DEPTH)[None, :]
    factor = weight + column[:, None] * LANES + first + tl.arange(0, DEPTH)[None, :]
    byte = scales + block.to(tl.int64) * (LANES // 32) + first // 32 + tl.arange(0, DEPTH // 32)
    total = tl.zeros((COLUMNS, ROWS), tl.float32)
    for tile in range(TILES):
        code = tl.load(factor + tile * DEPTH)
        scale = ue8m0_value(tl.load(byte + tile * (DEPTH // 32)).to(tl.int32))
        value = e4m3_value_by_fnuz(code) if FNUZ else e4m3_value(code)
        value = tl.reshape(value, (COLUMNS, DEPTH // 32, 32)) * scale[None, :, None]
        value = tl.reshape(value.to(tl.bfloat16), (COLUMNS, DEPTH))
        given = tl.load(source + tile * DEPTH, mask=here[:, None], other=0.0)
        total = tl.dot(value, tl.trans(given), total)
    place = (tl.program_id(1) * rows.to(tl.int64) + row) * columns
    tl.store(parts + place[None, :] + column[:, None], total, mask=here[None, :])


@triton.jit(do_not_specialize=["rows", "columns"])
def code_parts_kernel(
    x, x_scales, weight, scales, parts, rows, columns,
    LANES: tl.constexpr, SPLITS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """Multiply the codes of ROWS rows on the grid by those of COLUMNS rows of the weight, over one part of K."""
    begin(PDL)
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    row = (tl.program_id(2) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    # Rows of the weight beyond the last one are those of column 0: their products are not stored.
    wanted, here = column < columns, row < rows
    column = tl.where(wanted, column, 0).to(tl.int64)
    TILES: tl.constexpr = LANES // DEPTH // SPLITS
    first = tl.program_id(1) * (TILES * DEPTH)
    lane, group = tl.arange(0, DEPTH)[None, :], tl.arange(0, DEPTH // 32)[None, :]
    source = x + row[:, None] * LANES + first + lane
    source_byte = x_scales + row[:, None] * (LANES // 32) + first // 32 + group
    factor = weight + column[:, None] * LANES + first + lane
    factor_byte = scales + column[:, None] // 32 * (LANES // 32) + first // 32 + group
    total = tl.zeros((COLUMNS, ROWS), tl.float32)
    for tile in range(TILES):
        code = tl.load(factor + tile * DEPTH).to(tl.float8e4nv, bitcast=True)
        byte = tl.load(factor_byte + tile * (DEPTH // 32))
        given = tl.load(source + tile * DEPTH, mask=here[:, None], other=0).to(tl.float8e4nv, bitcast=True)
        given_byte = tl.load(source_byte + tile * (DEPTH // 32), mask=here[:, None], other=127)
        total = tl.dot_scaled(code, byte, "e4m3", tl.trans(given), given_byte, "e4m3", total)
    place = (tl.program_id(1) * rows.to(tl.int64) + row) * columns
    tl.store(parts + place[None, :] + column[:, None], total, mask=here[None, :] & wanted[:, None])


@triton.jit(do_not_specialize=["eights"])
def sum_parts_kernel(parts, out, eights, SPLITS: tl.constexpr, SUMMED: tl.constexpr, PDL: tl.constexpr):
    """Add the parts of SUMMED of 8 times `eights` elements in their order; counting in eights keeps loads wide."""
    begin(PDL)
    place = tl.program_id(0).to(tl.int64) * SUMMED + tl.arange(0, SUMMED)
    count = eights.to(tl.int64) * 8
    live = place < count
    total = tl.zeros((SUMMED,), tl.float32)
    for split in tl.static_range(SPLITS):
        total += tl.load(parts + split * count + place, mask=live, other=0.0)
    tl.store(out + place, total.to(tl.bfloat16), mask=live)


class GridProduct:
    """A product cut by a table of `Tiles`, by rising numbers of rows, with the memory in which its launches meet."""

    __slots__ = ("_scratch", "_tiles")

    def __init__(self, tiles: Sequence[Tiles]) -> None:
        self._tiles = tuple(tiles)
        self._scratch = ScratchMemory()

    def __call__(self, x: Tensor, weight: Tensor, scales: Tensor) -> Tensor:
        """Return the drafter's projection of tapped hidden states, activations and weights in MXFP8: [M, N] bfloat16.

        Args:
            x: [M, K] bfloat16, contiguous, K divisible by the table's depths; finite.
            weight: [N, K] float8_e4m3fn, contiguous, N divisible by 32.
            scales: [N / 32, K / 32] uint8, contiguous, one byte per 32x32 block of the weight.

        Raises:
            ValueError: sizes that do not fit each other or the tiles.

        Bytes moved: ``N*K`` of weight once per tile of rows, and per row about ``6*K`` for its values on the grid and
        ``8*N`` per part of K. Launches: 3, none for no rows.

        Source: A10.
        """
        rows, lanes = x.shape
        columns = weight.shape[0]
        tiles = line_for(self._tiles, rows)
        fits = weight.shape[1] == lanes and scales.shape == (columns // 32, lanes // 32)
        if not fits or columns % 32 or lanes % tiles.depth:
            got = f"{list(x.shape)}, {list(weight.shape)} and {list(scales.shape)}"
            wanted = f"x [M, K], weight [N, K], scales [N / 32, K / 32], N in whole 32s and K in whole {tiles.depth}s"
            raise ValueError(f"main_projection: wanted {wanted}, got {got}")
        out = torch.empty(rows, columns, dtype=torch.bfloat16, device=x.device)
        if rows == 0:
            return out
        splits = splits_of(tiles, lanes)
        parts_size, value_words = splits * rows * columns, rows * lanes // 2
        scratch = self._scratch.take(parts_size + value_words, x)
        parts, words = scratch[:parts_size], scratch[parts_size : parts_size + value_words]
        groups = rows * lanes // 32
        grid = (triton.cdiv(columns, tiles.columns), splits, triton.cdiv(rows, tiles.rows))
        constants, options = part_constants(tiles, lanes, takes_ptx(word_parts_kernel)), part_options(tiles)
        if tiles.codes:
            codes = words.view(torch.uint8)[: rows * lanes]
            # Codes are half as long as values: their scale bytes fit behind them.
            code_scales = words.view(torch.uint8)[rows * lanes :]
            grid_codes_kernel[(triton.cdiv(groups, GROUPS),)](
                x, codes, code_scales, groups, GROUPS=GROUPS, PDL=tiles.pdl, **grid_options(), **pdl_option(tiles.pdl)
            )
            code_parts_kernel[grid](
                codes, code_scales, weight.view(torch.uint8), scales, parts, rows, columns, **constants, **options
            )
        else:
            values = words.view(torch.bfloat16)
            grid_values_kernel[(triton.cdiv(groups, GROUPS),)](
                x, values, groups, GROUPS=GROUPS, PDL=tiles.pdl, **grid_options(), **pdl_option(tiles.pdl)
            )
            (word_parts_kernel if tiles.words else value_parts_kernel)[grid](
                values, weight.view(torch.uint8), scales, parts, rows, columns, **constants, **options
            )
        sum_parts_kernel[(triton.cdiv(rows * columns, SUMMED),)](
            parts, out, rows * columns // 8, **sum_constants(tiles, lanes), **sum_options(tiles)
        )
        return out


def line_for(table: Sequence[Tiles], rows: int) -> Tiles:
    """Return the first line of a table that holds a number of rows, or its last one."""
    return next((tiles for tiles in table if rows <= tiles.rows), table[-1])


def splits_of(tiles: Tiles, lanes: int) -> int:
    """Return the parts into which K is split: as many of `tiles.splits` as leave all parts alike."""
    return math.gcd(lanes // tiles.depth, tiles.splits)


def part_constants(tiles: Tiles, lanes: int, ptx: bool = True) -> dict[str, Any]:
    """Return the compile-time arguments of the second launch, compiled for a GPU or interpreted."""
    constants = {
        "LANES": lanes, "SPLITS": splits_of(tiles, lanes),
        "ROWS": tiles.rows, "COLUMNS": tiles.columns, "DEPTH": tiles.depth, "PDL": tiles.pdl,
    }  # fmt: skip
    if tiles.words:
        return {**constants, "PTX": ptx}
    return constants if tiles.codes else {**constants, "FNUZ": tiles.fnuz}


def part_options(tiles: Tiles) -> dict[str, Any]:
    """Return the compiler options of the second launch."""
    options = {"num_warps": tiles.warps, "num_stages": tiles.stages, "enable_fp_fusion": False}
    options |= pdl_option(tiles.pdl)
    return {**options, "matrix_instr_nonkdim": tiles.instruction} if tiles.instruction else options


def sum_constants(tiles: Tiles, lanes: int) -> dict[str, Any]:
    """Return the compile-time arguments of the last launch."""
    return {"SPLITS": splits_of(tiles, lanes), "SUMMED": SUMMED, "PDL": tiles.pdl}


def sum_options(tiles: Tiles) -> dict[str, Any]:
    """Return the compiler options of the last launch."""
    return {"num_warps": SUM_WARPS, "enable_fp_fusion": False, **pdl_option(tiles.pdl)}


def prepare_grid_product(table: Sequence[Tiles], device: Any, site: Any, rows: Sequence[int]) -> GridProduct:
    """Return a `GridProduct`, compiled for the site's sizes and the lines of the table that its row counts use.

    What the table of tiles says for ``main_projection`` holds for every line.
    """
    table = tuple(tiles_for("main_projection", device, site, tiles) for tiles in table)
    bound = GridProduct(table)
    if device.arch.vendor != "cpu":
        columns, lanes = site.axes["N"], site.axes["K"]
        weight = torch.zeros(columns, lanes, dtype=torch.uint8, device="cuda").view(torch.float8_e4m3fn)
        scales = torch.zeros(columns // 32, lanes // 32, dtype=torch.uint8, device="cuda")
        for count in {line_for(table, count).rows for count in rows if count}:
            bound(torch.zeros(count, lanes, dtype=torch.bfloat16, device="cuda"), weight, scales)
    return bound


__all__ = [
    "SUMMED",
    "GridProduct",
    "Tiles",
    "code_parts_kernel",
    "line_for",
    "part_constants",
    "part_options",
    "prepare_grid_product",
    "splits_of",
    "sum_constants",
    "sum_options",
    "sum_parts_kernel",
    "value_parts_kernel",
]
