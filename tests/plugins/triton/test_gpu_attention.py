"""The kernels around sparse attention on a real GPU: bits that do not depend on the number of rows."""

from __future__ import annotations

import pytest
import torch

from dspark_ops import contracts
from dspark_ops.contracts.attention import _filled_cache
from dspark_ops.contracts.rope import rope_table
from dspark_ops_triton.attention import sparse_mla_decode
from dspark_ops_triton.rope_wo_a import TILES, rope_wo_a

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def gpu() -> None:
    if not torch.cuda.is_available():
        pytest.skip("no GPU")


def test_a_token_of_the_projection_is_the_same_in_every_tile() -> None:
    generator = torch.Generator("cuda").manual_seed(0)
    o = torch.randn(70, 2, 4096, generator=generator, device="cuda").bfloat16()
    weight = (0.05 * torch.randn(2, 1024, 4096, generator=generator, device="cuda")).bfloat16()
    positions = torch.randint(0, 256, (70,), generator=generator, device="cuda")
    freqs = rope_table(64, 256, 10000.0).cuda()
    together = rope_wo_a(o, weight, freqs, positions)
    for rows in (1, 6, 9, *(tiles.most for tiles in TILES)):
        assert torch.equal(rope_wo_a(o[:rows], weight, freqs, positions[:rows]), together[:rows])
    assert torch.equal(rope_wo_a(o[69:], weight, freqs, positions[69:]), together[69:])


@pytest.mark.parametrize("heads", [5, 16, 40, 64])
def test_a_row_of_the_decode_is_right_at_every_number_of_heads_and_the_same_alone(heads: int) -> None:
    generator = torch.Generator().manual_seed(1)
    cache, extra = (_filled_cache(slots, 256, generator).cuda() for slots in (512, 2048))
    q = torch.randn(24, heads, 512, generator=generator).bfloat16().cuda()
    window = torch.randint(-1, 512, (24, 128), generator=generator).int().cuda()
    chosen = torch.randint(-1, 2048, (24, 512), generator=generator).int().cuda()
    lengths = torch.randint(0, 513, (24,), generator=generator).int().cuda()
    sink = torch.randn(heads, generator=generator).cuda()
    rest = {"page_size": 256, "extra_page_size": 256, "sink": sink, "extra_cache": extra}
    out, lse = sparse_mla_decode(q, cache, window, extra_indices=chosen, extra_lengths=lengths, **rest)
    for row in (0, 23):
        own = slice(row, row + 1)
        given = {"extra_indices": chosen[own], "extra_lengths": lengths[own], **rest}
        alone = sparse_mla_decode(q[own], cache, window[own], **given)
        assert torch.equal(alone[0], out[own])
        assert torch.equal(alone[1], lse[own])
        plain = {name: value.cpu() if isinstance(value, torch.Tensor) else value for name, value in given.items()}
        wanted, wanted_lse = contracts.get("sparse_mla_decode").reference(
            q[own].cpu(), cache.cpu(), window[own].cpu(), **plain
        )
        assert (out[own].cpu().float() - wanted.float()).norm() <= 1e-2 * wanted.float().norm()
        assert (lse[own].cpu() - wanted_lse).abs().max() <= 1e-4
