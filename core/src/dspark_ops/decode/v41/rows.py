"""The rows of one forward, and the cache indices that follow from them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dspark_ops._lazy import torch
from dspark_ops.decode.v41.geometry import NO_ENTRY, NO_SLOT, Geometry

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["CacheReads", "CompressedSites", "Rows", "TargetSites", "target_sites"]


@dataclass(frozen=True, slots=True)
class Rows:
    """Flat rows of a forward: which request, which position, which token. Rows of one request ascend by position.

    Attributes:
        request: [T] int64, number of the request's slot in the state.
        position: [T] int64, absolute position.
        token: [T] int64.
        live: [T] bool, or None if all rows are. A row that is not live pads a batch to a size that was captured: it
            stores nothing anywhere, what comes out of it is not looked at, and its other fields are in bounds. Behind a
            request's last live row there is no further one.
    """

    request: Tensor
    position: Tensor
    token: Tensor
    live: Tensor | None = None

    @classmethod
    def of(cls, rows: Sequence[tuple[int, int, int]], device: str | None = None) -> Rows:
        """Return rows from (request, position, token) triples."""
        # One contiguous tensor per field: operators take positions and requests as such.
        table = torch.tensor(rows, dtype=torch.int64, device=device).view(-1, 3).T.contiguous()
        return cls(*table.unbind(0))

    def __len__(self) -> int:
        return self.request.shape[0]

    def where(self, chosen: Tensor) -> Rows:
        """Return the rows at which `chosen` [T] bool is true."""
        live = None if self.live is None else self.live[chosen]
        return Rows(self.request[chosen], self.position[chosen], self.token[chosen], live)

    def part(self, start: int, stop: int) -> Rows:
        """Return rows `start` to `stop` - 1."""
        live = None if self.live is None else self.live[start:stop]
        return Rows(self.request[start:stop], self.position[start:stop], self.token[start:stop], live)

    def stored_at(self, slots: Tensor, nowhere: int) -> Tensor:
        """Return `slots` [T], where live rows store, with `nowhere` for those that are not live."""
        return slots if self.live is None else torch.where(self.live, slots, nowhere)


@dataclass(frozen=True, slots=True)
class CacheReads:
    """What each row reads of one cache.

    Attributes:
        indices: [T, columns] int32 slots in the order of positions, -1 behind the last one.
        lengths: [T] int32, number of slots.
    """

    indices: Tensor
    lengths: Tensor


@dataclass(frozen=True, slots=True)
class CompressedSites:
    """Where the rows store into and read from the compressed caches of one ratio.

    Attributes:
        out_loc: [T] int64, as `Geometry.compressor_out_loc`.
        reads: the entries that each row sees.
        open_ring: rows per request of the open-group state.
    """

    out_loc: Tensor
    reads: CacheReads
    open_ring: int


@dataclass(frozen=True, slots=True)
class TargetSites:
    """All cache indices of one target forward; they are the same in every layer of a ratio.

    Attributes:
        window_slot: [T] int32, where each row's own window entry goes.
        window: the window entries each row reads: positions t - window + 1 to t.
        compressed: by ratio.
    """

    window_slot: Tensor
    window: CacheReads
    compressed: Mapping[int, CompressedSites]


def target_sites(geometry: Geometry, rows: Rows) -> TargetSites:
    """Return the cache indices of a target forward over `rows`.

    A row at position t sees the window t-127..t, entries 0..t of ratio 1 and entries below (t+1)//2 of ratio 2
    (C5.3.2). All of it follows from the row itself.
    """
    config = geometry.config
    ratios = sorted({config.ratios[source] for source in config.kv_sources})
    return TargetSites(
        window_slot=rows.stored_at(geometry.window_slot(rows.request, rows.position), NO_SLOT).int(),
        window=_window_reads(geometry, rows),
        compressed={ratio: _compressed_sites(geometry, rows, ratio) for ratio in ratios},
    )


def _window_reads(geometry: Geometry, rows: Rows) -> CacheReads:
    window = geometry.config.window
    lengths = (rows.position + 1).clamp(max=window)
    first = rows.position + 1 - lengths
    columns = torch.arange(window, device=rows.position.device)
    slots = geometry.window_slot(rows.request.unsqueeze(1), first.unsqueeze(1) + columns)
    return _reads(slots, columns, lengths)


def _compressed_sites(geometry: Geometry, rows: Rows, ratio: int) -> CompressedSites:
    visible = (rows.position + 1) // ratio
    columns = torch.arange(geometry.config.index_topk, device=rows.position.device)
    slots = geometry.compressed_slot(rows.request.unsqueeze(1), columns, ratio)
    out_loc = rows.stored_at(geometry.compressor_out_loc(rows.request, rows.position, ratio), NO_ENTRY)
    return CompressedSites(out_loc, _reads(slots, columns, visible), geometry.open_ring)


def _reads(slots: Tensor, columns: Tensor, lengths: Tensor) -> CacheReads:
    indices = torch.where(columns < lengths.unsqueeze(1), slots, -1)
    return CacheReads(indices.int(), lengths.int())
