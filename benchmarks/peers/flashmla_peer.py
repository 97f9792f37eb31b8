"""FlashMLA's sparse decode kernel for Hopper (package ``sgl-flash-mla``) as a peer of `sparse_mla_decode`.

It works on 64 heads: queries are padded outside the timed part. The schedule is the one it makes itself, made once
outside the timed part as an engine does for all layers of a step.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch

from dspark_ops.bench.peers import Adapter, Peer, UnfitError
from dspark_ops.contracts.contract import Contract

PACKAGE = "sgl-flash-mla"
HEADS = 64
SLOT_BYTES = 584


def peer() -> Peer:
    """Return FlashMLA."""
    try:
        found, missing = version(PACKAGE), ""
    except PackageNotFoundError:
        found, missing = "", f"the package {PACKAGE} is not installed"
    return Peer("flashmla", f"{PACKAGE} {found}".strip(), _adapter, missing)


def _adapter(contract: Contract) -> Adapter | str:
    if contract.name != "sparse_mla_decode":
        return "it has no kernel of this operator"
    return Adapter(_attention, _own_heads, note="64 padded heads, its own schedule handed in")


def _attention(inputs: Mapping[str, Any]) -> Callable[[], Any]:
    if inputs["layout"] != "kv_v4":
        raise UnfitError(f"its kernels for Hopper read pages in kv_v4, got {inputs['layout']}")
    from flash_mla import flash_mla_with_kvcache, get_mla_metadata

    q = inputs["q"]
    padded = torch.zeros(q.shape[0], 1, HEADS, q.shape[2], dtype=q.dtype, device=q.device)
    padded[:, 0, : q.shape[1]] = q
    sink = None
    if inputs["sink"] is not None:
        sink = torch.full((HEADS,), -torch.inf, device=q.device)
        sink[: q.shape[1]] = inputs["sink"]
    options: dict[str, Any] = {
        "head_dim_v": q.shape[2], "attn_sink": sink, "indices": inputs["indices"].unsqueeze(1),
        "topk_length": inputs["lengths"], "softmax_scale": inputs["scale"], "use_legacy": True,
    }  # fmt: skip
    if inputs["extra_cache"] is not None:
        options |= {
            "extra_k_cache": _pages(inputs["extra_cache"], inputs["extra_page_size"]),
            "extra_indices_in_kvcache": inputs["extra_indices"].unsqueeze(1),
            "extra_topk_length": inputs["extra_lengths"],
        }
    cache = _pages(inputs["cache"], inputs["page_size"])
    schedule, _ = get_mla_metadata()

    def call() -> Any:
        return flash_mla_with_kvcache(padded, cache, None, None, tile_scheduler_metadata=schedule, **options)

    call()
    return call


def _pages(cache: torch.Tensor, page_size: int) -> torch.Tensor:
    """Return pages as FlashMLA sees them: [pages, page_size, 1, 584], the padding of a page left out."""
    return cache.as_strided((cache.shape[0], page_size, 1, SLOT_BYTES), (cache.stride(0), SLOT_BYTES, SLOT_BYTES, 1))


def _own_heads(returned: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    heads = inputs["q"].shape[1]
    out, lse = returned
    return {"out": out[:, 0, :heads], "lse": lse.reshape(lse.shape[0], -1)[:, :heads]}
