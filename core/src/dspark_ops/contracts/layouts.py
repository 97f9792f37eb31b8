"""Byte layouts of paged caches: which lanes of a row are stored how, where a slot's bytes lie, and both directions.

A page holds `page_size` data rows, then `page_size` scale rows, then padding; in an interleaved layout each data row is
followed by its scale row. Slot l is row l % page_size of page l // page_size. A layout is data: a new one is a new
value in `LAYOUTS`, with its format or scale rule by name where it needs one that is not there yet.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from dspark_ops._lazy import torch
from dspark_ops.contracts import numerics
from dspark_ops.contracts.kept_rows import kept_or_first, write_kept
from dspark_ops.errors import ContractError
from dspark_ops.suggest import did_you_mean

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class Lanes:
    """A run of a row's lanes that is stored in one format.

    Attributes:
        count: number of lanes.
        format: how a lane is stored: ``bfloat16``, or times the scale of its group: ``e4m3``, ``e2m1`` (two lanes to a
            byte, the even one in the low nibble, minus zero kept) or ``e2m1_without_minus_zero``.
        group: lanes that share a scale; 0 for a format without scales.
        scale: name of the rule that makes the scale of a group; empty for a format without scales.
    """

    count: int
    format: str
    group: int = 0
    scale: str = ""


@dataclass(frozen=True, slots=True)
class _Format:
    """A stored format: bytes of a run of lanes, and the functions from scaled values to bytes and back."""

    bytes_of: Callable[[int], int]
    encode: Callable[[Tensor], Tensor]
    decode: Callable[[Tensor], Tensor]


def _bf16_encode(values: Tensor) -> Tensor:
    return values.bfloat16().view(torch.uint8)


def _bf16_decode(data: Tensor) -> Tensor:
    return data.contiguous().view(torch.bfloat16).float()


def _e2m1_encode(values: Tensor) -> Tensor:
    return numerics.pack_nibbles(numerics.e2m1_encode_ties_to_even(values))


def _e2m1_encode_without_minus_zero(values: Tensor) -> Tensor:
    codes = numerics.e2m1_encode_ties_to_even(values)
    return numerics.pack_nibbles(numerics.e2m1_without_minus_zero(codes))


def _e2m1_decode(data: Tensor) -> Tensor:
    return numerics.e2m1_decode(numerics.unpack_nibbles(data))


_FORMATS: Final = {
    "bfloat16": _Format(lambda count: 2 * count, _bf16_encode, _bf16_decode),
    "e4m3": _Format(lambda count: count, numerics.e4m3_encode, numerics.e4m3_decode),
    "e2m1": _Format(lambda count: count // 2, _e2m1_encode, _e2m1_decode),
    "e2m1_without_minus_zero": _Format(lambda count: count // 2, _e2m1_encode_without_minus_zero, _e2m1_decode),
}
#: Per scale rule: the byte of a group's largest magnitude, and the scale that a byte means.
_SCALES: Final[dict[str, tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]]] = {
    "ue8m0_v4page": (numerics.ue8m0_v4page, numerics.ue8m0_decode),
    "ue8m0_v41page": (numerics.ue8m0_v41page, numerics.ue8m0_decode),
    "ue8m0_index": (numerics.ue8m0_index, numerics.ue8m0_decode),
    "e4m3_fp4": (numerics.fp4_scale_e4m3, numerics.e4m3_decode),
}


@dataclass(frozen=True, slots=True)
class PageLayout:
    """How the rows of a cache are stored in pages of bytes.

    Attributes:
        name: the layout's name, as arguments and kernels state it.
        lanes: the runs of lanes of a row, in order.
        scale_bytes: bytes of a slot's scale row; those behind the last scale are padding that no store touches.
        page_multiple: a page's bytes are rounded up to a multiple of it.
        source: the section that states it.
        interleaved: each data row is followed by its scale row, instead of all data rows by all scale rows.
        rows_as_bfloat16: rows are rounded to bfloat16 before they are quantised: after the norm and, in the rotated
            lanes, again after the rotation (N7.3). Stores do that; `pack` takes rows as they are.
    """

    name: str
    lanes: tuple[Lanes, ...]
    scale_bytes: int
    page_multiple: int
    source: str
    interleaved: bool = False
    rows_as_bfloat16: bool = False

    @property
    def width(self) -> int:
        """Lanes of a row."""
        return sum(run.count for run in self.lanes)

    @property
    def data_bytes(self) -> int:
        """Bytes of a slot's data row."""
        return sum(_FORMATS[run.format].bytes_of(run.count) for run in self.lanes)

    @property
    def scales(self) -> int:
        """Scales of a row, one byte each, without the padding of the scale row."""
        return sum(run.count // run.group for run in self.lanes if run.group)

    @property
    def bytes_per_slot(self) -> int:
        """Bytes of a slot, data and scales."""
        return self.data_bytes + self.scale_bytes

    def page_bytes(self, page_size: int) -> int:
        """Return the bytes of a page of `page_size` slots, its padding included."""
        return -(-page_size * self.bytes_per_slot // self.page_multiple) * self.page_multiple

    def data_offset(self, slot: int, page_size: int) -> int:
        """Return the first byte of a slot's data row, counted from the first page."""
        pitch = self.bytes_per_slot if self.interleaved else self.data_bytes
        return slot // page_size * self.page_bytes(page_size) + slot % page_size * pitch

    def scale_offset(self, slot: int, page_size: int) -> int:
        """Return the first byte of a slot's scale row, counted from the first page."""
        if self.interleaved:
            return self.data_offset(slot, page_size) + self.data_bytes
        scales_begin = slot // page_size * self.page_bytes(page_size) + page_size * self.data_bytes
        return scales_begin + slot % page_size * self.scale_bytes

    def pack(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Return the data bytes [n, data_bytes] and scale bytes [n, scales] of rows [n, width], both uint8.

        Rows may be of any float dtype and are quantised as float32. NaN and infinities are outside the contract.
        """
        data, scales, first = [], [], 0
        for run in self.lanes:
            values = rows[:, first : first + run.count].float()
            first += run.count
            if run.group:
                groups = values.reshape(rows.shape[0], run.count // run.group, run.group)
                to_byte, to_scale = _SCALES[run.scale]
                byte = to_byte(groups.abs().amax(-1))
                values = (groups / to_scale(byte)[..., None]).flatten(1)
                scales.append(byte)
            data.append(_FORMATS[run.format].encode(values))
        empty = torch.empty(rows.shape[0], 0, dtype=torch.uint8, device=rows.device)
        return torch.cat(data, -1), torch.cat([empty, *scales], -1)

    def unpack(self, data: Tensor, scales: Tensor) -> Tensor:
        """Return the rows [n, width] float32 that data bytes [n, data_bytes] and scale bytes [n, scales or more] mean.

        Every value is the product of a code and its scale, which float32 holds exactly.
        """
        rows, first_byte, first_scale = [], 0, 0
        for run in self.lanes:
            end = first_byte + _FORMATS[run.format].bytes_of(run.count)
            values = _FORMATS[run.format].decode(data[:, first_byte:end])
            if run.group:
                count = run.count // run.group
                scale = _SCALES[run.scale][1](scales[:, first_scale : first_scale + count])
                values = (values.reshape(data.shape[0], count, run.group) * scale[..., None]).flatten(1)
                first_scale += count
            rows.append(values)
            first_byte = end
        return torch.cat(rows, -1)

    def views(self, cache: Tensor, page_size: int) -> tuple[Tensor, Tensor]:
        """Return a cache's data rows [pages, page_size, data_bytes] and scale rows [pages, page_size, scale_bytes].

        Both are views: writing to them writes to the cache.

        Args:
            cache: [pages, page_bytes] uint8, last stride 1.
            page_size: slots of a page, a power of two.

        Raises:
            ContractError: the cache has another dtype or page size in bytes, or `page_size` is not a power of two.
        """
        if page_size < 1 or page_size & (page_size - 1):
            raise ContractError(f"{self.name}: wanted a page size that is a power of two, got {page_size}")
        wanted = self.page_bytes(page_size)
        if cache.dtype != torch.uint8 or cache.dim() != 2 or cache.shape[1] != wanted or cache.stride(1) != 1:
            raise ContractError(
                f"{self.name}: wanted a cache of uint8 [pages, {wanted}] for {page_size} slots a page, last stride 1, "
                f"got {cache.dtype} {list(cache.shape)} with strides {list(cache.stride())}"
            )
        used, split = cache[:, : page_size * self.bytes_per_slot], self.data_bytes
        if self.interleaved:
            slots = used.view(cache.shape[0], page_size, self.bytes_per_slot)
            return slots[..., :split], slots[..., split:]
        data, scales = used[:, : page_size * split], used[:, page_size * split :]
        return data.view(cache.shape[0], page_size, split), scales.view(cache.shape[0], page_size, self.scale_bytes)

    def store(self, cache: Tensor, slots: Tensor, rows: Tensor, page_size: int, keep: Tensor | None = None) -> None:
        """Write rows [n, width] into the cache at `slots` [n] int32 or int64, distinct where kept.

        A row is dropped where its slot is negative or beyond the last page, or where `keep` [n] bool is False. The
        padding of scale rows and pages is not touched.

        Raises:
            ContractError: as `views`.
        """
        data_rows, scale_rows = self.views(cache, page_size)
        count = cache.shape[0] * page_size
        kept = (slots >= 0) & (slots < count)
        if keep is not None:
            kept &= keep
        written = kept_or_first(kept)
        slots = slots[written].clamp(0, max(count - 1, 0)).long()
        data, scales = self.pack(rows[written])
        places = slots // page_size, slots % page_size
        write_kept(data_rows, places, data, kept)
        write_kept(scale_rows[..., : self.scales], places, scales, kept)

    def load(self, cache: Tensor, slots: Tensor, page_size: int) -> Tensor:
        """Return the rows [n, width] float32 at `slots` [n] int32 or int64, all within the cache.

        Raises:
            ContractError: as `views`.
        """
        data_rows, scale_rows = self.views(cache, page_size)
        page, offset = slots.long() // page_size, slots.long() % page_size
        return self.unpack(data_rows[page, offset], scale_rows[page, offset])


#: Latent KV of V4: 448 plain lanes as e4m3 with a power-of-two scale per 64, 64 rotated lanes as bfloat16.
KV_V4: Final = PageLayout(
    name="kv_v4",
    lanes=(Lanes(448, "e4m3", group=64, scale="ue8m0_v4page"), Lanes(64, "bfloat16")),
    scale_bytes=8,
    page_multiple=576,
    source="N7.1",
)

#: Latent KV of V4.1: all lanes, rotated ones too, as e4m3 with a power-of-two scale per 32.
KV_V41: Final = PageLayout(
    name="kv_v41",
    lanes=(Lanes(512, "e4m3", group=32, scale="ue8m0_v41page"),),
    scale_bytes=16,
    page_multiple=512,
    source="N7.1, N7.3",
    rows_as_bfloat16=True,
)
#: Latent KV of V4.1 in fp4: all lanes as e2m1 with an e4m3 scale per 16.
KV_V41_FP4: Final = PageLayout(
    name="kv_v41_fp4",
    lanes=(Lanes(512, "e2m1", group=16, scale="e4m3_fp4"),),
    scale_bytes=32,
    page_multiple=256,
    source="N7.1, N7.3",
    rows_as_bfloat16=True,
)
#: The same bytes with each token's scales right behind its data, and no page padding.
KV_V41_NEW: Final = replace(KV_V41, name="kv_v41_new", page_multiple=1, interleaved=True)
KV_V41_FP4_NEW: Final = replace(KV_V41_FP4, name="kv_v41_fp4_new", page_multiple=1, interleaved=True)
#: Index keys: 68 bytes a token, fp4 with a power-of-two scale per 32. Minus zero is never stored.
INDEX_K_PAGE68: Final = PageLayout(
    name="index_k_page68",
    lanes=(Lanes(128, "e2m1_without_minus_zero", group=32, scale="ue8m0_index"),),
    scale_bytes=4,
    page_multiple=1,
    source="N8.4, A1",
)

#: Beside a main cache an extra cache has the same layout, or the one named here (N7.1; the interleaved ones hold the
#: same bytes).
OTHER_EXTRA_LAYOUT: Final = {KV_V41.name: KV_V41_FP4.name, KV_V41_NEW.name: KV_V41_FP4_NEW.name}
KV_LAYOUTS: Final = tuple(layout.name for layout in (KV_V4, KV_V41, KV_V41_FP4, KV_V41_NEW, KV_V41_FP4_NEW))
LAYOUTS: Final[dict[str, PageLayout]] = {
    layout.name: layout for layout in (KV_V4, KV_V41, KV_V41_FP4, KV_V41_NEW, KV_V41_FP4_NEW, INDEX_K_PAGE68)
}


def page_layout(name: str) -> PageLayout:
    """Return the layout of this name.

    Raises:
        ContractError: no layout has this name.
    """
    if name not in LAYOUTS:
        raise ContractError(f"unknown layout {name!r}: wanted one of {', '.join(LAYOUTS)}{did_you_mean(name, LAYOUTS)}")
    return LAYOUTS[name]
