"""The sliding-window KV store: norm, rotation, quantisation and paged write of one latent row per token."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import TYPE_CHECKING, Any

from dspark_ops._lazy import torch
from dspark_ops.contracts.contract import Argument, Case, Contract, Option, Output, Site
from dspark_ops.contracts.exactness import mismatch
from dspark_ops.contracts.layouts import KV_LAYOUTS, page_layout
from dspark_ops.contracts.numerics import rms_norm, round_bf16
from dspark_ops.contracts.rope import rope_table, rotate, rotations
from dspark_ops.contracts.values import index_into
from dspark_ops.errors import ContractError

if TYPE_CHECKING:
    from torch import Tensor

    from dspark_ops.contracts.model_shapes import ModelShapes

# Largest magnitudes at which a scale of one of the layouts changes (N7.3).
_EXACT_AMAX = (0.0, 2.0**-12, 6 * 2.0**-9, 1.0, 6 * 1.0625, 6 * 1.1875, 8.25, 448.0, 449.0, 6 * 448.0, 1e6)


def k_norm_rope_store(
    kv: Tensor,
    weight: Tensor,
    freqs: Tensor,
    positions: Tensor,
    out_loc: Tensor,
    cache: Tensor,
    page_size: int,
    layout: str = "kv_v4",
    eps: float = 1e-20,
) -> None:
    """Write the normalised, rotated and quantised latent row of each token into its cache slot.

    Args:
        kv: [B, D] bfloat16, last stride 1; rows may be spaced, as columns of the fused projection are.
        weight: [D] bfloat16, of the norm.
        freqs: [S, P] float32 interleaved.
        positions: [B] int32 or int64, below S.
        out_loc: [B] int32 cache slots, distinct where not negative. A row with a negative slot, or one beyond the last
            page, writes nothing.
        cache: [pages, page_bytes] uint8, written at the kept slots only; page padding and scale padding stay.
        page_size: slots of a page, a power of two.
        layout: name of the page layout, one of `KV_LAYOUTS`.
        eps: added to the mean square, under the root.

    Raises:
        ContractError: rows do not have the layout's width, the cache does not have its page size, the page size is no
            power of two, or positions have another dtype. Nothing is written then.

    Source: N7.2, N7.3. The norm is (x * inverse) * weight in float32. For ``kv_v4`` it is not rounded to bfloat16
    before rotation and quantisation; for the V4.1 layouts it is, and so are the rotated lanes, which are quantised too.
    Drop of out-of-range slots: O20.
    """
    pages = page_layout(layout)
    if kv.shape[1] != pages.width:
        raise ContractError(f"k_norm_rope_store: wanted rows of {pages.width} lanes for {layout}, got {kv.shape[1]}")
    cosine, sine = rotations(freqs, positions)
    rows = rms_norm(kv, weight, eps)
    if pages.rows_as_bfloat16:
        rows = round_bf16(rows)
    plain = kv.shape[1] - freqs.shape[1]
    rows = torch.cat([rows[:, :plain], rotate(rows[:, plain:], cosine, sine)], -1)
    if pages.rows_as_bfloat16:
        rows = round_bf16(rows)
    pages.store(cache, out_loc, rows, page_size)


def _cases(scale: str, seed: int) -> Iterator[Case]:
    generator = torch.Generator().manual_seed(seed)
    sizes = ((1, 4, 2), (6, 16, 3)) if scale == "small" else ((1, 256, 4), (6, 256, 4), (64, 256, 8))
    freqs = rope_table(64, 256, 10000.0)
    weight = (1 + 0.2 * torch.randn(512, generator=generator)).bfloat16()
    for layout, (rows, page_size, pages) in product(KV_LAYOUTS, sizes):
        fused = (3 * torch.randn(rows, 1792, generator=generator)).bfloat16()
        positions = torch.randint(0, 256, (rows,), generator=generator)
        slots = torch.randperm(pages * page_size, generator=generator)[:rows].int()
        cache = torch.full((pages, page_layout(layout).page_bytes(page_size)), 0xAB, dtype=torch.uint8)
        inputs: dict[str, Any] = {
            "kv": fused[:, 1280:].contiguous(), "weight": weight, "freqs": freqs, "positions": positions,
            "out_loc": slots, "cache": cache, "page_size": page_size, "layout": layout,
        }  # fmt: skip
        size = f"{rows} rows, pages of {page_size} in {layout}"
        yield Case(f"random, {size}", _fresh(inputs))
        yield Case(f"int32 positions, {size}", {**_fresh(inputs), "positions": positions.int()})
        yield Case(f"columns of the fused projection, {size}", {**_fresh(inputs), "kv": fused[:, 1280:]})
        holes = slots.clone()
        holes[::2] = -1
        yield Case(f"every other slot is -1, {size}", {**_fresh(inputs), "out_loc": holes})
        yield Case(f"tiny rows, {size}", {**_fresh(inputs), "kv": (inputs["kv"].float() * 1e-12).bfloat16()})
        yield Case(f"rows of zeros, {size}", {**_fresh(inputs), "kv": torch.zeros(rows, 512).bfloat16()})
        if rows == sizes[-1][0]:
            crossing = {"out_loc": page_size - 1 + torch.arange(rows, dtype=torch.int32)}
            yield Case(f"consecutive slots over a page boundary, {layout}", {**_fresh(inputs), **crossing})
            for amax in _EXACT_AMAX:
                yield _exact_norm(inputs, amax, generator)
            none = {name: inputs[name][:0] for name in ("kv", "positions", "out_loc")}
            yield Case(f"no rows, {layout}", {**_fresh(inputs), **none}, {"cache": cache})


def _exact_norm(inputs: dict[str, Any], amax: float, generator: torch.Generator) -> Case:
    """Return a case whose rows normalise to exactly +-1, so that +-weight is stored whatever the order of the sum."""
    signs = torch.randint(0, 2, inputs["kv"].shape, generator=generator) * 2 - 1
    weight = amax * torch.rand(512, generator=generator)
    weight[::16] = amax
    weight[448:] = 1 + weight[448:]  # a rotation by 0 may flip the sign of a zero
    weight = weight.bfloat16()
    exact = {"kv": (signs * 4.0).bfloat16(), "weight": weight, "eps": 0.0}
    unturned = {"positions": torch.zeros_like(inputs["positions"])}
    cache, layout = inputs["cache"].clone(), inputs["layout"]
    page_layout(layout).store(cache, inputs["out_loc"], signs * weight.float(), inputs["page_size"])
    name = f"rows of an exact norm at position 0, largest weight {amax:g} in {layout}"
    return Case(name, {**_fresh(inputs), **exact, **unturned}, {"cache": cache})


def _fresh(inputs: dict[str, Any]) -> dict[str, Any]:
    """Return the inputs with a cache of their own, because the operator writes to it."""
    return {**inputs, "cache": inputs["cache"].clone()}


def _sites(shapes: ModelShapes) -> tuple[Site, ...]:
    facts: dict[str, Any] = {
        "axes": {"D": shapes.head_dim, "P": shapes.rope_dim},
        "strides": {"kv": "unit_last"},
        "layouts": {"cache": "kv_v4"},
        "options": {"page_size": shapes.page_size, "layout": "kv_v4"},
    }
    return tuple(Site(name, **facts) for name in ("verify", "draft", "commit"))


K_NORM_ROPE_STORE = Contract(
    name="k_norm_rope_store",
    summary="Normalised, rotated and quantised latent rows in their cache slots.",
    source="N7",
    phases=("verify", "draft", "commit"),
    parameters=(
        Argument("kv", ("B", "D"), ("bfloat16",), strides="unit_last", doc="latent rows"),
        Argument("weight", ("D",), ("bfloat16",), doc="weight of the norm"),
        Argument("freqs", ("*", "P"), ("float32",), doc="table of rotations, interleaved"),
        Argument("positions", ("B",), ("int64", "int32"), doc="position of each row", values=index_into("freqs[0]")),
        Argument("out_loc", ("B",), ("int32",), doc="cache slot of each row; negative writes nothing"),
        Argument("cache", ("*", "*"), ("uint8",), layouts=KV_LAYOUTS, written=True, doc="pages of bytes"),
        Option("page_size", "int", doc="slots of a page, a power of two"),
        Option("layout", "str", "kv_v4", KV_LAYOUTS, doc="page layout"),
        Option("eps", "float", 1e-20, doc="added to the mean square"),
    ),
    outputs=(Output("cache", ("*", "*"), "uint8", mismatch(1e-3), "rows at kept slots, all else untouched"),),
    rows="B",
    reference=k_norm_rope_store,
    cases=_cases,
    sites=_sites,
    empty="launches nothing and leaves the cache alone",
)

CONTRACTS = (K_NORM_ROPE_STORE,)
