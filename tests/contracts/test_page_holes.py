"""A page table with holes: rows without a page are dropped when stored and masked when read. Case O20."""

from __future__ import annotations

import torch

from dspark_ops.contracts import get
from dspark_ops.contracts.layouts import KV_V4
from dspark_ops.contracts.rope import rope_table

PAGE, PAGES = 4, 3
TABLE = [[2, -1], [0, 1], [3, 0]]  # 3 is not a page
WRITES = [(0, 3), (0, 4), (1, 5), (2, 0)]  # (request, position)


def slots() -> torch.Tensor:
    pages = [TABLE[request][position // PAGE] for request, position in WRITES]
    found = [
        page * PAGE + position % PAGE if page >= 0 else -1 for page, (_, position) in zip(pages, WRITES, strict=True)
    ]
    return torch.tensor([*found, -1], dtype=torch.int32)


def stored() -> torch.Tensor:
    """Return the pool between two guard pages after the writes."""
    generator = torch.Generator().manual_seed(0)
    pool = torch.full((PAGES + 2, KV_V4.page_bytes(PAGE)), 0xAB, dtype=torch.uint8)
    get("k_norm_rope_store").reference(
        torch.randn(5, 512, generator=generator).bfloat16(),
        torch.ones(512, dtype=torch.bfloat16),
        rope_table(64, 64, 10000.0),
        torch.tensor([*(position for _, position in WRITES), 0]),
        slots(),
        pool[1:-1],
        PAGE,
    )
    return pool


def test_o20_rows_whose_page_is_a_hole_or_no_page_change_nothing() -> None:
    assert slots().tolist() == [11, -1, 5, 12, -1]
    pool = stored()
    data, _ = KV_V4.views(pool[1:-1], PAGE)
    changed = {page * PAGE + slot for page, slot in (data != 0xAB).any(-1).nonzero().tolist()}
    assert changed == {5, 11}
    assert pool[[0, -1]].unique().tolist() == [0xAB], "the guard pages"


def test_o20_what_is_read_through_a_hole_adds_nothing_to_the_attention() -> None:
    cache = stored()[1:-1]
    q = torch.randn(1, 2, 512, generator=torch.Generator().manual_seed(1)).bfloat16()
    attention = get("sparse_mla_decode").reference
    whole = attention(q, cache, torch.tensor([[11, 5]], dtype=torch.int32), page_size=PAGE)
    holes = attention(q, cache, torch.tensor([[-1, 11, -1, 5]], dtype=torch.int32), page_size=PAGE)
    nothing, lse = attention(q, cache, torch.tensor([[-1, -1]], dtype=torch.int32), page_size=PAGE)
    for one, other in zip(whole, holes, strict=True):
        torch.testing.assert_close(one, other)
    assert nothing.unique().tolist() == [0.0] and not torch.isnan(lse).any()
