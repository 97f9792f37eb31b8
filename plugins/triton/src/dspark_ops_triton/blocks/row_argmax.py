"""Row argmax in one launch, with the tile sizes as data: the body behind every plugin's ``argmax_rows``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import triton
import triton.language as tl

from dspark_ops_triton.blocks.alignment import stride_unit
from dspark_ops_triton.blocks.arrival import WORDS, ArrivalState
from dspark_ops_triton.blocks.dependent import begin, pdl_option
from dspark_ops_triton.blocks.ordering import last_to_arrive, packed_column
from dspark_ops_triton.blocks.row_best import best_of_tiles

STATE_WORDS = tl.constexpr(WORDS)
#: Widest row: a tile that begins below it ends below 2**31, where columns leave int32 and the packed pair.
COLUMN_LIMIT = 2**30
#: Tiles of a program at most where a kernel of few programs is set up early.
EARLY_TILES = 8


@triton.jit(do_not_specialize=["row_stride"])
def row_argmax_kernel(
    x, out, state, row_stride,
    COLUMNS: tl.constexpr, BLOCK: tl.constexpr, STRIDE_UNIT: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Reduce tiles ``split, split + splits, ...`` of one row; the row's last program to finish writes the column.

    `row_stride` counts groups of STRIDE_UNIT elements: groups of 16 bytes let the compiler load 16 bytes at a time.
    """
    begin(PDL)
    row = tl.program_id(0)
    split = tl.program_id(1)
    splits = tl.num_programs(1)
    start = x + row.to(tl.int64) * row_stride * STRIDE_UNIT  # 64 bits: 16612 rows of 129280 pass 2**31 elements
    pair = best_of_tiles(start, COLUMNS, split, splits, BLOCK)
    if splits == 1:
        tl.store(out + row, packed_column(pair))
    else:
        last, pair = last_to_arrive(state + row * STATE_WORDS, pair, splits)
        if last:
            tl.store(out + row, packed_column(pair))


