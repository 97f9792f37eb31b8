"""Inputs for the schedule of the decode attention."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from dspark_ops._lazy import torch
from dspark_ops.contracts.contract import Case

if TYPE_CHECKING:
    from torch import Tensor

Record = tuple[int, ...]


def sched_meta_cases(scale: str, seed: int) -> Iterator[Case]:
    """Yield inputs of `mla_sched_meta`: the golden records, then lengths of every kind over batches and parts."""
    yield from _known()
    generator = torch.Generator().manual_seed(seed)
    small = scale == "small"
    for batch in (1, 2, 5) if small else (1, 2, 5, 6, 17, 64, 300):
        for parts, topk in (
            ((1, 512), (4, 512), (9, 2048)) if small else ((25, 512), (152, 512), (25, 2048), (152, 2048))
        ):
            for kind, lengths in _lengths(batch, topk, generator):
                size = f"{kind} of {topk}, {batch} requests, {parts} parts"
                yield _case(size, lengths, parts)
                if "0" in kind:
                    yield _case(f"{size}, dense", lengths, parts, form="dense")
        for topk, extra_topk in ((512, 512), (2048, 512), (512, 2048), (128, 512)):
            lengths = torch.randint(0, topk + 1, (batch,), generator=generator)
            extra = torch.randint(1, extra_topk + 1, (batch,), generator=generator)
            size = f"{topk} and {extra_topk} columns, {batch} requests"
            yield _case(f"{size}, extra lengths", lengths, 11, extra_lengths=extra.int(), extra_topk=extra_topk)
            yield _case(f"{size}, full extra rows", lengths, 11, extra_topk=extra_topk)
        edges = torch.tensor([1, 65, 129, 64, 128]).repeat(-(-batch // 5))[:batch]
        yield _case(f"block edges and extra columns, {batch} requests", edges, 11, extra_topk=512)
        yield _case(f"blocks of one entry, {batch} requests", edges, 11, block_size=1)
        yield _case(f"overhead 3, {batch} requests", torch.full((batch,), 2048), 12, overhead=3)


def _lengths(batch: int, topk: int, generator: Any) -> Iterator[tuple[str, Tensor]]:
    yield "full rows", torch.full((batch,), topk)
    yield "random lengths from 0", torch.randint(0, topk + 1, (batch,), generator=generator)
    yield "lengths of 0", torch.zeros(batch, dtype=torch.int64)
    yield "lengths of 1", torch.ones(batch, dtype=torch.int64)
    mixed = torch.randint(0, topk + 1, (batch,), generator=generator)
    mixed[0], mixed[-1] = 0, topk
    yield "first 0, last full", mixed
    edges = torch.tensor([63, 64, 65, 127, 128, 129])
    yield "block edges", edges.repeat(-(-batch // 6))[:batch]


def _case(name: str, lengths: Tensor, parts: int, expected: dict[str, Any] | None = None, **options: Any) -> Case:
    inputs: dict[str, Any] = {
        "lengths": lengths.int(),
        "meta": torch.full((parts, 8), -7, dtype=torch.int32),
        "num_splits": torch.full((len(lengths) + 1,), -7, dtype=torch.int32),
        **options,
    }
    return Case(name, inputs, expected or {})


def _known() -> Iterator[Case]:
    eight = [(0, 0, part, part + 1, part, 1, 1) for part in range(8)]
    for parts in (152, 25):
        yield _golden(f"N4.6: 512 over {parts} parts", [512], parts, [0, 8], eight, (1, 0, 0, 8, 0, 0, 0))
    pairs = [(0, 0, 2 * part, 2 * part + 2, part, 1, 1) for part in range(16)]
    yield _golden("N4.6: 2048 over 25 parts", [2048], 25, [0, 16], pairs, (1, 0, 0, 32, 0, 0, 0))
    shifted = [(0, 0, 0, 1, 0, 0, 0), *((1, 1, part, part + 1, part, 1, 1) for part in range(8))]
    yield _golden("N4.6: 0 and 512 over 25 parts", [0, 512], 25, [0, 1, 9], shifted, (2, 1, 0, 8, 0, 0, 0))
    three = [(0, 0, 0, 3, 0, 0, 0), (1, 1, 0, 1, 0, 0, 0), (2, 2, 0, 1, 0, 0, 0)]
    yield _golden("N4.6: 130, 64 and 1 over 4 parts", [130, 64, 1], 4, [0, 1, 2, 3], three, (3, 2, 0, 1, 0, 0, 0))
    for main, extra, splits in ((100, 300, 7), (128, 512, 10)):
        single = [(0, 0, part, part + 1, part, 1, 1) for part in range(splits)]
        idle = (1, 0, 0, splits, 0, 0, 0)
        options = {"extra_lengths": torch.tensor([extra], dtype=torch.int32), "extra_topk": 512}
        yield _golden(f"N4.6: {main} and {extra} more", [main], 25, [0, splits], single, idle, **options)


def _golden(
    name: str, lengths: list[int], parts: int, splits: list[int], active: Sequence[Record], idle: Record, **options: Any
) -> Case:
    records = [*active, *[idle] * (parts - len(active))]
    expected = {
        "meta": torch.tensor([[*record, 0] for record in records], dtype=torch.int32),
        "num_splits": torch.tensor(splits, dtype=torch.int32),
    }
    return _case(name, torch.tensor(lengths), parts, expected, **options)
