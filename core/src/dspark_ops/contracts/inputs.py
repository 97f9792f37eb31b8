"""Inputs of the draft and verify forwards: flat ids, positions, cache slots and lengths."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from dspark_ops._lazy import torch
from dspark_ops.contracts.contract import Argument, Case, Contract, Option, Output, Site
from dspark_ops.contracts.exactness import bitwise
from dspark_ops.errors import ContractError

if TYPE_CHECKING:
    from torch import Generator, Tensor

    from dspark_ops.contracts.model_shapes import ModelShapes

_NOISE = 128799


def draft_inputs(bonus: Tensor, positions: Tensor, cache_loc: Tensor, draft_ids: Tensor) -> tuple[Tensor, Tensor]:
    """Put each request's anchor into its block of ids, and return the flat positions and cache slots of the blocks.

    Args:
        bonus: [B] int64, any stride; the token that the last verify step ended with.
        positions: [B, at least Q] int64, any strides.
        cache_loc: [B, at least Q] int64, any strides.
        draft_ids: [B, Q] int64; column 0 is written. The other columns hold the noise token since the buffer was made,
            and whoever makes it larger fills it again: a token left there would enter the draft.

    Returns:
        positions_out: [B * Q] int64, column j of request r at ``r * Q + j``; new memory.
        cache_out: [B * Q] int64, likewise.

    Raises:
        ContractError: `positions` or `cache_loc` is narrower than `draft_ids`, or that has no column.

    Source: A12.
    """
    width = draft_ids.shape[1]
    widths = {"positions": positions.shape[1], "cache_loc": cache_loc.shape[1]}
    if width < 1 or min(widths.values()) < width:
        got = ", ".join(f"{name} has {columns}" for name, columns in widths.items())
        raise ContractError(
            f"draft_inputs: {got} columns: wanted at least those of draft_ids, {width}, and one or more"
        )
    draft_ids[:, 0] = bonus
    return _flat(positions, width), _flat(cache_loc, width)


def verify_inputs(ids: Tensor, positions: Tensor, cache_loc: Tensor, width: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return the first `width` columns of each argument, flat, request after request.

    Args:
        ids: [B, W] int64, any strides; anchor and drafts.
        positions: [B, W] int64, any strides.
        cache_loc: [B, W] int64, any strides.
        width: rows per request that this step verifies, 1 to W.

    Returns:
        Three [B * width] int64 in new memory: ids, positions, cache slots.

    Raises:
        ContractError: shapes differ, or `width` is not in 1 to W.

    Source: A12.
    """
    if not ids.shape == positions.shape == cache_loc.shape:
        got = ", ".join(str(list(item.shape)) for item in (ids, positions, cache_loc))
        raise ContractError(f"verify_inputs: ids, positions and cache_loc have shapes {got}: wanted equal ones")
    if not 1 <= width <= ids.shape[1]:
        raise ContractError(f"verify_inputs: width is {width}: wanted 1 to {ids.shape[1]}, the columns that there are")
    return _flat(ids, width), _flat(positions, width), _flat(cache_loc, width)


def expand_uniform(
    seq_lens: Tensor, request_indices: Tensor, width: int, padded_rows: int = 0
) -> tuple[Tensor, Tensor]:
    """Return for each verify row how far it sees and which request it belongs to.

    Row j of request r sees ``seq_lens[r] - width + 1 + j`` positions, itself included. Padded rows see 1 position and
    belong to the last request.

    Args:
        seq_lens: [B] int32 or int64, lengths that include the `width` rows of this step.
        request_indices: [B] int32 or int64.
        width: rows per request.
        padded_rows: rows of the result; 0: B * width, no padding.

    Returns:
        causal_lens: [N] int32, N = padded_rows or B * width. Without a request N is 0, whatever `padded_rows` says.
        request_rows: [N] of `request_indices`' dtype.

    Raises:
        ContractError: `width` is below 1, or `padded_rows` is neither 0 nor at least B * width.

    Source: A3.
    """
    requests = len(seq_lens)
    if width < 1 or (padded_rows != 0 and padded_rows < requests * width):
        raise ContractError(
            f"expand_uniform: width {width}, padded_rows {padded_rows}: wanted a width of 1 or more, and padded_rows "
            f"of 0 or at least {requests} * width"
        )
    if not requests:
        return seq_lens.new_empty(0, dtype=torch.int32), request_indices.new_empty(0)
    offsets = torch.arange(1 - width, 1, device=seq_lens.device)
    lens = (seq_lens.unsqueeze(1) + offsets).int().view(-1)
    owners = request_indices.repeat_interleave(width)
    padding = max(padded_rows - len(lens), 0)
    return torch.cat((lens, lens.new_ones(padding))), torch.cat((owners, owners[-1:].expand(padding)))


