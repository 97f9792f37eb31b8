"""Where each position of each request lives in the caches: pure index arithmetic over one configuration."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from dspark_ops._lazy import torch
from dspark_ops.decode.v41.config import MAX_GAMMA, V41Config

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["LAYOUT", "MAX_STEP_ROWS", "NO_ENTRY", "NO_SLOT", "PAGE_POSITIONS", "PAGE_SIZE", "Geometry", "pages_for"]

LAYOUT = "kv_v4"
PAGE_SIZE = 64
PAGE_POSITIONS = 2 * PAGE_SIZE
"""Positions of a page that requests share: one page of a ratio-2 cache, two of a ratio-1 cache."""
MAX_STEP_ROWS = 64
"""Most rows of one forward: of a prefill chunk, or of all requests of a step together."""
NO_SLOT = -1
"""Slot of a row whose latent is stored nowhere (N7.3)."""
NO_ENTRY = 0
"""``out_loc`` of a row that a compressor stores nothing of (N8.2)."""


@dataclass(frozen=True, slots=True)
class Geometry:
    """Slot numbers for `requests` concurrent requests (numbered 0 to requests - 1) of one model.

    A slot is a row of a paged cache: page ``slot // PAGE_SIZE``, row ``slot % PAGE_SIZE``.
    Every slot is a function of (request, position) alone. That is what makes rewinding free: see `state`.

    Rings hold the same few positions of every request, so each request has its own. Compressed entries grow with the
    context: they lie in one run per request, or in `shared` pages that a table assigns.

    Attributes:
        config: the model.
        requests: number of requests that have room.
        shared: pages of 128 positions that all requests share; 0: each has room for the whole context.
        table: [requests, pages of a whole context] int64, the page of each 128 positions; None without shared pages.
            What it says of a request does not change while the request runs.
    """

    config: V41Config
    requests: int
    shared: int = 0
    table: Tensor | None = field(default=None, compare=False)

    @property
    def window_ring(self) -> int:
        """Slots per request of a window cache: the window and a chunk less one, in whole pages (C2.6.6)."""
        return _whole_pages(self.config.window + MAX_STEP_ROWS - 1)

    @property
    def context_ring(self) -> int:
        """Slots per request of a draft stage's context: the window, in whole pages; only committed rows enter it."""
        return _whole_pages(self.config.window)

    @property
    def draft_slots(self) -> int:
        """Slots per request of a draft stage: the context ring and a page for the rows of the current block."""
        return self.context_ring + _whole_pages(MAX_GAMMA)

    @property
    def open_ring(self) -> int:
        """Rows per request of a ratio-2 compressor's state: more than one step can write (N8.3)."""
        return MAX_STEP_ROWS + 2

    def entries(self, ratio: int) -> int:
        """Return the compressed slots per request, in whole pages."""
        return _whole_pages(-(-self.config.max_positions // ratio))

    @property
    def nobodys_page(self) -> int:
        """Shared page that the table names for positions a request owns no page for: a stray write harms nobody."""
        return self.shared

    def window_pages(self) -> int:
        """Return the pages of one layer's window cache."""
        return self.requests * self.window_ring // PAGE_SIZE

    def compressed_pages(self, ratio: int) -> int:
        """Return the pages of one compressed cache. Page 0 belongs to nobody: slot 0 means "no store" (N8.2)."""
        if self.table is not None:
            # One shared page more than there are to own: see `nobodys_page`.
            return 1 + (self.shared + 1) * PAGE_POSITIONS // ratio // PAGE_SIZE
        return 1 + self.requests * self.entries(ratio) // PAGE_SIZE

    def draft_pages(self) -> int:
        """Return the pages of one draft stage's cache."""
        return self.requests * self.draft_slots // PAGE_SIZE

    def window_slot(self, request: Tensor, position: Tensor) -> Tensor:
        """Return the window slot of each (request, position), int64."""
        return request * self.window_ring + position % self.window_ring

    def compressed_slot(self, request: Tensor, entry: Tensor, ratio: int) -> Tensor:
        """Return the slot of each (request, compressed entry), int64, never 0."""
        if self.table is None:
            return PAGE_SIZE + request * self.entries(ratio) + entry
        share = PAGE_POSITIONS // ratio
        # Columns behind what a row reads are asked for, too; they need only stay in bounds.
        page = self.table[request, (entry // share).clamp(max=self.table.shape[1] - 1)]
        return PAGE_SIZE + page * share + entry % share

    def compressor_out_loc(self, request: Tensor, position: Tensor, ratio: int) -> Tensor:
        """Return the ``out_loc`` of `compress_c1` or `compress_c2` for each row, int64.

        Ratio 1 takes the entry's slot. Ratio 2 takes the full slot, which the operator halves (N8.3).
        """
        if ratio == 1:
            return self.compressed_slot(request, position, ratio)
        if self.table is None:
            return ratio * self.compressed_slot(request, torch.zeros_like(position), ratio) + position
        return ratio * self.compressed_slot(request, position // ratio, ratio) + position % ratio

    def context_slot(self, request: Tensor, position: Tensor) -> Tensor:
        """Return the draft context slot of each (request, committed position), int64."""
        return request * self.draft_slots + position % self.context_ring

    def block_slot(self, request: Tensor, row: Tensor) -> Tensor:
        """Return the scratch slot of each (request, row of the current draft block), int64."""
        return request * self.draft_slots + self.context_ring + row


def pages_for(positions: int) -> int:
    """Return the shared pages that hold a number of positions."""
    return -(-positions // PAGE_POSITIONS)


def _whole_pages(rows: int) -> int:
    return -(-rows // PAGE_SIZE) * PAGE_SIZE
