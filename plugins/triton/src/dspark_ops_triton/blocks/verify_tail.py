"""Argmax, accept and finalise of a verify step in one launch; how rows of logits are cut is data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from dspark_ops_triton.blocks.accepting import commit, leading_run, matches, row_limit, token_at
from dspark_ops_triton.blocks.alignment import stride_unit
from dspark_ops_triton.blocks.arrival import WORDS, ArrivalState
from dspark_ops_triton.blocks.dependent import begin, pdl_option
from dspark_ops_triton.blocks.ordering import packed_column
from dspark_ops_triton.blocks.row_argmax import COLUMN_LIMIT, Tiles, unit_count
from dspark_ops_triton.blocks.row_best import best_of_tiles

STATE_WORDS = tl.constexpr(WORDS)


_NOT_SPECIALIZED = ["row_stride", "candidate_stride", "length_stride", "lens_words"]


_ANY_ALIGNMENT = ["candidates", "prefix_lens", "verify_lens", "accept_lens"]


@triton.jit(do_not_specialize=_NOT_SPECIALIZED, do_not_specialize_on_alignment=_ANY_ALIGNMENT)
def tail_kernel(
    logits, candidates, prefix_lens, verify_lens, accept_lens,
    correct_len, bonus_out, cap_trim, commit_lens, new_seq_lens, out_tokens, state,
    row_stride, candidate_stride, length_stride, lens_words,
    COLUMNS: tl.constexpr, BLOCK: tl.constexpr, STRIDE_UNIT: tl.constexpr,
    ROWS: tl.constexpr, WIDTH: tl.constexpr, FORCED: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Reduce tiles ``split, split + splits, ...`` of one row; the last program of a request finishes it.

    `state` holds STATE_WORDS int64 words per row, 0 at rest: the row's best pair so far, and in the request's first row
    the number of programs that have merged theirs.
    """
    begin(PDL)
    row = tl.program_id(0)
    split = tl.program_id(1)
    splits = tl.num_programs(1)
    start = logits + row.to(tl.int64) * row_stride * STRIDE_UNIT
    pair = best_of_tiles(start, COLUMNS, split, splits, BLOCK)
    request = row // ROWS
    first = state + request.to(tl.int64) * (ROWS * STATE_WORDS)
    tl.atomic_max(state + row.to(tl.int64) * STATE_WORDS, pair, sem="relaxed")
    # The maximum is merged before the arrival is counted: counting releases it, and acquires those of all others.
    arrived = tl.atomic_add(first + 1, 1, sem="acq_rel")
    if arrived == ROWS * splits - 1:
        position = tl.arange(0, WIDTH)
        pairs = tl.atomic_xchg(first + position * STATE_WORDS, tl.zeros((WIDTH,), tl.int64), mask=position < ROWS,
                               sem="relaxed")  # fmt: skip
        tl.store(first + 1, 0)
        one = request + tl.arange(0, 1)
        live = one >= 0
        place = position[None, :]
        target = packed_column(pairs)[None, :]
        held = candidates + request.to(tl.int64) * candidate_stride
        draft = tl.load(held + 1 + place, mask=place < ROWS - 1, other=0)
        limit = row_limit(verify_lens, lens_words, one, live, WIDTH)
        run = leading_run(matches(draft, target), place, ROWS - 1)
        correct = tl.minimum(run, limit)
        bonus = token_at(target, place, correct)
        if FORCED:
            drawn = tl.load(accept_lens + one.to(tl.int64) * length_stride)
            drawn = tl.minimum(tl.maximum(drawn, 1), ROWS) - 1
            run = tl.minimum(drawn, leading_run(draft >= 0, place, ROWS - 1))
            correct = tl.minimum(run, limit)
        tl.store(correct_len + one, correct)
        tl.store(bonus_out + one, bonus)
        tl.store(cap_trim + one, run - correct)
        commit(
            correct, bonus, draft, prefix_lens, commit_lens, new_seq_lens, out_tokens, one, live, place, ROWS - 1
        )  # fmt: skip


