"""The index-key cache in two buffers, as the gfx950 logits kernel reads it: payload by chunk, scales by chunk and lane.

Its bytes are those of the layout `index_k_page68`; only the places differ.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from dspark_ops._lazy import torch
from dspark_ops.contracts.kept_rows import kept_or_first, write_kept
from dspark_ops.contracts.layouts import INDEX_K_PAGE68
from dspark_ops.errors import ContractError

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class SplitLayout:
    """Pages of index keys in a payload buffer [pages, page_size * 64] and a scale buffer [pages, page_size * 4].

    A page of payload is [chunk, slot, byte], a chunk being 16 bytes of 32 lanes; a page of scales is [chunk, place],
    where slots t, t + 16, t + 32 and t + 48 of a page have neighbouring places.

    Attributes:
        name: the layout's name, as arguments and kernels state it.
        page_size: slots of a page, the only number that readers take.
        chunks: chunks of a row, one scale each.
        chunk_bytes: payload bytes of a chunk.
        lanes: slots whose scales are apart, here 16.
        source: the section that states it.
    """

    name: str = "index_k_split"
    page_size: int = 64
    chunks: int = 4
    chunk_bytes: int = 16
    lanes: int = 16
    source: str = "A1"

    @property
    def page_bytes(self) -> tuple[int, int]:
        """Bytes of a page of payload and of a page of scales."""
        return self.page_size * self.chunks * self.chunk_bytes, self.page_size * self.chunks

    def payload_index(self, slot: int, byte: int) -> int:
        """Return where a slot's payload byte lies, counted from the first page of the payload."""
        page, offset = divmod(slot, self.page_size)
        chunk, within = divmod(byte, self.chunk_bytes)
        return page * self.page_bytes[0] + (chunk * self.page_size + offset) * self.chunk_bytes + within

    def scale_index(self, slot: int, chunk: int) -> int:
        """Return where the scale byte of a slot's chunk lies, counted from the first page of the scales."""
        page, offset = divmod(slot, self.page_size)
        place = offset % self.lanes * (self.page_size // self.lanes) + offset // self.lanes
        return page * self.page_bytes[1] + chunk * self.page_size + place

    def pack(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Return the payload [n, 64] and scale bytes [n, 4] of rows [n, 128], both uint8."""
        return INDEX_K_PAGE68.pack(rows)

    def unpack(self, payload: Tensor, scales: Tensor) -> Tensor:
        """Return the rows [n, 128] float32 that payload [n, 64] and scale bytes [n, 4] mean."""
        return INDEX_K_PAGE68.unpack(payload, scales)

    def views(self, payload: Tensor, scales: Tensor) -> tuple[Tensor, Tensor]:
        """Return views: payload [pages, slot, chunk, byte] and scales [pages, slot // 16, slot % 16, chunk].

        Args:
            payload: [pages, 4096] uint8, last stride 1.
            scales: [pages, 256] uint8, last stride 1.

        Raises:
            ContractError: a buffer has another dtype or width, or they have different numbers of pages.
        """
        for what, buffer, width in zip(("payload", "scales"), (payload, scales), self.page_bytes, strict=True):
            shape = (payload.shape[0], width)
            if buffer.dtype != torch.uint8 or tuple(buffer.shape) != shape or buffer.stride(1) != 1:
                raise ContractError(
                    f"{self.name}: wanted {what} of uint8 {list(shape)}, last stride 1, got {buffer.dtype} "
                    f"{list(buffer.shape)} with strides {list(buffer.stride())}"
                )
        pages = payload.shape[0]
        by_chunk = payload.view(pages, self.chunks, self.page_size, self.chunk_bytes)
        by_place = scales.view(pages, self.chunks, self.lanes, self.page_size // self.lanes)
        return by_chunk.transpose(1, 2), by_place.permute(0, 3, 2, 1)

    def store(self, payload: Tensor, scales: Tensor, slots: Tensor, rows: Tensor, keep: Tensor | None = None) -> None:
        """Write rows [n, 128] at `slots` [n] int32 or int64, distinct where kept.

        A row is dropped where its slot is negative or beyond the last page, or where `keep` [n] bool is False.

        Raises:
            ContractError: as `views`.
        """
        data_at, scale_at = self.views(payload, scales)
        count = payload.shape[0] * self.page_size
        kept = (slots >= 0) & (slots < count)
        if keep is not None:
            kept &= keep
        written = kept_or_first(kept)
        slots = slots[written].clamp(0, max(count - 1, 0)).long()
        data, byte = self.pack(rows[written])
        page, offset = slots // self.page_size, slots % self.page_size
        write_kept(data_at, (page, offset), data.view(-1, self.chunks, self.chunk_bytes), kept)
        write_kept(scale_at, (page, offset // self.lanes, offset % self.lanes), byte, kept)

    def load(self, payload: Tensor, scales: Tensor, slots: Tensor) -> Tensor:
        """Return the rows [n, 128] float32 at `slots` [n] int32 or int64, all within the buffers.

        Raises:
            ContractError: as `views`.
        """
        data_at, scale_at = self.views(payload, scales)
        page, offset = slots.long() // self.page_size, slots.long() % self.page_size
        byte = scale_at[page, offset // self.lanes, offset % self.lanes]
        return self.unpack(data_at[page, offset].flatten(1), byte)


INDEX_K_SPLIT: Final = SplitLayout()
INDEX_LAYOUTS: Final = (INDEX_K_PAGE68.name, INDEX_K_SPLIT.name)
