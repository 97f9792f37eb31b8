"""The caches of a batch of requests, and why nothing in them is ever rewound.

A verify step writes the rows of drafts that may be rejected. The next step starts at the first rejected position and
overwrites them, so it is enough that (a) writing a rejected row destroys nothing that a later row reads, and (b) no row
reads what a rejected row wrote before it is overwritten. Both hold by construction, for each kind of state:

- Window rows. Slot = position modulo the ring. A step writes positions s to s+63 at most; position p lands on the
  slot of p - ring. A row at t >= s reads t-127 to t, and the ring holds window + 63 rows or more, so
  p - ring < t - 127: (a). Rows read positions up to their own, written in this step or committed before: (b).
- Compressed entries of ratio 1: entry = position; a row at t reads entries up to t: as above without a ring.
- Compressed entries of ratio 2: entry j is written by the row at position 2j+1. A row at t reads entries below
  (t+1)//2, whose completing rows are at positions up to t. An entry completed by a rejected row at 2j+1 >= s', the next
  start, is seen by rows at 2j+1 and later only, and the row at 2j+1 rewrites it when it is fed again. The row's own
  position decides what it sees, never a counter of stores (C2.6.5).
- The open group of ratio 2: the fp32 projections of an even position wait in a ring keyed by position, longer than a
  step. The row that a step's first odd position pairs with is s-1, committed, and no row of the step lands on its slot.
- Draft context rows: written at commit, for accepted rows only. Position p lands on p - ring and the drafter reads the
  last 128 positions below s, so a ring of the window's length is enough.
- Draft block rows: scratch slots that every draft step rewrites before reading (C1.1.3).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dspark_ops._lazy import torch
from dspark_ops.contracts.layouts import page_layout
from dspark_ops.decode.v41.config import V41Config
from dspark_ops.decode.v41.geometry import LAYOUT, PAGE_SIZE, Geometry, pages_for

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["DecodeState"]


@dataclass(frozen=True, slots=True)
class DecodeState:
    """Caches for up to ``geometry.requests`` requests.

    Attributes:
        geometry: where each position lives.
        window: per target layer, uint8 [pages, page_bytes].
        compressed: per kv source layer, uint8 [pages, page_bytes].
        open_groups: per kv source layer of ratio 2, float32 [requests * open_ring, 2 * head_dim].
        draft: per draft stage, uint8 [pages, page_bytes]: context ring, then scratch, per request.
    """

    geometry: Geometry
    window: tuple[Tensor, ...]
    compressed: dict[int, Tensor]
    open_groups: dict[int, Tensor]
    draft: tuple[Tensor, ...]

    @classmethod
    def empty(cls, config: V41Config, requests: int, device: str = "cpu", shared: int = 0) -> DecodeState:
        """Return zeroed caches for a number of concurrent requests.

        Args:
            config: the model.
            requests: how many.
            device: where the caches are.
            shared: pages of compressed entries that the requests share, see `own`; 0: each has its own whole context.
        """
        table = None
        if shared:
            columns = pages_for(config.max_positions)
            table = torch.full((requests, columns), shared, dtype=torch.int64, device=device)
        geometry = Geometry(config, requests, shared, table)
        page_bytes = page_layout(LAYOUT).page_bytes(PAGE_SIZE)

        def pages(count: int) -> Tensor:
            return torch.zeros(count, page_bytes, dtype=torch.uint8, device=device)

        ratio_two = [source for source in config.kv_sources if config.ratios[source] == 2]
        open_shape = (requests * geometry.open_ring, 2 * config.head_dim)
        return cls(
            geometry=geometry,
            window=tuple(pages(geometry.window_pages()) for _ in range(config.layers)),
            compressed={
                source: pages(geometry.compressed_pages(config.ratios[source])) for source in config.kv_sources
            },
            open_groups={source: torch.zeros(open_shape, device=device) for source in ratio_two},
            draft=tuple(pages(geometry.draft_pages()) for _ in range(config.stages)),
        )

    def own(self, request: int, pages: Sequence[int]) -> None:
        """Let the compressed entries of a request lie in these shared pages, in their order; it may run from then on.

        Positions behind them belong to a page that nobody owns. Nothing is done without shared pages.
        """
        table = self.geometry.table
        if table is not None:
            rest = [self.geometry.nobodys_page] * (table.shape[1] - len(pages))
            table[request] = torch.tensor([*pages, *rest], dtype=torch.int64).to(table.device)

    def readable(self, request: int, length: int) -> dict[str, Tensor]:
        """Return, by name, the bytes that a later step may read when `length` positions of a request are committed.

        Two states that agree here continue alike, whatever was rejected on the way (property P5 of C9.2).
        """
        config, geometry = self.geometry.config, self.geometry
        device = self.window[0].device
        recent = torch.arange(max(0, length - config.window), length, device=device)
        owner = torch.full_like(recent, request)
        found = {}
        for layer, cache in enumerate(self.window):
            found[f"window {layer}"] = self._rows(cache, geometry.window_slot(owner, recent))
        for source, cache in self.compressed.items():
            ratio = config.ratios[source]
            entries = torch.arange(length // ratio, device=device)
            slots = geometry.compressed_slot(torch.full_like(entries, request), entries, ratio)
            found[f"compressed {source}"] = self._rows(cache, slots)
        for source, ring in self.open_groups.items():
            if length % 2:
                found[f"open group {source}"] = ring[request * geometry.open_ring + (length - 1) % geometry.open_ring]
        for stage, cache in enumerate(self.draft):
            found[f"draft context {stage}"] = self._rows(cache, geometry.context_slot(owner, recent))
        return found

    @staticmethod
    def _rows(cache: Tensor, slots: Tensor) -> Tensor:
        parts = page_layout(LAYOUT).views(cache, PAGE_SIZE)
        return torch.cat([part[slots // PAGE_SIZE, slots % PAGE_SIZE] for part in parts], 1)