class AcceptTail:
    """``accept_tail`` bound to one device: one launch per call, safe to capture, on any number of streams at once.

    The programs of a request meet at words of memory that this object owns (`ArrivalState`): keep it alive as long as
    graphs that captured it.

    Bytes moved: the logits once, 16 per program through atomics, about 40 per request and 16 per row. Launches: 1.
    """

    __slots__ = ("_arrivals", "_tiles", "_units")

    def __init__(self, tiles: Tiles, units: int, arrivals: ArrivalState) -> None:
        self._tiles = tiles
        self._units = units
        self._arrivals = arrivals

    def __call__(
        self, candidates: Tensor, logits: Tensor, prefix_lens: Tensor, verify_lens: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
        """Return all that follows from the logits of a greedy verify step.

        Args:
            candidates: [B, W] int64, anchor and drafts, -1 = no draft; last stride 1.
            logits: [B * W, V] float32, last stride 1.
            prefix_lens: [B] int32 or int64.
            verify_lens: [B] int32 or int64 or None.

        Returns:
            ``(correct_len, bonus, cap_trim, commit_lens, new_seq_lens, out_tokens)``, see `accept_greedy` and
            `accept_finalize`.

        Source: N11.2 to N11.4.
        """
        return self.launch(candidates, logits, prefix_lens, verify_lens, None)

    def launch(
        self,
        candidates: Tensor,
        logits: Tensor,
        prefix_lens: Tensor,
        verify_lens: Tensor | None,
        accept_lens: Tensor | None,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
        """Return the six outputs; with `accept_lens`, the drawn lengths decide what is accepted.

        Raises:
            ValueError: the last stride of the logits is not 1, or a row is empty or wider than 2**30.
        """
        requests, width = candidates.shape
        rows, columns = logits.shape
        if (logits.stride(1) != 1 and columns > 1) or not 0 < columns <= COLUMN_LIMIT:
            wanted = f"logits with last stride 1 and 1 to {COLUMN_LIMIT} columns"
            got = f"strides {logits.stride()} and shape {tuple(logits.shape)}"
            raise ValueError(f"accept_tail: wanted {wanted}, got {got}")
        outputs = empty_outputs(requests, width, prefix_lens)
        if not requests:
            return outputs
        splits = self._tiles.splits(rows, columns, self._units)
        unit = stride_unit(logits)
        words, lens = length_words(verify_lens, outputs[0])
        drawn = outputs[0] if accept_lens is None else accept_lens
        tiles = self._tiles.at(splits, columns)
        tail_kernel[(rows, splits)](
            logits, candidates, prefix_lens, lens, drawn, *outputs, self._arrivals.take(rows, logits),
            logits.stride(0) // unit, candidates.stride(0), drawn.stride(0), words,
            **launch_constants(tiles, columns, unit, width, accept_lens is not None), **launch_options(tiles),
        )  # fmt: skip
        return outputs

    def variants(self) -> list[AcceptTail]:
        """Return this tail, and as it is launched where a program has several tiles."""
        plain = replace(self._tiles, pdl=False)
        return [self] if plain == self._tiles else [self, AcceptTail(plain, self._units, self._arrivals)]


def empty_outputs(
    requests: int, width: int, prefix_lens: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Return memory for the six outputs of a verify tail."""
    device = prefix_lens.device
    lens = [torch.empty(requests, dtype=torch.int32, device=device) for _ in range(3)]
    bonus = torch.empty(requests, dtype=torch.int64, device=device)
    tokens = torch.empty(requests, width, dtype=torch.int64, device=device)
    return lens[0], bonus, lens[1], lens[2], torch.empty_like(prefix_lens), tokens


def length_words(verify_lens: Tensor | None, unused: Tensor) -> tuple[int, Tensor]:
    """Return how many int32 words hold a verify length (0: there are none), and the int32 tensor that holds them.

    An int64 length is read by its low word, so that lengths of both dtypes and no lengths share one build.
    """
    if verify_lens is None:
        return 0, unused
    return verify_lens.element_size() // 4, verify_lens.view(torch.int32)


def launch_constants(tiles: Tiles, columns: int, unit: int, width: int, forced: bool) -> dict[str, Any]:
    """Return the compile-time arguments of a launch."""
    return {
        "COLUMNS": columns, "BLOCK": tiles.block, "STRIDE_UNIT": unit, "ROWS": width,
        "WIDTH": triton.next_power_of_2(width), "FORCED": forced, "PDL": tiles.pdl,
    }  # fmt: skip


def launch_options(tiles: Tiles) -> dict[str, Any]:
    """Return the compiler options of a launch."""
    return {"num_warps": tiles.warps, "enable_fp_fusion": False, **pdl_option(tiles.pdl)}


def bound_tail(tiles: Tiles, device: Any, site: Any, rows: Sequence[int]) -> AcceptTail:
    """Return the tail with memory for the largest number of requests, nothing compiled yet."""
    target = torch.device("cpu" if device.arch.vendor == "cpu" else "cuda")
    words = max(rows, default=0) * site.axes["W"]
    return AcceptTail(tiles, device.units or unit_count(target), ArrivalState(words, target))


def tail_once(tiles: Tiles, device: torch.device) -> AcceptTail:
    """Return the tail with nothing set aside: it zeroes memory at every call."""
    return AcceptTail(tiles, unit_count(device), ArrivalState(0, device))


def prepare_tail(tiles: Tiles, device: Any, site: Any, rows: Sequence[int]) -> AcceptTail:
    """Return the tail as one launch, compiled for the site's sizes and with its memory allocated."""
    tail = bound_tail(tiles, device, site, rows)
    if device.arch.vendor != "cpu":
        warm_up(tail, site.axes["W"], site.axes["V"], False)
    return tail


def warm_up(tail: AcceptTail, width: int, columns: int, forced: bool) -> None:
    """Compile every build that a call may need: rows 16-byte aligned, only the first one, none; both prefix dtypes."""
    for each in tail.variants():
        _warm_up(each, width, columns, forced)


def _warm_up(tail: AcceptTail, width: int, columns: int, forced: bool) -> None:
    row = triton.cdiv(columns, 16) * 16
    buffer = torch.zeros(width * (row + 1) + 1, dtype=torch.float32, device="cuda")
    odd = buffer[1:].view(width, row + 1)
    aligned, first = buffer[: width * row].view(width, row), buffer[:-1].view(width, row + 1)
    candidates = torch.zeros(1, width, dtype=torch.int64, device="cuda")
    prefix = torch.zeros(1, dtype=torch.int64, device="cuda")
    for logits in (aligned, first, odd):
        for lens in (prefix, prefix.int()):
            tail.launch(candidates, logits[:, :columns], lens, None, prefix.int() if forced else None)
