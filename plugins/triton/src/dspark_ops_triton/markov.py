"""Portable ``markov_block`` for the vanilla head: a launch per draft, two where drafts are drawn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from dspark_ops_triton.blocks.arrival import ArrivalState
from dspark_ops_triton.blocks.drafting import draw_kernel, slot_kernel
from dspark_ops_triton.blocks.row_argmax import unit_count

#: Values of a row that the draw has in hand at a time, and the threads that share them.
DRAW_BLOCK = 4096
DRAW_THREADS = 512
#: Rows that a program holds at most where it also stores their logits.
KEPT_ROWS = 32
STEPS = {"float32": tl.float32, "bfloat16": tl.bfloat16, "float16": tl.float16}


@dataclass(frozen=True, slots=True)
class HeadTiles:
    """How the head is cut for one family of devices.

    Attributes:
        tokens: rows of the head that a program multiplies at a time.
        rank: most columns that the head may have to be multiplied whole, where its values have 16 bits.
        piece: columns that it multiplies at a time otherwise.
        warps: warps (waves on AMD) of a program.
        stages: tiles under way at a time, where a tile is one piece of the head in 16 bits; else 1.
        rows: rows of the block that a program holds at most, a multiple of 16.
        programs_per_unit: programs that a multiprocessor or compute unit should hold at once.
    """

    tokens: int
    rank: int
    piece: int
    warps: int
    stages: int
    rows: int
    programs_per_unit: int


TILES = HeadTiles(tokens=64, rank=256, piece=32, warps=4, stages=2, rows=64, programs_per_unit=2)
AMD_TILES = HeadTiles(tokens=64, rank=256, piece=32, warps=4, stages=2, rows=16, programs_per_unit=2)


class MarkovBlock:
    """``markov_block`` bound to one device, safe to capture, on any number of streams at once.

    The programs that share a row meet at words of memory that this object owns (`ArrivalState`): keep it alive as long
    as graphs that captured it.

    Bytes moved: per draft of a block the head once per 64 rows (32 with a temperature, 16 on AMD), what the cache holds
    of it from the draft before not from memory, and the logits once; with a temperature the laws three times more.
    Launches: G, and 2 * G with a temperature; none for no rows.
    """

    __slots__ = ("_arrivals", "_tiles", "_units")

    def __init__(self, tiles: HeadTiles, units: int, arrivals: ArrivalState) -> None:
        self._tiles = tiles
        self._units = units
        self._arrivals = arrivals

    def __call__(
        self,
        base: Tensor,
        anchor: Tensor,
        embed: Tensor,
        head: Tensor,
        hidden: Tensor | None = None,
        gate_weight: Tensor | None = None,
        gate_bias: Tensor | None = None,
        uniforms: Tensor | None = None,
        temperature: Tensor | None = None,
        kind: str = "vanilla",
        step_dtype: str = "float32",
    ) -> tuple[Tensor, Tensor | None]:
        """Return the drafts of a block and, if a temperature is given, the laws they were drawn from.

        Args:
            base: [R, G, V] float32, last stride 1.
            anchor: [R] int64; ids outside the table read its nearest row.
            embed: [V, M] bfloat16 or float32, contiguous.
            head: [V, M] bfloat16 or float32, contiguous.
            hidden: not read.
            gate_weight: not read.
            gate_bias: not read.
            uniforms: [R, G] float32, required with a temperature.
            temperature: [R] float32, or None: every row is greedy.
            kind: ``vanilla``.
            step_dtype: ``float32``, ``bfloat16`` or ``float16``.

        Returns:
            drafts [R, G] int64, and probs [R, G, V] float32 or None.

        Raises:
            ValueError: another kind or step dtype, or a temperature without uniforms.

        Source: C1.6, C1.7.
        """
        if kind != "vanilla" or step_dtype not in STEPS or (temperature is not None and uniforms is None):
            wanted = f"kind vanilla, step_dtype {', '.join(STEPS)}, and uniforms with a temperature"
            raise ValueError(f"markov_block: wanted {wanted}, got kind {kind!r} and step_dtype {step_dtype!r}")
        rows, gamma, vocab = base.shape
        drafts = torch.empty(rows, gamma, dtype=torch.int64, device=base.device)
        probs = None if temperature is None else torch.empty(base.shape, dtype=torch.float32, device=base.device)
        if not rows or not gamma:
            return drafts, probs
        exact = not embed.dtype == head.dtype == torch.bfloat16
        constants = launch_constants(self._tiles, rows, vocab, embed.shape[1], step_dtype, exact, probs is not None)
        groups = triton.cdiv(rows, constants["ROWS"])
        programs = min(triton.cdiv(vocab, constants["TOKENS"]), self._units * self._tiles.programs_per_unit)
        state = self._arrivals.take(rows, base)
        previous = anchor
        for slot in range(gamma):
            law = base if probs is None else probs[:, slot]
            slot_kernel[(programs, groups)](
                base[:, slot], previous, embed, head, drafts[:, slot], law, state,
                rows, base.stride(0), previous.stride(0), gamma, law.stride(0), embed.shape[0] - 1, slot % 2,
                **constants, **launch_options(self._tiles, constants),
            )  # fmt: skip
            previous = drafts[:, slot]
            if temperature is not None and uniforms is not None:
                draw_kernel[(rows,)](
                    law, previous, uniforms[:, slot], temperature, law.stride(0), gamma, uniforms.stride(0),
                    **draw_constants(vocab), **draw_options(torch.version.hip is not None),
                )  # fmt: skip
        return drafts, probs


def launch_constants(
    tiles: HeadTiles, rows: int, vocab: int, rank: int, step_dtype: str, exact: bool, keep: bool
) -> dict[str, Any]:
    """Return the compile-time arguments of a launch for one slot."""
    whole = max(16, triton.next_power_of_2(rank))
    block = min(whole, tiles.piece) if exact or whole > tiles.rank else whole
    # A head in pieces, or of float32, leaves no registers for more rows.
    most = tiles.rows if block >= rank and not exact else 16
    if keep:  # the addresses of the laws' rows need registers, too
        most = min(most, KEPT_ROWS)
    return {
        "VOCAB": vocab, "RANK": rank, "RANK_BLOCK": block, "TOKENS": tiles.tokens,
        "ROWS": min(most, max(16, triton.next_power_of_2(rows))),
        "STEP": STEPS[step_dtype], "EXACT": exact, "KEEP": keep,
    }  # fmt: skip


def launch_options(tiles: HeadTiles, constants: Mapping[str, Any]) -> dict[str, Any]:
    """Return the compiler options of a launch for one slot."""
    whole = not constants["EXACT"] and constants["RANK_BLOCK"] >= constants["RANK"]
    return {"num_warps": tiles.warps, "num_stages": tiles.stages if whole else 1, "enable_fp_fusion": False}


def draw_constants(vocab: int) -> dict[str, Any]:
    """Return the compile-time arguments of a draw."""
    return {"VOCAB": vocab, "BLOCK": min(DRAW_BLOCK, triton.next_power_of_2(vocab))}


def draw_options(amd: bool) -> dict[str, Any]:
    """Return the compiler options of a draw."""
    return {"num_warps": DRAW_THREADS // (64 if amd else 32), "enable_fp_fusion": False}


def markov_block(
    base: Tensor,
    anchor: Tensor,
    embed: Tensor,
    head: Tensor,
    hidden: Tensor | None = None,
    gate_weight: Tensor | None = None,
    gate_bias: Tensor | None = None,
    uniforms: Tensor | None = None,
    temperature: Tensor | None = None,
    kind: str = "vanilla",
    step_dtype: str = "float32",
) -> tuple[Tensor, Tensor | None]:
    """Return what `MarkovBlock` returns; unprepared, a launch that zeroes 32 bytes per row comes before the others.

    Source: C1.6, C1.7.
    """
    tiles = AMD_TILES if torch.version.hip else TILES
    block = MarkovBlock(tiles, unit_count(base.device), ArrivalState(0, base.device))
    return block(
        base, anchor, embed, head, hidden, gate_weight, gate_bias, uniforms, temperature, kind, step_dtype
    )  # fmt: skip


def prepare_markov_block(device: Any, site: Any, rows: Sequence[int]) -> MarkovBlock:
    """Return `markov_block` with its memory allocated, compiled for the site's sizes with and without temperatures."""
    target = torch.device("cpu" if device.arch.vendor == "cpu" else "cuda")
    tiles = AMD_TILES if device.arch.vendor == "amd" else TILES
    most = max(rows, default=0)
    bound = MarkovBlock(tiles, device.units or unit_count(target), ArrivalState(most, target))
    if target.type == "cuda":
        vocab, rank = site.axes["V"], site.axes["M"]
        embed, head = (
            torch.zeros(vocab, rank, dtype=getattr(torch, site.dtypes.get(name, "bfloat16")), device=target)
            for name in ("embed", "head")
        )
        step = site.options.get("step_dtype", "float32")
        most = max(rows, default=1)
        for count in sorted({min(most, block) for block in (16, KEPT_ROWS, most)}):
            base = torch.zeros(count, 1, vocab, dtype=torch.float32, device=target)
            anchor, heat = torch.zeros(count, dtype=torch.int64, device=target), torch.ones(count, device=target)
            for hot in (None, heat):
                bound(base, anchor, embed, head, None, None, None, heat.unsqueeze(1), hot, "vanilla", step)
    return bound
