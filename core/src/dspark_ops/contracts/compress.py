"""Low-ratio compression: one cache entry per token (ratio 1) or per pair of tokens (ratio 2) of a KV source layer.

Both return the latent before rotation, which index keys are made from, and store the entry: the last lanes rotated, all
lanes rounded to the fp4 grid, then quantised again where the page layout stores them otherwise (N8.1).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from dspark_ops._lazy import torch
from dspark_ops.contracts._compress_cases import c1_cases, c2_cases
from dspark_ops.contracts.contract import Argument, Contract, Option, Output, Site
from dspark_ops.contracts.exactness import bitwise, bitwise_given, ulp
from dspark_ops.contracts.kept_rows import kept_or_first, write_kept
from dspark_ops.contracts.layouts import KV_LAYOUTS, page_layout
from dspark_ops.contracts.numerics import fp4_fake_quant_e4m3_scale, rms_norm
from dspark_ops.contracts.rope import rotate, rotations
from dspark_ops.contracts.values import index_into
from dspark_ops.errors import ContractError

if TYPE_CHECKING:
    from torch import Tensor

    from dspark_ops.contracts.model_shapes import ModelShapes

FORMS = ("decode", "verify", "extend")


def compress_c1(
    kv: Tensor,
    weight: Tensor,
    freqs: Tensor,
    positions: Tensor,
    out_loc: Tensor,
    cache: Tensor,
    page_size: int,
    layout: str = "kv_v4",
    eps: float = 1e-20,
) -> Tensor:
    """Return the latent of each token, [N, D] bfloat16, and store its entry at the token's own slot.

    Args:
        kv: [N, D] bfloat16, the compressor's projection.
        weight: [D] bfloat16, of the norm.
        freqs: [S, P] float32 interleaved, of the compressed layers.
        positions: [N] int32 or int64, below S; also the rotation of the entry.
        out_loc: [N] int32 or int64 cache slots, distinct where positive. 0 and negative slots mark padded rows: they
            store nothing, but their latent is returned.
        cache: [pages, page_bytes] uint8, written at the kept slots only.
        page_size: slots of a page of `cache`, a power of two.
        layout: name of the page layout.
        eps: added to the mean square, under the root.

    Raises:
        ContractError: rows do not have the layout's width, the cache does not have its page size, the page size is no
            power of two, or positions have another dtype. Nothing is written then.

    Source: N8.1, N8.2.
    """
    _require_width("compress_c1", kv.shape[1], layout)
    latent = rms_norm(kv, weight, eps).bfloat16()
    store_entries(latent, freqs, positions, out_loc, out_loc > 0, cache, page_size, layout)
    return latent


def compress_c2(
    kv_score: Tensor,
    state: Tensor,
    weight: Tensor,
    freqs: Tensor,
    positions: Tensor,
    requests: Tensor,
    out_loc: Tensor,
    cache: Tensor,
    page_size: int,
    ring_size: int,
    form: str = "decode",
    draft_len: int = 1,
    layout: str = "kv_v4",
    eps: float = 1e-20,
) -> Tensor:
    """Return the latent of each pair that an odd position completes, and store its entry at half the token's slot.

    A pair is pooled per lane: softmax over its two scores, applied to its two values; then rounded to bfloat16 and
    normalised. Its entry is rotated as position - 1. Raw projections wait in a ring per request: row
    ``request * ring_size + position % ring_size`` of `state`. The ring is read before it is written.

    Args:
        kv_score: [N, 2*D] float32, the values and then the scores of each token.
        state: [slots, 2*D] float32, written as `form` says.
        weight: [D] bfloat16, of the norm.
        freqs: [S, P] float32 interleaved, of the compressed layers.
        positions: [N] int32 or int64, below S.
        requests: [N] int64, the ring of each row.
        out_loc: [N] int32 or int64, the tokens' full slots; the entry goes to slot >> 1. 0 marks a padded row, which
            writes nothing at all; its request and position are in bounds all the same.
        cache: [pages, page_bytes] uint8, the compressed pool, written at the kept slots only.
        page_size: slots of a page of `cache`, a power of two.
        ring_size: rows of a request in `state`, above `draft_len`.
        form: ``decode``: rows of different requests; the partner of an odd row is in the ring, even rows go into it.
            ``verify``: `draft_len` consecutive positions per request, request by request; the partner of a row is the
            row before it, for the first one it is in the ring; even rows go into the ring. ``extend``: any run of
            positions per request; the partner is the row before if it is the same request's last position and not
            padded, else in the ring; the last `ring_size` rows of each request go into the ring, even and odd.
        draft_len: rows per request in the form ``verify``.
        layout: name of the page layout.
        eps: added to the mean square, under the root.

    Returns:
        [N, D] bfloat16; rows that complete no pair, and padded rows, hold zeros.

    Raises:
        ContractError: an unknown form, rows that are no multiple of `draft_len`, a ring that is too small for it, or
            what `compress_c1` refuses. Nothing is written then.

    Source: N8.1, N8.3. Verifying a block equals decoding it one position after the other, so rejected rows need no
    rollback: their ring rows are keyed by position and are written again before they are read.
    """
    _require_width("compress_c2", kv_score.shape[1] // 2, layout)
    _require_form(form, draft_len, ring_size, kv_score.shape[0])
    at = positions.long()
    live, odd = out_loc != 0, at % 2 == 1
    first_of_ring = requests.long() * ring_size
    partner = state[first_of_ring + (at - 1) % ring_size]
    in_batch = _partner_is_row_before(form, draft_len, at, requests, live)
    partner = torch.where(in_batch[:, None], kv_score.roll(1, 0), partner)
    latent = rms_norm(pool_pair(partner, kv_score).float().bfloat16(), weight, eps).bfloat16()
    complete = live & odd
    latent = torch.where(complete[:, None], latent, 0.0).bfloat16()
    store_entries(latent, freqs, positions - odd.to(positions.dtype), out_loc >> 1, complete, cache, page_size, layout)
    kept = live & (_in_last_rows(at, requests, live, state, ring_size) if form == "extend" else ~odd)
    written = kept_or_first(kept)
    write_kept(state, ((first_of_ring + at % ring_size)[written],), kv_score[written], kept)
    return latent


def pool_pair(old: Tensor, new: Tensor) -> Tensor:
    """Return the pooled values [N, D] float64 of pairs of rows [N, 2*D]: per lane, a softmax over the two scores.

    Source: N8.3, closed form.
    """
    width = old.shape[-1] // 2
    old_value, old_score = old[..., :width].double(), old[..., width:].double()
    new_value, new_score = new[..., :width].double(), new[..., width:].double()
    difference = old_score - new_score
    lesser = (-difference.abs()).exp()
    old_wins = difference > 0
    old_weight, new_weight = torch.where(old_wins, 1.0, lesser), torch.where(old_wins, lesser, 1.0)
    return (old_value * old_weight + new_value * new_weight) / (1 + lesser)


def store_entries(
    latent: Tensor,
    freqs: Tensor,
    positions: Tensor,
    slots: Tensor,
    keep: Tensor,
    cache: Tensor,
    page_size: int,
    layout: str,
) -> None:
    """Store the entries that latents [N, D] bfloat16 make, at `slots` where `keep` is True.

    Source: N8.1: the rotated lanes are rounded to bfloat16, then all lanes to the fp4 grid of their 16 with an E4M3
    scale, then the layout's own quantisation. A layout that is that grid itself rounds once, and keeps minus zeros.
    """
    pages = page_layout(layout)
    cosine, sine = rotations(freqs, positions)
    plain = latent.shape[1] - freqs.shape[1]
    turned = rotate(latent[:, plain:], cosine, sine).bfloat16()
    entries = torch.cat([latent[:, :plain], turned], -1)
    if any(run.scale != "e4m3_fp4" for run in pages.lanes):
        entries = fp4_fake_quant_e4m3_scale(entries)
    pages.store(cache, slots, entries, page_size, keep)


def _require_width(operator: str, width: int, layout: str) -> None:
    wanted = page_layout(layout).width
    if width != wanted:
        raise ContractError(f"{operator}: wanted rows of {wanted} lanes for {layout}, got {width}")


def _require_form(form: str, draft_len: int, ring_size: int, rows: int) -> None:
    if form not in FORMS:
        raise ContractError(f"compress_c2: wanted form {', '.join(FORMS)}, got {form!r}")
    if form == "verify" and (draft_len < 1 or rows % draft_len):
        raise ContractError(f"compress_c2: wanted whole requests of draft_len {draft_len} rows, got {rows} rows")
    if form == "verify" and ring_size <= draft_len:
        raise ContractError(
            f"compress_c2: wanted a ring_size above draft_len {draft_len}, got {ring_size}: the block would overwrite "
            f"the row that its first position reads"
        )


def _partner_is_row_before(form: str, draft_len: int, positions: Tensor, requests: Tensor, live: Tensor) -> Tensor:
    """Return for which rows the pair's older half is the row before in the batch, [N] bool."""
    row = torch.arange(positions.shape[0], device=positions.device)
    if form == "decode":
        return torch.zeros_like(live)
    if form == "verify":
        return row % draft_len != 0
    follows = (requests == requests.roll(1)) & (positions == positions.roll(1) + 1)
    return (row > 0) & follows & live.roll(1)


