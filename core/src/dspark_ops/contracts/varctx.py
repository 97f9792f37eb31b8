"""Work list of the paged index logits: which chunk of which request each program computes, for ragged contexts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from dspark_ops._lazy import torch
from dspark_ops.contracts.contract import Argument, Case, Contract, Option, Output, Site
from dspark_ops.contracts.exactness import bitwise
from dspark_ops.contracts.values import between
from dspark_ops.errors import ContractError

if TYPE_CHECKING:
    from torch import Tensor

    from dspark_ops.contracts.model_shapes import ModelShapes


def varctx_schedule(
    context_lens: Tensor, block_k: int, programs: int, max_seq_len: int, next_n: int = 1
) -> tuple[Tensor, Tensor]:
    """Return how many chunks a program computes at most, and the chunks of each program.

    A context of c tokens is ``ceil(c / block_k)`` chunks. The most chunks of a program, `safe`, is the least number
    up to ``ceil(max_seq_len / block_k)`` (at least 1) with which all requests fit the programs; if there is none, which
    takes a context longer than `max_seq_len`, it is the chunks of the longest request. A slot is `next_n` programs in
    a row that compute the same chunks, one for each query row of the request. Requests take slots in their order, each
    as many as it needs; one without context takes none.

    Args:
        context_lens: [B] int32, tokens of each request, not negative.
        block_k: tokens of a chunk.
        programs: number of programs P, a multiple of `next_n`, at least ``B * next_n``.
        max_seq_len: tokens of the longest context, an upper bound that the host knows.
        next_n: query rows of a request.

    Returns:
        safe: [1] int32.
        cta_info: [P, 4] int32, for each program the query row ``b * next_n + n``, its first chunk, its number of
            chunks, and the tokens of the request. A program without work has ``[0, 0, 1, 0]``: one chunk of a context
            without tokens, for which it stores nothing.

    Raises:
        ContractError: `programs` is too small or no multiple of `next_n`, or a size is not positive.

    Source: A17a. Integers only; nothing is read back to the host.
    """
    batch = context_lens.shape[0]
    if min(block_k, next_n, programs) < 1:
        raise ContractError(
            f"varctx_schedule: wanted positive block_k, next_n and programs, got {block_k}, {next_n} and {programs}"
        )
    if programs % next_n or programs < batch * next_n:
        raise ContractError(
            f"varctx_schedule: wanted programs in multiples of {next_n} and at least {batch * next_n} for {batch} "
            f"requests of {next_n} rows, got {programs}"
        )
    slots = programs // next_n
    chunks = (context_lens.long() + block_k - 1) // block_k
    most = max(1, -(-max_seq_len // block_k))
    safe = _least_that_fits(chunks, slots, most)

    taken = (chunks + safe - 1) // safe
    end = taken.cumsum(0)
    slot = torch.arange(slots, device=chunks.device)
    request = torch.searchsorted(end, slot, right=True)
    busy = request < batch
    # Slots without work look up a request of no chunks behind the last one.
    chunks, begin, context = (
        torch.nn.functional.pad(item, (0, 1)) for item in (chunks, end - taken, context_lens.long())
    )
    start = torch.where(busy, (slot - begin[request]) * safe, 0)
    count = torch.where(busy, (chunks[request] - start).clamp(min=0).minimum(safe), 1)
    row = torch.where(busy, request * next_n, 0)
    rows = row[:, None] + torch.where(busy[:, None], torch.arange(next_n, device=chunks.device), 0)
    same = (item[:, None].expand(slots, next_n) for item in (start, count, context[request]))
    return safe.int(), torch.stack([rows, *same], -1).reshape(programs, 4).int()


def _least_that_fits(chunks: Tensor, slots: int, most: int) -> Tensor:
    """Return the least s in 1..most for which requests of `chunks` fit the slots, else the most chunks; [1] int64.

    The slots needed never grow with s, so it is found by halving an interval a number of times that the host knows.
    """

    def fits(s: Tensor) -> Tensor:
        return ((chunks + s - 1) // s).sum(0, keepdim=True) <= slots

    low, high = chunks.new_ones(1), chunks.new_full((1,), most)
    for _ in range(most.bit_length()):
        middle = (low + high) // 2
        enough = fits(middle)
        low, high = torch.where(enough, low, middle + 1).minimum(high), torch.where(enough, middle, high)
    longest = torch.nn.functional.pad(chunks, (0, 1), value=1).amax(0, keepdim=True)
    return torch.where(fits(high), high, longest)


def _cases(scale: str, seed: int) -> Iterator[Case]:
    yield from _known()
    generator = torch.Generator().manual_seed(seed)
    block_k, longest = (16, 300) if scale == "small" else (256, 65536)
    for batch in (1, 4, 24, 37) if scale == "small" else (1, 4, 24, 32, 37, 128):
        for next_n in (1, 2, 6):
            lens = torch.randint(0, longest + 1, (batch,), generator=generator)
            full = batch * next_n * -(-longest // block_k)
            for what, programs in (("one each", batch * next_n), ("a few", 4 * batch * next_n), ("all", full)):
                name = f"{batch} requests, {next_n} rows, {what} programs"
                yield _case(f"random, {name}", lens, block_k, programs, longest, next_n)
                yield _case(f"no context, {name}", lens * 0, block_k, programs, longest, next_n)
                huge = torch.cat([lens[:-1].clamp(max=3), torch.tensor([longest])])
                yield _case(f"one long request, {name}", huge, block_k, programs, longest, next_n)
                beyond = torch.cat([torch.tensor([9 * longest]), lens[1:]])
                yield _case(f"longer than the bound, {name}", beyond, block_k, programs, longest, next_n)
    yield _case("no requests", lens[:0], block_k, 3, longest, 1)


def _known() -> Iterator[Case]:
    first = [[0, 0, 1, 1], [1, 0, 2, 600], [1, 2, 1, 600], [3, 0, 2, 1024], [3, 2, 2, 1024], [0, 0, 1, 0]]
    yield _golden("A17a: four requests", [1, 600, 0, 1024], 6, 2048, 1, 2, first)
    # two chunks a program would do, but the bound says that no request has more than one
    long = [[0, 0, 4, 1024], [1, 0, 1, 256], [0, 0, 1, 0]]
    yield _golden("a context of four chunks where the bound is one", [1024, 256], 3, 256, 1, 4, long)
    rows = [[0, 0, 1, 300], [1, 0, 1, 300], [0, 1, 1, 300], [1, 1, 1, 300], [2, 0, 1, 5], [3, 0, 1, 5]]
    yield _golden("A17a: two rows a request", [300, 5], 8, 512, 2, 1, [*rows, [0, 0, 1, 0], [0, 0, 1, 0]])


def _golden(
    name: str, lens: list[int], programs: int, longest: int, next_n: int, safe: int, rows: list[list[int]]
) -> Case:
    expected = {
        "safe": torch.tensor([safe], dtype=torch.int32), "cta_info": torch.tensor(rows, dtype=torch.int32),
    }  # fmt: skip
    return _case(name, torch.tensor(lens), 256, programs, longest, next_n, expected)


def _case(
    name: str,
    lens: Tensor,
    block_k: int,
    programs: int,
    longest: int,
    next_n: int,
    expected: dict[str, Any] | None = None,
) -> Case:
    inputs = {
        "context_lens": lens.int(), "block_k": block_k, "programs": programs, "max_seq_len": longest, "next_n": next_n,
    }  # fmt: skip
    return Case(name, inputs, expected or {})


def _sites(shapes: ModelShapes) -> tuple[Site, ...]:
    # Behind the uniform expansion of a verify step every query row is a request of its own.
    return (Site("verify", options={"block_k": 256, "next_n": 1}),)


VARCTX_SCHEDULE = Contract(
    name="varctx_schedule",
    summary="Chunks of ragged contexts, dealt out to the programs of the index logits.",
    source="A17a",
    phases=("verify",),
    parameters=(
        Argument("context_lens", ("B",), ("int32",), doc="tokens of each request", values=between(0, None)),
        Option("block_k", "int", doc="tokens of a chunk"),
        Option("programs", "int", doc="number of programs"),
        Option("max_seq_len", "int", doc="tokens of the longest context"),
        Option("next_n", "int", 1, doc="query rows of a request"),
    ),
    outputs=(
        Output("safe", (1,), "int32", bitwise(), "most chunks of a program"),
        Output("cta_info", ("P", 4), "int32", bitwise(), "query row, first chunk, chunks, tokens of each program"),
    ),
    rows="B",
    reference=varctx_schedule,
    cases=_cases,
    sites=_sites,
    sizes={"P": "programs"},
    empty="returns programs without work",
)

CONTRACTS = (VARCTX_SCHEDULE,)