def _flat(columns: Tensor, width: int) -> Tensor:
    # a clone: reshape alone would hand out the caller's memory where it happens to be contiguous
    return columns[:, :width].clone(memory_format=torch.contiguous_format).view(-1)


def _grid(generator: Generator, rows: int, columns: int, form: str) -> Tensor:
    """Return random numbers in the named memory form: plain, columns of a wider buffer, or transposed."""
    high = 2**40
    if form == "wide":
        return torch.randint(high, (rows, columns + 5), generator=generator)[:, 2 : columns + 2]
    if form == "transposed":
        return torch.randint(high, (columns, rows), generator=generator).T
    return torch.randint(high, (rows, columns), generator=generator)


def _draft_cases(scale: str, seed: int) -> Iterator[Case]:
    generator = torch.Generator().manual_seed(seed)
    for rows in (0, 1, 5, 32) if scale == "small" else (1, 8, 32, 256):
        for block, extra in ((1, 0), (5, 0), (5, 3), (7, 1)):
            for form in ("plain", "wide", "transposed"):
                draft_ids = torch.full((rows, block), _NOISE)
                draft_ids[:, 0] = -7
                bonus = _grid(generator, rows, 3, form)[:, 1]
                inputs = {
                    "bonus": bonus.clone() if form == "plain" else bonus,
                    "positions": _grid(generator, rows, block + extra, form),
                    "cache_loc": _grid(generator, rows, block + extra, form), "draft_ids": draft_ids,
                }  # fmt: skip
                yield Case(f"{rows} requests, {block} of {block + extra} columns, {form}", inputs)
    yield Case(
        "known values",
        {
            "bonus": torch.tensor([4, 0]), "positions": torch.tensor([[10, 11, 12], [20, 21, 22]]),
            "cache_loc": torch.tensor([[7, 3, 5], [0, 1, 2]]), "draft_ids": torch.tensor([[9, _NOISE], [9, _NOISE]]),
        },
        {
            "positions_out": torch.tensor([10, 11, 20, 21]), "cache_out": torch.tensor([7, 3, 0, 1]),
            "draft_ids": torch.tensor([[4, _NOISE], [0, _NOISE]]),
        },
    )  # fmt: skip


def _verify_cases(scale: str, seed: int) -> Iterator[Case]:
    generator = torch.Generator().manual_seed(seed)
    for rows in (0, 1, 5, 32) if scale == "small" else (1, 8, 32, 256):
        for columns in (1, 6, 8):
            for width in sorted({1, 2, 3, columns} & set(range(1, columns + 1))):
                for form in ("plain", "wide", "transposed"):
                    names = ("ids", "positions", "cache_loc")
                    inputs: dict[str, Any] = {name: _grid(generator, rows, columns, form) for name in names}
                    yield Case(f"{rows} requests, {width} of {columns} columns, {form}", {**inputs, "width": width})


def _expand_cases(scale: str, seed: int) -> Iterator[Case]:
    generator = torch.Generator().manual_seed(seed)
    for rows in (1, 2, 8, 33) if scale == "small" else (1, 8, 32, 257):
        for width in (1, 2, 3, 6, 8):
            for dtype in (torch.int32, torch.int64):
                lens = torch.randint(width, 2**20, (rows,), generator=generator).to(dtype)
                owners = torch.randint(2**20, (rows,), generator=generator).to(dtype)
                for padding in (None, 0, 1, 40):
                    total = 0 if padding is None else rows * width + padding
                    name = f"{rows} requests of {width}, {padding} padded, {str(dtype).removeprefix('torch.')}"
                    inputs = {"seq_lens": lens, "request_indices": owners, "width": width, "padded_rows": total}
                    yield Case(name, inputs)
            mixed = {"seq_lens": lens.int(), "request_indices": owners.long(), "width": width}
            yield Case(f"{rows} requests of {width}, int32 lengths, int64 requests", mixed)
    yield Case(
        "known values",
        {
            "seq_lens": torch.tensor([10, 3]), "request_indices": torch.tensor([5, 2], dtype=torch.int32), "width": 3,
            "padded_rows": 8,
        },
        {
            "causal_lens": torch.tensor([8, 9, 10, 1, 2, 3, 1, 1], dtype=torch.int32),
            "request_rows": torch.tensor([5, 5, 5, 2, 2, 2, 2, 2], dtype=torch.int32),
        },
    )  # fmt: skip
    none = torch.empty(0, dtype=torch.int64)
    for padded in (0, 16):
        inputs = {"seq_lens": none, "request_indices": none, "width": 6, "padded_rows": padded}
        yield Case(f"no requests, {padded} padded rows", inputs, {"causal_lens": none.int(), "request_rows": none})


