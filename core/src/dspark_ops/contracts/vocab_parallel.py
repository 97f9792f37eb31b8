"""Argmax of logits that are spread over tensor-parallel ranks: 16 bytes per row and rank instead of the shards.

Each rank reduces its own columns, the pairs are gathered, and every rank reduces the pairs to the same ids::

    pairs = ops.argmax_vocab_parallel_local(logits, rank)           # int64 [2, R]
    gathered = all_gather(pairs)                                    # int64 [ranks, 2, R], by whatever moves memory here
    ids = ops.argmax_vocab_parallel(gathered)                       # int64 [R]

The gather is the caller's, because a kernel's signature has tensors and plain values only.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from dspark_ops._lazy import torch
from dspark_ops.contracts.argmax import ARGMAX_ROWS, argmax_rows
from dspark_ops.contracts.contract import Argument, Case, Contract, Option, Output, Site
from dspark_ops.contracts.exactness import bitwise
from dspark_ops.errors import ContractError

if TYPE_CHECKING:
    from torch import Tensor

    from dspark_ops.contracts.model_shapes import ModelShapes

_NO_INDEX = 2**63 - 1


def argmax_vocab_parallel_local(logits: Tensor, rank: int = 0, valid_cols: int = -1) -> Tensor:
    """Return the best value of each row of this rank's columns, and its index in the whole vocabulary.

    The order is that of `argmax_rows`: a NaN before every number, then the larger value, then the lower index.

    Args:
        logits: [R, C] float32, bfloat16 or float16, unit column stride.
        rank: this rank; its column i is token ``rank * C + i``.
        valid_cols: columns that are tokens; those behind are padding and are ignored. -1: all.

    Returns:
        [2, R] int64. First the value: the bits of its float32 form, extended with zeros; a NaN is 0x7FC00000 and a zero
        is +0, so that equal rows have equal bits. Then the index. Without a valid column: -inf, and the largest int64,
        which loses to every index.

    Raises:
        ContractError: a negative rank, or `valid_cols` is not -1 to C.

    Source: A11.
    """
    rows, columns = logits.shape
    if rank < 0 or not -1 <= valid_cols <= columns:
        raise ContractError(
            f"argmax_vocab_parallel_local: rank {rank}, valid_cols {valid_cols}: wanted a rank of 0 or more, and "
            f"valid_cols of -1 (all) to {columns}"
        )
    count = columns if valid_cols < 0 else valid_cols
    if count == 0:
        value = torch.full((rows,), -torch.inf, device=logits.device)
        index = torch.full((rows,), _NO_INDEX, device=logits.device)
    else:
        local = argmax_rows(logits[:, :count])
        value = logits.gather(1, local.unsqueeze(1)).squeeze(1).float()
        index = local + rank * columns
    # adding +0 makes a zero positive; the NaN comes last, since an addition may give it other bits
    value = value + 0.0
    value = torch.where(value.isnan(), torch.nan, value)
    return torch.stack((value.view(torch.int32).long() & 0xFFFFFFFF, index))


def argmax_vocab_parallel(pairs: Tensor) -> Tensor:
    """Return the token id of each row from the pairs of all ranks: what `argmax_rows` gives for the whole row.

    Args:
        pairs: [P, 2, R] int64, what `argmax_vocab_parallel_local` gave on each rank, in any order. Any NaN bits count
            as NaN, and either zero as 0.

    Returns:
        [R] int64, the same on every rank. 0 if no rank had a valid column.

    Source: A11.
    """
    low = (pairs[:, 0] << 32) >> 32
    value, index = low.int().view(torch.float32), pairs[:, 1]
    nan = value.isnan()
    best = value == torch.where(nan, -torch.inf, value).amax(0)
    wins = torch.where(nan.any(0), nan, best)
    first = torch.where(wins, index, _NO_INDEX).amin(0)
    return torch.where(first == _NO_INDEX, 0, first)


def _local_cases(scale: str, seed: int) -> Iterator[Case]:
    for case in ARGMAX_ROWS.cases(scale, seed):
        logits = case.inputs["x"]
        yield Case(f"{case.name}, first rank", {"logits": logits})
        yield Case(f"{case.name}, rank 3", {"logits": logits, "rank": 3})
        columns = logits.shape[1]
        for valid in sorted({0, 1, columns // 2, columns - 1}):
            yield Case(f"{case.name}, {valid} valid columns", {"logits": logits, "rank": 1, "valid_cols": valid})
    strange = torch.tensor([[0x7FFFFFFF, -1, 0], [0, -(2**31), 0], [-(2**31), 0, 0]], dtype=torch.int32)
    expected = {"output": torch.tensor([[0x7FC00000, 0, 0], [30, 30, 30]])}
    yield Case("NaN bits and signed zeros", {"logits": strange.view(torch.float32), "rank": 10}, expected)


def _cases(scale: str, seed: int) -> Iterator[Case]:
    generator = torch.Generator().manual_seed(seed)
    shard, row_counts = (37, (0, 1, 24)) if scale == "small" else (32320, (1, 24, 192))
    for ranks in (1, 2, 3, 4, 8):
        for rows in row_counts:
            for coarse in (False, True):
                logits = torch.randn(rows, ranks * shard, generator=generator)
                logits = logits.round() if coarse else logits
                pairs = _gathered(logits, ranks, shard - 5)
                name = f"{ranks} ranks, {rows} rows{', many ties' if coarse else ''}"
                yield Case(name, {"pairs": pairs})
                yield Case(f"{name}, ranks out of order", {"pairs": pairs.flip(0)})
        whole, wanted = special_rows(ranks * 8)
        expected = {"output": torch.tensor(wanted)}
        yield Case(f"{ranks} ranks, special rows", {"pairs": _gathered(whole, ranks, 8)}, expected)
        nothing = _gathered(torch.zeros(3, ranks * 4), ranks, 4)
        nothing[:, 0], nothing[:, 1] = 0xFF800000, _NO_INDEX
        yield Case(f"{ranks} ranks without a column", {"pairs": nothing}, {"output": torch.tensor([0, 0, 0])})
    bits = torch.tensor([[[0x80000000], [9]], [[0], [12]], [[0x7FFFFFFF], [30]], [[0xFFC00001], [20]]])
    yield Case("foreign NaN bits", {"pairs": bits}, {"output": torch.tensor([20])})
    yield Case("a negative zero equals a positive one", {"pairs": bits[:2]}, {"output": torch.tensor([9])})


def _gathered(logits: Tensor, ranks: int, last_valid: int) -> Tensor:
    """Return the pairs of all ranks; the last has `last_valid` columns that are tokens."""
    shards = logits.chunk(ranks, 1)
    valid = [-1] * (ranks - 1) + [last_valid]
    return torch.stack([argmax_vocab_parallel_local(shards[rank], rank, valid[rank]) for rank in range(ranks)])


def special_rows(columns: int) -> tuple[Tensor, list[int]]:
    """Return rows with NaN, infinities, ties and signed zeros at both ends, and the index that each must give."""
    nan, inf, last = float("nan"), float("inf"), columns - 1
    plain = torch.arange(columns).float() % 5
    edits: list[tuple[dict[int, float], float | None, int]] = [
        ({1: nan, last: nan}, None, 1), ({last: nan}, None, last), ({0: inf, last: nan}, None, last),
        ({}, nan, 0), ({}, -inf, 0), ({last: -5.0}, -inf, last), ({2: 9.0, last: 9.0}, None, 2),
        ({0: inf, last: inf}, None, 0), ({}, 0.0, 0), ({0: -0.0, last: 0.0}, -1.0, 0), ({1: 0.0, last: -0.0}, -1.0, 1),
    ]  # fmt: skip
    rows = []
    for values, background, _ in edits:
        row = plain.clone() if background is None else torch.full((columns,), background)
        for column, value in values.items():
            row[column] = value
        rows.append(row)
    return torch.stack(rows), [wanted for _, _, wanted in edits]


def _local_sites(shapes: ModelShapes) -> tuple[Site, ...]:
    axes, strides = {"C": shapes.vocab_shard}, {"logits": "unit_last"}
    return Site("verify", axes=axes, strides=strides), Site("draft", axes=axes, strides=strides)


def _sites(shapes: ModelShapes) -> tuple[Site, ...]:
    return Site("verify", axes={"P": shapes.ranks}), Site("draft", axes={"P": shapes.ranks})


ARGMAX_VOCAB_PARALLEL_LOCAL = Contract(
    name="argmax_vocab_parallel_local",
    summary="Best value and token of each row of one rank's logits.",
    source="A11",
    phases=("verify", "draft"),
    parameters=(
        Argument("logits", ("R", "C"), ("float32", "bfloat16", "float16"), strides="unit_last", doc="one shard"),
        Option("rank", "int", 0, doc="this rank"),
        Option("valid_cols", "int", -1, doc="columns that are tokens; -1 = all"),
    ),
    outputs=(Output("output", (2, "R"), "int64", bitwise(), "float32 bits of the value, then the token"),),
    rows="R",
    reference=argmax_vocab_parallel_local,
    cases=_local_cases,
    sites=_local_sites,
    semantics=ARGMAX_ROWS.semantics,
)

ARGMAX_VOCAB_PARALLEL = Contract(
    name="argmax_vocab_parallel",
    summary="Greedy token id of each row, from the best values of all ranks.",
    source="A11",
    phases=("verify", "draft"),
    parameters=(Argument("pairs", ("P", 2, "R"), ("int64",), doc="gathered values and tokens"),),
    outputs=(Output("output", ("R",), "int64", bitwise(), "token id per row"),),
    rows="R",
    reference=argmax_vocab_parallel,
    cases=_cases,
    sites=_sites,
    semantics=ARGMAX_ROWS.semantics,
    small=True,
)

CONTRACTS = (ARGMAX_VOCAB_PARALLEL_LOCAL, ARGMAX_VOCAB_PARALLEL)
