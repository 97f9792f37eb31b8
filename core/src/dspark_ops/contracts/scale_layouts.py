"""Where the scale bytes of a quantised matrix lie: row after row, or in the tiles that matrix units read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from dspark_ops._lazy import torch
from dspark_ops.contracts.numerics import pow2ceil_byte, ue8m0_decode
from dspark_ops.errors import ContractError
from dspark_ops.suggest import did_you_mean

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class ScaleLayout:
    """How a matrix [rows, groups] of scale bytes is stored in one dimension.

    A tile holds `row_tile` rows of `group_tile` groups; tiles follow each other along the groups, then along the rows.
    Within a tile, rows that are `interleave` apart lie side by side.

    Attributes:
        name: the layout's name, as arguments and kernels state it.
        row_tile: rows of a tile; rows are padded to a multiple of it.
        group_tile: groups of a tile; groups are padded to a multiple of it.
        interleave: distance of the rows that lie side by side; a divisor of `row_tile`.
        source: the section that states it.
    """

    name: str
    row_tile: int
    group_tile: int
    interleave: int
    source: str

    def padded(self, rows: int, groups: int) -> tuple[int, int]:
        """Return the rows and groups that are stored, padding included."""
        return -(-rows // self.row_tile) * self.row_tile, -(-groups // self.group_tile) * self.group_tile

    def size(self, rows: int, groups: int) -> int:
        """Return the bytes of a stored matrix, padding included."""
        padded_rows, padded_groups = self.padded(rows, groups)
        return padded_rows * padded_groups

    def index(self, row: int, group: int, groups: int) -> int:
        """Return the byte at which the scale of (row, group) of a matrix of `groups` groups lies.

        Source: N12.
        """
        tiles = -(-groups // self.group_tile)
        tile_row, tile = row % self.row_tile, row // self.row_tile * tiles + group // self.group_tile
        apart = self.row_tile // self.interleave
        place = tile_row % self.interleave * apart + tile_row // self.interleave
        return tile * self.row_tile * self.group_tile + place * self.group_tile + group % self.group_tile

    def pack(self, scales: Tensor) -> Tensor:
        """Return the bytes [size] of scales [rows, groups] uint8; bytes that belong to no scale are 0."""
        rows, groups = scales.shape
        padded = scales.new_zeros(self.padded(rows, groups))
        padded[:rows, :groups] = scales
        apart = self.row_tile // self.interleave
        tiles = padded.reshape(-1, apart, self.interleave, padded.shape[1] // self.group_tile, self.group_tile)
        return tiles.permute(0, 3, 2, 1, 4).reshape(-1)

    def unpack(self, data: Tensor, rows: int, groups: int) -> Tensor:
        """Return the scales [rows, groups] that bytes [size] hold.

        Raises:
            ContractError: `data` does not have the size of such a matrix.
        """
        if data.dim() != 1 or data.numel() != self.size(rows, groups):
            wanted = f"{self.size(rows, groups)} bytes for {rows} rows of {groups} groups"
            raise ContractError(f"{self.name}: wanted {wanted}, got shape {list(data.shape)}")
        padded_rows, padded_groups = self.padded(rows, groups)
        tiles, apart = padded_groups // self.group_tile, self.row_tile // self.interleave
        shaped = data.reshape(padded_rows // self.row_tile, tiles, self.interleave, apart, self.group_tile)
        return shaped.permute(0, 3, 2, 1, 4).reshape(padded_rows, padded_groups)[:rows, :groups]


#: Row after row, no padding.
SF_LINEAR: Final = ScaleLayout("sf_linear", row_tile=1, group_tile=1, interleave=1, source="N12")
#: Tiles of 128 rows and 4 groups, 512 bytes each; rows 0, 32, 64, 96 of a tile lie side by side, 4 bytes each.
SF_128X4: Final = ScaleLayout("sf_128x4", row_tile=128, group_tile=4, interleave=32, source="N12")

SCALE_LAYOUTS: Final[dict[str, ScaleLayout]] = {layout.name: layout for layout in (SF_LINEAR, SF_128X4)}


def scale_layout(name: str) -> ScaleLayout:
    """Return the scale layout of this name.

    Raises:
        ContractError: no layout has this name.
    """
    if name not in SCALE_LAYOUTS:
        wanted = ", ".join(SCALE_LAYOUTS)
        raise ContractError(f"unknown scale layout {name!r}: wanted one of {wanted}{did_you_mean(name, SCALE_LAYOUTS)}")
    return SCALE_LAYOUTS[name]


def scale_bytes(scales: Tensor) -> Tensor:
    """Return the bytes of scales that are powers of two, for kernels that keep nothing of a scale but its exponent.

    Meant for weights, once, where they are loaded: the values are looked at on the host.

    Args:
        scales: float32 of any shape, each a power of two from 2**-127 to 2**127.

    Returns:
        uint8 of the same shape: byte b means 2**(b - 127).

    Raises:
        ContractError: a scale is anything else, with the place and value of the first one. Its mantissa would be lost,
            or would reach the byte beside it.

    Source: N0.3, O10.
    """
    found = torch.where(scales == 2.0**-127, 0, pow2ceil_byte(scales).clamp(max=254)).to(torch.uint8)
    wrong = (ue8m0_decode(found) != scales).nonzero()
    if len(wrong):
        place = wrong[0].tolist()
        got = scales[tuple(place)].item()
        raise ContractError(f"scales{place}: wanted a power of two from 2**-127 to 2**127, got {got}")
    return found
