"""The index-key store: what the indexer of a later step scores a token by, in fp4."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from dspark_ops._lazy import torch
from dspark_ops.contracts.contract import Argument, Case, Contract, Option, Output, Site
from dspark_ops.contracts.exactness import mismatch
from dspark_ops.contracts.index_layouts import INDEX_K_SPLIT, INDEX_LAYOUTS
from dspark_ops.contracts.layouts import INDEX_K_PAGE68
from dspark_ops.contracts.numerics import fp4_fake_quant_ue8m0_scale, rms_norm
from dspark_ops.contracts.rope import rope_table, rotate, rotations
from dspark_ops.contracts.values import index_into
from dspark_ops.errors import ContractError
from dspark_ops.suggest import did_you_mean

if TYPE_CHECKING:
    from torch import Tensor

    from dspark_ops.contracts.model_shapes import ModelShapes


def index_k_store(
    k: Tensor,
    freqs: Tensor,
    positions: Tensor,
    out_loc: Tensor,
    cache: Tensor,
    page_size: int,
    scale_cache: Tensor | None = None,
    weight: Tensor | None = None,
    ratio: int = 1,
    layout: str = "index_k_page68",
    eps: float = 1e-20,
) -> None:
    """Write the rotated fp4 index key of each entry into its cache slot, normalised first if a weight is given.

    Args:
        k: [N, 128] bfloat16, projections of the latents.
        freqs: [S, P] float32 interleaved, of the compressed layers.
        positions: [N] int32 or int64, below S; an entry is rotated as the first position of its group.
        out_loc: [N] int32 or int64 cache slots, distinct where kept. With a weight, slots of 0 and below write nothing;
            without one, only negative slots do. A slot beyond the last page writes nothing.
        cache: uint8, written: [pages, page_size * 68] for ``index_k_page68``; payload [pages, 4096] for
            ``index_k_split``.
        page_size: slots of a page: a power of two, or 64 for ``index_k_split``.
        scale_cache: [pages, 256] uint8, written, for ``index_k_split``; None otherwise.
        weight: [128] bfloat16 of the norm, or None for keys that are normalised already.
        ratio: positions of an entry, 1 or 2.
        layout: ``index_k_page68`` or ``index_k_split``.
        eps: added to the mean square, under the root.

    Raises:
        ContractError: keys that are not 128 wide, an unknown layout, a ratio other than 1 and 2, or a cache that does
            not fit the layout. Nothing is written then.

    Source: N8.4, A1. (x * inverse) * weight is rounded to bfloat16, the rotated lanes are too. Then two quantisations
    on purpose: to the fp4 grid with a scale that has no floor to speak of, then to the bytes of the page. Packing the
    first one's codes gives other bytes for one group in eight.
    """
    _require(k, page_size, scale_cache, ratio, layout)
    cosine, sine = rotations(freqs, positions & ~(ratio - 1))
    keys = k if weight is None else rms_norm(k, weight, eps).bfloat16()
    plain = k.shape[1] - freqs.shape[1]
    turned = rotate(keys[:, plain:], cosine, sine).bfloat16()
    rows = fp4_fake_quant_ue8m0_scale(torch.cat([keys[:, :plain], turned], -1)).bfloat16()
    keep = out_loc >= 0 if weight is None else out_loc > 0
    if scale_cache is not None:
        INDEX_K_SPLIT.store(cache, scale_cache, out_loc, rows, keep)
    else:
        INDEX_K_PAGE68.store(cache, out_loc, rows, page_size, keep)


def _require(k: Tensor, page_size: int, scale_cache: Tensor | None, ratio: int, layout: str) -> None:
    if layout not in INDEX_LAYOUTS:
        raise ContractError(
            f"index_k_store: wanted layout {' or '.join(INDEX_LAYOUTS)}, got {layout!r}"
            f"{did_you_mean(layout, INDEX_LAYOUTS)}"
        )
    if k.shape[1] != INDEX_K_PAGE68.width:
        raise ContractError(f"index_k_store: wanted keys of {INDEX_K_PAGE68.width} lanes, got {k.shape[1]}")
    if ratio not in (1, 2):
        raise ContractError(f"index_k_store: wanted ratio 1 or 2, got {ratio}")
    split = layout == INDEX_K_SPLIT.name
    if split != (scale_cache is not None):
        got = "none" if scale_cache is None else "one"
        raise ContractError(f"index_k_store: wanted {'a' if split else 'no'} scale_cache for {layout}, got {got}")
    if split and page_size != INDEX_K_SPLIT.page_size:
        raise ContractError(f"index_k_store: wanted pages of {INDEX_K_SPLIT.page_size} for {layout}, got {page_size}")


def _cases(scale: str, seed: int) -> Iterator[Case]:
    generator = torch.Generator().manual_seed(seed)
    freqs = rope_table(64, 256, 160000.0)
    weight = (1 + 0.2 * torch.randn(128, generator=generator)).bfloat16()
    for rows in (1, 6, 33) if scale == "small" else (1, 6, 192):
        for layout in INDEX_LAYOUTS:
            split = layout == INDEX_K_SPLIT.name
            page_size = 64 if split or scale == "model" else 8
            pages = 2 + 2 * rows // page_size
            width, scale_width = INDEX_K_SPLIT.page_bytes if split else (INDEX_K_PAGE68.page_bytes(page_size), 0)
            wide = torch.full((rows, 192), 1e30).bfloat16()
            wide[:, :128] = torch.randn(rows, 128, generator=generator) * 3
            inputs: dict[str, Any] = {
                "k": wide[:, :128].contiguous(), "freqs": freqs,
                "positions": torch.randint(0, 256, (rows,), generator=generator),
                "out_loc": 1 + torch.randperm(pages * page_size - 1, generator=generator)[:rows],
                "cache": torch.full((pages, width), 0xAB, dtype=torch.uint8), "page_size": page_size,
                "scale_cache": torch.full((pages, scale_width), 0xAB, dtype=torch.uint8) if split else None,
                "weight": weight, "layout": layout,
            }  # fmt: skip
            size = f"{rows} rows in {layout}"
            yield Case(f"random, {size}", _fresh(inputs))
            yield Case(f"pairs, int32, {size}", _fresh({**inputs, **_narrow(inputs), "ratio": 2}))
            yield Case(f"columns of a wider buffer, {size}", _fresh({**inputs, "k": wide[:, :128]}))
            spread = (inputs["k"].float() * torch.logspace(-6, 6, 128)).bfloat16()
            yield Case(f"lanes of very different size, {size}", _fresh({**inputs, "k": spread}))
            yield Case(f"normalised already, {size}", _fresh({**inputs, "weight": None}))
            holes = inputs["out_loc"].clone()
            holes[::3], holes[1::3] = 0, -1
            yield Case(f"slots of 0 and -1 with a norm, {size}", _fresh({**inputs, "out_loc": holes}))
            negative = inputs["out_loc"].clone()
            negative[::2] = -1
            yield Case(f"slots of -1 without a norm, {size}", _fresh({**inputs, "weight": None, "out_loc": negative}))
            yield Case(f"a slot of 0 without a norm, {size}", _fresh(_first(inputs) | {"weight": None}))
            yield Case(f"zeros, {size}", _fresh({**inputs, "k": torch.zeros(rows, 128).bfloat16()}))
            none = {name: inputs[name][:0] for name in ("k", "positions", "out_loc")}
            yield Case(f"no rows in {layout}", _fresh({**inputs, **none}), {"cache": inputs["cache"]})


def _first(inputs: dict[str, Any]) -> dict[str, Any]:
    rows = {name: inputs[name][:1] for name in ("k", "positions", "out_loc")}
    return {**inputs, **rows, "out_loc": torch.zeros_like(rows["out_loc"])}


def _narrow(inputs: dict[str, Any]) -> dict[str, Tensor]:
    return {name: inputs[name].int() for name in ("positions", "out_loc")}


def _fresh(inputs: dict[str, Any]) -> dict[str, Any]:
    """Return the inputs with caches of their own, because the operator writes to them."""
    written = {name: inputs[name].clone() for name in ("cache", "scale_cache") if inputs[name] is not None}
    return {**inputs, **written}


def _sites(shapes: ModelShapes) -> tuple[Site, ...]:
    facts: dict[str, Any] = {"layouts": {"cache": "index_k_page68"}, "options": {"page_size": shapes.page_size}}
    return (Site("verify", axes={"D": shapes.index_head_dim, "P": shapes.rope_dim}, **facts),)


INDEX_K_STORE = Contract(
    name="index_k_store",
    summary="Rotated fp4 index keys in their cache slots.",
    source="N8.4, A1",
    phases=("verify",),
    parameters=(
        Argument("k", ("N", "D"), ("bfloat16",), strides="unit_last", doc="index keys"),
        Argument("freqs", ("*", "P"), ("float32",), doc="table of rotations, interleaved"),
        Argument(
            "positions",
            ("N",),
            ("int64", "int32"),
            doc="position of each entry's completing token",
            values=index_into("freqs[0]"),
        ),
        Argument("out_loc", ("N",), ("int64", "int32"), doc="cache slot of each entry"),
        Argument("cache", ("*", "*"), ("uint8",), layouts=INDEX_LAYOUTS, written=True, doc="pages of bytes"),
        Option("page_size", "int", doc="slots of a page"),
        Argument("scale_cache", ("*", "*"), ("uint8",), optional=True, written=True, doc="scales of index_k_split"),
        Argument("weight", ("D",), ("bfloat16",), optional=True, doc="weight of the norm; None = no norm"),
        Option("ratio", "int", 1, (1, 2), doc="positions of an entry"),
        Option("layout", "str", "index_k_page68", INDEX_LAYOUTS, doc="where the bytes lie"),
        Option("eps", "float", 1e-20, doc="added to the mean square"),
    ),
    # Bitwise but for the order of the norm's sum, which moves a bfloat16 rounding now and then.
    outputs=(
        Output("cache", ("*", "*"), "uint8", mismatch(1e-3), "keys at kept slots, all else untouched"),
        Output("scale_cache", ("*", "*"), "uint8", mismatch(1e-3), "their scales, for index_k_split"),
    ),
    rows="N",
    reference=index_k_store,
    cases=_cases,
    sites=_sites,
    empty="launches nothing and leaves the cache alone",
)

CONTRACTS = (INDEX_K_STORE,)