@dataclass(frozen=True, slots=True)
class Tiles:
    """How the work is cut for one family of devices.

    Attributes:
        block: columns that a program reads at a time, a power of two.
        warps: warps (waves on AMD) of a program.
        programs_per_unit: programs that a multiprocessor or compute unit should hold at once; rows are split until
            the device is filled.
        pdl: the kernel is set up while the one before it runs, unless a program has several tiles: then programs that
            wait for their turn only crowd those that work.
        early_per_unit: programs per unit of a kernel that is set up early after all, because they are few and none has
            more than `EARLY_TILES` tiles; 0: there is none.
    """

    block: int
    warps: int
    programs_per_unit: int
    pdl: bool = False
    early_per_unit: int = 0

    def cut(self, rows: int, columns: int, units: int) -> tuple[Tiles, int]:
        """Return how a launch is cut, and over how many programs each of its rows is spread."""
        if self.pdl and self.early_per_unit:
            splits = min(triton.cdiv(columns, self.block), max(1, units * self.early_per_unit // rows))
            if splits * self.block * EARLY_TILES >= columns:
                return self, splits
        splits = self.splits(rows, columns, units)
        return self.at(splits, columns), splits

    def at(self, splits: int, columns: int) -> Tiles:
        """Return these tiles without `pdl` where rows of `splits` programs leave more than a tile to each."""
        return self if splits * self.block >= columns else replace(self, pdl=False)

    def splits(self, rows: int, columns: int, units: int) -> int:
        """Return over how many programs a row is spread; 1 needs no meeting of programs."""
        return min(triton.cdiv(columns, self.block), max(1, units * self.programs_per_unit // rows))


class RowArgmax:
    """``argmax_rows`` bound to one device: one launch per call, safe to capture, on any number of streams at once.

    The programs that share a row meet at two words of memory that this object owns (`ArrivalState`): keep it alive as
    long as graphs that captured it.

    Bytes moved: the logits once, 8 per row out, 16 per program and row through atomics. Launches: 1.
    """

    __slots__ = ("_arrivals", "_tiles", "_units")

    def __init__(self, tiles: Tiles, units: int, arrivals: ArrivalState) -> None:
        self._tiles = tiles
        self._units = units
        self._arrivals = arrivals

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Return each row's first NaN, else the lowest column of its maximum.

        Args:
            x: [R, V] float32, bfloat16 or float16, last stride 1, any row stride.

        Returns:
            [R] int64.

        Raises:
            ValueError: the last stride is not 1, or a row is empty or wider than 2**30.

        Source: N1.
        """
        rows, columns = x.shape
        row_stride, column_stride = x.stride()
        if (column_stride != 1 and columns > 1) or not 0 < columns <= COLUMN_LIMIT:
            wanted = f"last stride 1 and 1 to {COLUMN_LIMIT} columns"
            raise ValueError(f"argmax_rows: wanted {wanted}, got strides {x.stride()} and shape {tuple(x.shape)}")
        out = torch.empty(rows, dtype=torch.int64, device=x.device)
        if rows == 0:
            return out
        tiles, splits = self._tiles.cut(rows, columns, self._units)
        state = out if splits == 1 else self._arrivals.take(rows, x)
        unit = stride_unit(x)
        row_argmax_kernel[(rows, splits)](
            x, out, state, row_stride // unit, **launch_constants(tiles, columns, unit), **launch_options(tiles),
        )  # fmt: skip
        return out


def launch_constants(tiles: Tiles, columns: int, stride_unit: int) -> dict[str, Any]:
    """Return the compile-time arguments of a launch."""
    return {"COLUMNS": columns, "BLOCK": tiles.block, "STRIDE_UNIT": stride_unit, "PDL": tiles.pdl}


def launch_options(tiles: Tiles) -> dict[str, Any]:
    """Return the compiler options of a launch. Contraction is pinned off: its default differs between versions."""
    return {"num_warps": tiles.warps, "enable_fp_fusion": False, **pdl_option(tiles.pdl)}


def prepare_row_argmax(tiles: Tiles, device: Any, site: Any, rows: Sequence[int]) -> RowArgmax:
    """Return ``argmax_rows`` for a device and a place of the model, compiled and with its memory allocated.

    Args:
        tiles: how the work is cut.
        device: the planned device (`dspark_ops.selection.Device`): its unit count and vendor are read.
        site: the place: its axis ``V`` and the dtype of ``x`` are read.
        rows: the row counts that are planned there.
    """
    target = torch.device("cpu" if device.arch.vendor == "cpu" else "cuda")
    units = device.units or unit_count(target)
    # More rows than the device holds programs are not split, so they never meet.
    most = min(max(rows, default=0), units * tiles.programs_per_unit)
    bound = RowArgmax(tiles, units, ArrivalState(most, target))
    dtype = getattr(torch, site.dtypes.get("x", "float32"))
    columns = site.axes["V"]
    if target.type == "cuda":
        # Every build that a call may need: rows 16-byte aligned, only the first one, none. Rows change the grid alone.
        width = triton.cdiv(columns, 16) * 16 + 16
        buffer = torch.zeros(2 * width + 2, dtype=dtype, device=target)
        for choice in {tiles, replace(tiles, pdl=False)}:
            once = RowArgmax(choice, units, bound._arrivals)
            once(buffer[: 2 * width].view(2, width)[:, :columns])
            once(buffer.view(2, width + 1)[:, :columns])
            once(buffer.view(2, width + 1)[:, 1 : columns + 1])
    return bound


def row_argmax_once(tiles: Tiles, x: torch.Tensor) -> torch.Tensor:
    """Return the argmax of each row without anything prepared: zeroed memory per call makes it two launches."""
    return RowArgmax(tiles, unit_count(x.device), ArrivalState(0, x.device))(x)


def unit_count(device: torch.device) -> int:
    """Return the number of multiprocessors or compute units; 8 for the interpreter, so that rows are split there."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 8


__all__ = [
    "COLUMN_LIMIT",
    "RowArgmax",
    "Tiles",
    "prepare_row_argmax",
    "row_argmax_kernel",
    "row_argmax_once",
    "unit_count",
]
