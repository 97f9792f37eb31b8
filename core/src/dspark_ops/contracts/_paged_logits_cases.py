"""Inputs for the paged index logits."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from dspark_ops._lazy import torch
from dspark_ops.contracts.contract import Case
from dspark_ops.contracts.varctx import varctx_schedule

if TYPE_CHECKING:
    from torch import Generator, Tensor


def logits_cases(scale: str, seed: int) -> Iterator[Case]:
    """Yield inputs of `paged_mqa_logits_fp4`."""
    generator = torch.Generator().manual_seed(seed)
    small = ((1, 1, 16, 70), (3, 2, 32, 200), (2, 6, 64, 70))
    model = ((1, 1, 32, 65536), (8, 1, 32, 8192), (24, 1, 32, 4096), (4, 6, 32, 4096))
    for batch, next_n, heads, longest in small if scale == "small" else model:
        inputs = logits_inputs(batch, next_n, heads, longest, generator)
        name = f"{batch} requests of {next_n} rows, {heads} heads, {longest} columns"
        yield Case(f"full contexts, {name}", inputs)
        edges = torch.tensor([0, 1, 63, 64, 65, next_n - 1, next_n, longest - 1], dtype=torch.int32)
        for shift in range(0, 8, batch if scale == "small" else 8):
            lens = edges.roll(-shift).repeat(-(-batch // 8))[:batch]
            yield Case(f"contexts at borders from {shift}, {name}", {**inputs, "context_lens": lens})
        beyond = {"context_lens": inputs["context_lens"], "max_seq_len": longest // 2 + 1}
        yield Case(f"contexts longer than the result, {name}", {**inputs, **beyond})
        past = {"max_seq_len": 64 * inputs["block_tables"].shape[1] + 10}
        yield Case(f"columns behind the whole table, {name}", {**inputs, **past})
        exact = {"block_tables": inputs["block_tables"][:, : -(-longest // 64)].contiguous()}
        yield Case(f"a table that ends with the contexts, {name}", {**inputs, **exact})
        single = {"block_tables": exact["block_tables"][:, :1].contiguous(), "max_seq_len": 130}
        short = inputs["context_lens"].clamp(max=60)
        yield Case(f"a table of one page, {name}", {**inputs, **single, "context_lens": short})
        lens = torch.randint(0, longest + 1, (batch,), generator=generator).int()
        programs = batch * next_n * 4
        for block_k in (64, 256):
            _, work = varctx_schedule(lens, block_k, programs, longest, next_n)
            scheduled = {"context_lens": lens, "cta_info": work, "block_k": block_k}
            yield Case(f"with a work list in chunks of {block_k}, {name}", {**inputs, **scheduled})
        yield Case(f"another factor, {name}", {**inputs, "weight_scale": 0.015625})
        yield Case(f"weights of zero, {name}", {**inputs, "weights": torch.zeros_like(inputs["weights"])})
        wide = {key: _any_bytes(inputs[key].shape, 256, generator) for key in ("q", "kv")}
        yield Case(f"all codes, minus zero among them, {name}", {**inputs, **wide})
    nothing = {key: inputs[key][:0] for key in ("q", "q_scale", "block_tables", "weights", "context_lens")}
    yield Case("no requests", {**inputs, **nothing})


def logits_inputs(batch: int, next_n: int, heads: int, longest: int, generator: Generator) -> dict[str, Any]:
    """Return random inputs with a page of its own for every 64 keys of each request, in random order."""
    pages = -(-longest // 64)
    columns = -(-pages // 4) * 4 + 4
    table = torch.zeros(batch, columns, dtype=torch.int32)
    table[:, :pages] = torch.randperm(batch * pages, generator=generator).view(batch, pages)
    padded = -(-heads // 64) * 4
    q_scale = torch.randint(122, 131, (batch, next_n, 1, 4, 16, padded), generator=generator).to(torch.uint8)
    q_scale[..., heads // 16 :] = 0
    return {
        "q": _any_bytes((batch, next_n, heads, 64), 256, generator) & 0x77,
        "q_scale": q_scale,
        "kv": _any_bytes((batch * pages, 1, 4, 64, 16), 256, generator),
        "kv_scale": torch.randint(122, 131, (batch * pages, 1, 4, 64), generator=generator).to(torch.uint8),
        "block_tables": table,
        "weights": (torch.randn(batch * next_n, heads, generator=generator) * 0.1).bfloat16(),
        "context_lens": torch.full((batch,), longest, dtype=torch.int32),
        "max_seq_len": longest,
    }


def _any_bytes(shape: tuple[int, ...], end: int, generator: Generator) -> Tensor:
    return torch.randint(0, end, tuple(shape), generator=generator).to(torch.uint8)
