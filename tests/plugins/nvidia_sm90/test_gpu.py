"""The decode by FlashMLA on a Hopper GPU: numbers, graphs, and the bits of FlashMLA with a schedule of its own."""

from __future__ import annotations

from importlib.util import find_spec

import pytest
import torch

from dspark_ops import contracts
from dspark_ops.binding.facts import facts_of
from dspark_ops.conformance.numbers import check_numbers
from dspark_ops.contracts.attention import _filled_cache
from dspark_ops_nvidia_sm90 import flashmla
from dspark_ops_nvidia_sm90.plugin import KERNELS
from dspark_ops_triton.mla_schedule import mla_sched_meta

pytestmark = pytest.mark.gpu

CONTRACT = contracts.get("sparse_mla_decode")


@pytest.fixture(autouse=True)
def hopper_with_flashmla() -> None:
    if not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0) or find_spec("flash_mla") is None:
        pytest.skip("no Hopper GPU with FlashMLA")


def _inside(inputs):
    facts = facts_of(CONTRACT, inputs)
    region = [constraint for constraint in KERNELS[0].region if "T" not in constraint.subjects()]
    return None if any(constraint.check(facts) for constraint in region) else inputs


@pytest.mark.parametrize("scale", ["small", "model"])
def test_every_case_passes(scale: str) -> None:
    bound = flashmla.FlashMla(132, pdl=True)
    assert check_numbers(CONTRACT, bound, device="cuda", scale=scale, seed=1, adapt=_inside) == []


@pytest.mark.parametrize(("rows", "width", "extra"), [(1, 512, 0), (6, 128, 512), (64, 2048, 0), (3, 512, 512)])
def test_bits_are_those_of_flashmla_with_its_own_schedule(rows: int, width: int, extra: int) -> None:
    from flash_mla import flash_mla_with_kvcache
    from flash_mla.flash_mla_interface import FlashMLASchedMeta

    generator = torch.Generator("cuda").manual_seed(0)
    cache = _filled_cache(4096, 64, torch.Generator().manual_seed(0)).cuda()

    def slots(columns: int) -> tuple[torch.Tensor, torch.Tensor]:
        drawn = torch.randint(0, 4096, (rows, columns), generator=generator, device="cuda")
        lengths = torch.randint(1, columns + 1, (rows,), generator=generator, device="cuda")
        return drawn.int(), lengths.int()

    q = torch.randn(rows, 64, 512, generator=generator, device="cuda").bfloat16()
    sink = torch.randn(64, generator=generator, device="cuda")
    indices, lengths = slots(width)
    more, more_lengths = slots(extra) if extra else (None, None)
    pages = flashmla._pages(cache, 64)
    bound = flashmla.FlashMla(132, pdl=True)
    meta, splits = (torch.empty(*shape, dtype=torch.int32, device="cuda") for shape in ((132, 8), (rows + 1,)))
    mla_sched_meta(lengths, meta, splits, more_lengths, extra)
    arguments = (q, cache, indices, lengths, sink, cache if extra else None, more, more_lengths, 64, 64)
    out, lse = bound(*arguments)
    handed = bound(*arguments, sched_meta=meta, num_splits=splits)
    own, own_lse = flash_mla_with_kvcache(
        q.unsqueeze(1), pages, None, None, 512, FlashMLASchedMeta(), is_fp8_kvcache=True, indices=indices.unsqueeze(1),
        attn_sink=sink, extra_k_cache=pages if extra else None,
        extra_indices_in_kvcache=more.unsqueeze(1) if extra else None, topk_length=lengths,
        extra_topk_length=more_lengths, use_legacy=True,
    )  # fmt: skip
    assert torch.equal(out.view(torch.int16), own[:, 0].view(torch.int16))
    assert torch.equal(lse, own_lse[:, :, 0])
    assert torch.equal(handed[0], out) and torch.equal(handed[1], lse)


def test_a_graph_follows_changed_lengths() -> None:
    bound = flashmla.FlashMla(132, pdl=True)
    cache = _filled_cache(1024, 64, torch.Generator().manual_seed(0)).cuda()
    q = torch.randn(24, 16, 512, device="cuda").bfloat16()
    indices = torch.randint(0, 1024, (24, 128), device="cuda").int()
    lengths = torch.full((24,), 128, dtype=torch.int32, device="cuda")
    bound(q, cache, indices, lengths)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out, lse = bound(q, cache, indices, lengths)
    for seed in range(3):
        lengths.copy_(torch.randint(0, 129, (24,), generator=torch.Generator().manual_seed(seed)))
        graph.replay()
        wanted = bound(q, cache, indices, lengths)
        assert torch.equal(out, wanted[0])
        assert torch.equal(lse, wanted[1])