def _draft_sites(shapes: ModelShapes) -> tuple[Site, ...]:
    strides = {"bonus": "any", "positions": "any", "cache_loc": "any"}
    return (Site("draft", axes={"Q": shapes.gamma}, strides=strides),)


def _verify_sites(shapes: ModelShapes) -> tuple[Site, ...]:
    strides = {"ids": "any", "positions": "any", "cache_loc": "any"}
    return (Site("verify", axes={"W": shapes.rows_per_request}, strides=strides),)


def _expand_sites(shapes: ModelShapes) -> tuple[Site, ...]:
    return (Site("verify"),)


DRAFT_INPUTS = Contract(
    name="draft_inputs",
    summary="The anchors in the draft blocks, and their flat positions and cache slots.",
    source="A12",
    phases=("draft",),
    parameters=(
        Argument("bonus", ("B",), ("int64",), strides="any", doc="anchor of each request"),
        Argument("positions", ("B", "*"), ("int64",), strides="any", doc="at least Q columns"),
        Argument("cache_loc", ("B", "*"), ("int64",), strides="any", doc="at least Q columns"),
        Argument("draft_ids", ("B", "Q"), ("int64",), written=True, doc="blocks of ids; column 0 is written"),
    ),
    outputs=(
        Output("positions_out", ("B*Q",), "int64", bitwise(), "positions of the blocks"),
        Output("cache_out", ("B*Q",), "int64", bitwise(), "cache slots of the blocks"),
        Output("draft_ids", ("B", "Q"), "int64", bitwise(), "anchor, then what was there"),
    ),
    rows="B",
    reference=draft_inputs,
    cases=_draft_cases,
    sites=_draft_sites,
    small=True,
)

VERIFY_INPUTS = Contract(
    name="verify_inputs",
    summary="Flat ids, positions and cache slots of the rows that a step verifies.",
    source="A12",
    phases=("verify",),
    parameters=(
        Argument("ids", ("B", "W"), ("int64",), strides="any", doc="anchor and drafts"),
        Argument("positions", ("B", "W"), ("int64",), strides="any", doc="their positions"),
        Argument("cache_loc", ("B", "W"), ("int64",), strides="any", doc="their cache slots"),
        Option("width", "int", doc="rows per request that this step verifies"),
    ),
    outputs=(
        Output("ids_out", ("*",), "int64", bitwise(), "[B * width] ids"),
        Output("positions_out", ("*",), "int64", bitwise(), "[B * width] positions"),
        Output("cache_out", ("*",), "int64", bitwise(), "[B * width] cache slots"),
    ),
    rows="B",
    reference=verify_inputs,
    cases=_verify_cases,
    sites=_verify_sites,
    small=True,
)

EXPAND_UNIFORM = Contract(
    name="expand_uniform",
    summary="Causal length and request of each verify row, for steps of one width.",
    source="A3",
    phases=("verify",),
    parameters=(
        Argument("seq_lens", ("B",), ("int32", "int64"), doc="lengths, this step's rows included"),
        Argument("request_indices", ("B",), ("int32", "int64"), doc="request of each"),
        Option("width", "int", doc="rows per request"),
        Option("padded_rows", "int", 0, doc="rows of the result; 0 = B * width"),
    ),
    outputs=(
        Output("causal_lens", ("*",), "int32", bitwise(), "positions that a row sees; 1 for padding"),
        Output("request_rows", ("*",), "like request_indices", bitwise(), "request of a row; the last for padding"),
    ),
    rows="B",
    reference=expand_uniform,
    cases=_expand_cases,
    sites=_expand_sites,
    small=True,
)

CONTRACTS = (DRAFT_INPUTS, VERIFY_INPUTS, EXPAND_UNIFORM)