def _in_last_rows(positions: Tensor, requests: Tensor, live: Tensor, state: Tensor, ring_size: int) -> Tensor:
    """Return which rows are among the last `ring_size` live ones of their request, [N] bool."""
    last = positions.new_full((state.shape[0] // ring_size,), -1)
    last = last.scatter_reduce(0, requests.long(), torch.where(live, positions, -1), "amax")
    return positions > last[requests.long()] - ring_size


def _c1_cache(inputs: Mapping[str, Any], outputs: Mapping[str, Any]) -> Tensor:
    cache: Tensor = inputs["cache"].clone()
    slots, layout = inputs["out_loc"], inputs.get("layout", "kv_v4")
    rest = (slots, slots > 0, cache, inputs["page_size"], layout)
    store_entries(outputs["latent"], inputs["freqs"], inputs["positions"], *rest)
    return cache


def _c2_cache(inputs: Mapping[str, Any], outputs: Mapping[str, Any]) -> Tensor:
    cache: Tensor = inputs["cache"].clone()
    odd, layout = inputs["positions"] % 2, inputs.get("layout", "kv_v4")
    rest = (inputs["out_loc"] >> 1, (inputs["out_loc"] != 0) & (odd == 1), cache, inputs["page_size"], layout)
    store_entries(outputs["latent"], inputs["freqs"], inputs["positions"] - odd, *rest)
    return cache


def _sites(shapes: ModelShapes) -> tuple[Site, ...]:
    axes = {"D": shapes.head_dim, "P": shapes.rope_dim}
    return (Site("verify", axes=axes, layouts={"cache": "kv_v4"}, options={"layout": "kv_v4"}),)


_WEIGHT = Argument("weight", ("D",), ("bfloat16",), doc="weight of the norm")
_FREQS = Argument("freqs", ("*", "P"), ("float32",), doc="table of rotations, interleaved")
_POSITIONS = Argument(
    "positions", ("N",), ("int64", "int32"), doc="position of each token", values=index_into("freqs[0]")
)
_OUT_LOC = Argument("out_loc", ("N",), ("int64", "int32"), doc="full slot of each token; 0 for a padded row")
_CACHE = Argument("cache", ("*", "*"), ("uint8",), layouts=KV_LAYOUTS, written=True, doc="pages of bytes")
_PAGE_SIZE = Option("page_size", "int", doc="slots of a page of cache, a power of two")
_LAYOUT = Option("layout", "str", "kv_v4", KV_LAYOUTS, doc="page layout")
_EPS = Option("eps", "float", 1e-20, doc="added to the mean square")
_CACHE_AFTER = Output("cache", ("*", "*"), "uint8", bitwise_given("latent"), "entries at kept slots")

COMPRESS_C1 = Contract(
    name="compress_c1",
    summary="Latent and stored compressed entry of each token.",
    source="N8.1, N8.2",
    phases=("verify",),
    parameters=(
        Argument("kv", ("N", "D"), ("bfloat16",), strides="unit_last", doc="compressor projection"),
        *(_WEIGHT, _FREQS, _POSITIONS, _OUT_LOC, _CACHE, _PAGE_SIZE, _LAYOUT, _EPS),
    ),
    outputs=(Output("latent", ("N", "D"), "bfloat16", ulp(1), "before rotation, of every row"), _CACHE_AFTER),
    rows="N",
    reference=compress_c1,
    cases=c1_cases,
    sites=_sites,
    rules={"cache": _c1_cache},
)

COMPRESS_C2 = Contract(
    name="compress_c2",
    summary="Latent and stored compressed entry of each pair of tokens that an odd position completes.",
    source="N8.1, N8.3",
    phases=("verify",),
    parameters=(
        Argument("kv_score", ("N", "2*D"), ("float32",), doc="values, then scores"),
        Argument("state", ("*", "2*D"), ("float32",), written=True, doc="ring of raw projections per request"),
        *(_WEIGHT, _FREQS, _POSITIONS),
        Argument("requests", ("N",), ("int64",), doc="ring of each row", values=index_into("state[0]/ring_size")),
        *(_OUT_LOC, _CACHE, _PAGE_SIZE),
        Option("ring_size", "int", doc="rows of a request in state"),
        Option("form", "str", "decode", FORMS, doc="how rows follow each other"),
        Option("draft_len", "int", 1, doc="rows per request in the form verify"),
        *(_LAYOUT, _EPS),
    ),
    outputs=(
        Output("latent", ("N", "D"), "bfloat16", ulp(2), "before rotation; zeros where no pair is completed"),
        Output("state", ("*", "2*D"), "float32", bitwise(), "ring after the call"),
        _CACHE_AFTER,
    ),
    rows="N",
    reference=compress_c2,
    cases=c2_cases,
    sites=_sites,
    rules={"cache": _c2_cache},
)

CONTRACTS = (COMPRESS_C1, COMPRESS_C2)
