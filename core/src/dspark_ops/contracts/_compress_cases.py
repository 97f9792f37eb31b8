"""Inputs for the compression contracts."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import TYPE_CHECKING, Any

from dspark_ops._lazy import torch
from dspark_ops.contracts.contract import Case
from dspark_ops.contracts.layouts import KV_LAYOUTS, page_layout
from dspark_ops.contracts.rope import YarnScaling, rope_table

if TYPE_CHECKING:
    from torch import Generator, Tensor

_WIDTH = 512
_TABLE = 256


def _common(page_size: int, pages: int, layout: str, generator: Generator) -> dict[str, Any]:
    return {
        "weight": (1 + 0.2 * torch.randn(_WIDTH, generator=generator)).bfloat16(),
        "freqs": rope_table(64, _TABLE, 160000.0, YarnScaling(16.0, 65536)),
        "cache": torch.full((pages, page_layout(layout).page_bytes(page_size)), 0xAB, dtype=torch.uint8),
        "page_size": page_size,
        "layout": layout,
    }


def _fresh(inputs: dict[str, Any]) -> dict[str, Any]:
    """Return the inputs with written tensors of their own."""
    return {name: value.clone() if name in ("cache", "state") else value for name, value in inputs.items()}


def c1_cases(scale: str, seed: int) -> Iterator[Case]:
    """Yield inputs of `compress_c1`."""
    generator = torch.Generator().manual_seed(seed)
    sizes = ((1, 4), (6, 8)) if scale == "small" else ((1, 256), (6, 256), (64, 256))
    for layout, (rows, page_size) in product(KV_LAYOUTS, sizes):
        common = _common(page_size, 1 + 2 * rows // page_size + 2, layout, generator)
        kv = (2 * torch.randn(rows, _WIDTH, generator=generator)).bfloat16()
        positions = torch.randint(0, _TABLE, (rows,), generator=generator)
        slots = 1 + torch.randperm(2 * rows, generator=generator)[:rows]
        inputs = {**common, "kv": kv, "positions": positions, "out_loc": slots}
        size = f"{rows} rows, pages of {page_size} in {layout}"
        yield Case(f"random, {size}", _fresh(inputs))
        yield Case(f"int32 positions and slots, {size}", _fresh({**inputs, **_narrow(inputs)}))
        padded = slots.clone()
        padded[::2], padded[1::4] = 0, -1
        yield Case(f"padded rows with slots 0 and -1, {size}", _fresh({**inputs, "out_loc": padded}))
        wide = torch.full((rows, 1792), 1e30).bfloat16()
        wide[:, 1280:] = kv
        yield Case(f"columns of a wider buffer, {size}", _fresh({**inputs, "kv": wide[:, 1280:]}))
        yield Case(f"rows of zeros, {size}", _fresh({**inputs, "kv": torch.zeros_like(kv)}))
        spread = kv.float() * torch.logspace(-6, 2, _WIDTH)
        yield Case(f"lanes of very different size, {size}", _fresh({**inputs, "kv": spread.bfloat16()}))
    none = {name: inputs[name][:0] for name in ("kv", "positions", "out_loc")}
    yield Case("no rows", _fresh({**inputs, **none}), {"cache": inputs["cache"]})


def c2_cases(scale: str, seed: int) -> Iterator[Case]:
    """Yield inputs of `compress_c2` in its three forms."""
    generator = torch.Generator().manual_seed(seed)
    page_size = 8 if scale == "small" else 256
    ring_size = 8
    for layout, count in product(KV_LAYOUTS, (1, 2) if scale == "small" else (1, 8, 64)):
        common = {**_common(page_size, 2 + 64 * count // page_size, layout, generator), "ring_size": ring_size}
        common["state"] = torch.randn(count * ring_size, 2 * _WIDTH, generator=generator)
        for form, starts, length in (
            ("decode", (30, 31), 1),
            ("verify", (31, 32), 6),
            ("verify", (32, 31), 6),
            ("extend", (0, 5), 11),
            ("extend", (7, 0), 2),
            ("extend", (0, 11), 11),  # where one request ends, the next one goes on counting
        ):
            begin = torch.tensor([starts[request % 2] for request in range(count)])
            rows = _rows(begin, length, generator)
            inputs = {**common, **rows, "form": form, "draft_len": length if form == "verify" else 1}
            size = f"{form} of {count} times {length} rows from {' and '.join(map(str, starts))} into {layout}"
            yield Case(size, _fresh(inputs))
            if layout != KV_LAYOUTS[0]:
                continue  # how rows pair up does not depend on the layout
            yield Case(f"{size}, int32 positions and slots", _fresh({**inputs, **_narrow(rows)}))
            padded = rows["out_loc"].clone()
            padded[-(length // 2 + 1) :] = 0
            yield Case(f"{size}, padded at the end", _fresh({**inputs, "out_loc": padded}))
            gaps = torch.where(rows["positions"] % 4 == 2, 0, rows["out_loc"])
            yield Case(f"{size}, padded between", _fresh({**inputs, "out_loc": gaps}))
            far = rows["kv_score"].clone()
            far[:, _WIDTH:] *= 200.0
            yield Case(f"{size}, scores far apart", _fresh({**inputs, "kv_score": far}))
    none = {name: value[:0] for name, value in rows.items()}
    yield Case("no rows", _fresh({**inputs, **none}), {"cache": common["cache"], "state": common["state"]})


def _rows(begin: Tensor, length: int, generator: Generator) -> dict[str, Tensor]:
    """Return rows of consecutive positions, request by request, with slots that no two requests share."""
    requests = torch.arange(begin.numel()).repeat_interleave(length)
    positions = (begin[:, None] + torch.arange(length)).flatten()
    return {
        "kv_score": torch.randn(positions.numel(), 2 * _WIDTH, generator=generator),
        "positions": positions,
        "requests": requests,
        "out_loc": 2 + 64 * requests + positions,
    }


def _narrow(rows: dict[str, Any]) -> dict[str, Tensor]:
    return {name: rows[name].int() for name in ("positions", "out_loc")}
