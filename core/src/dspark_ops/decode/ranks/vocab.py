"""Tokens from logits that are spread over ranks: the best value and token of each rank's columns are gathered."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dspark_ops._lazy import torch
from dspark_ops.contracts.argmax import argmax_rows
from dspark_ops.contracts.markov import draft_law
from dspark_ops.decode.ranks.group import RankGroup, joined_columns
from dspark_ops.decode.ranks.shards import Shards
from dspark_ops.decode.v41.geometry import MAX_STEP_ROWS

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["Vocabulary"]


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The vocabulary over the ranks of a group.

    Attributes:
        group: the ranks.
        shards: where each token's column is.
    """

    group: RankGroup
    shards: Shards

    def argmax(self, ops: Any, logits: Tensor) -> Tensor:
        """Return what `argmax_rows` gives for the whole rows, [R] int64, the same on every rank.

        16 bytes per row and rank are gathered (A11), at once for all rows.

        Args:
            ops: bound operators that have both halves of the vocabulary-parallel argmax.
            logits: [R, C] float32, this rank's columns.
        """
        rank = self.group.rank
        taken = self.shards.valid(rank)
        columns = -1 if taken == logits.shape[1] else taken
        # A plan covers so many rows and no more.
        local = [ops.argmax_vocab_parallel_local(part, rank, columns) for part in logits.split(MAX_STEP_ROWS)]
        pairs = self.group.gather(torch.cat(local, 1))
        ids = [ops.argmax_vocab_parallel(part.contiguous()) for part in pairs.split(MAX_STEP_ROWS, 2)]
        return torch.cat(ids)

    def whole(self, logits: Tensor) -> Tensor:
        """Return whole rows, [..., V], of this rank's columns [..., C]: for sampling, which needs the law."""
        joined = joined_columns(self.group, logits.flatten(0, -2), self.shards.size)
        return joined.view(*logits.shape[:-1], -1)

    def markov_block(
        self,
        ops: Any,
        base: Tensor,
        anchor: Tensor,
        embed: Tensor,
        head: Tensor,
        uniforms: Tensor | None = None,
        temperature: Tensor | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """Return what `markov_block` of the vanilla kind gives for whole rows, the same on every rank (C1.6.6).

        The head is cut like the output head: each slot's bias is added to this rank's columns. Greedy slots gather 16
        bytes per row and rank, drawn ones the logits, and then take rank 0's draft.

        Args:
            ops: as for `argmax`.
            base: [R, G, C] float32, this rank's columns.
            anchor: [R] int64.
            embed: [V, M], whole.
            head: [C, M], this rank's rows.
            uniforms: [R, G] float32, needed with a temperature.
            temperature: [R] float32, or None: every row is greedy.
        """
        exact_head = head.double().T
        previous = anchor.clamp(0, embed.shape[0] - 1)
        drafts: list[Tensor] = []
        laws: list[Tensor] = []
        for slot in range(base.shape[1]):
            bias = (embed[previous].double() @ exact_head).to(head.dtype)
            logits = base[:, slot].float() + bias.float()
            if temperature is None or uniforms is None:
                previous = self.argmax(ops, logits)
            else:
                whole = self.whole(logits)
                law, drawn = draft_law(whole, argmax_rows(whole), temperature, uniforms[:, slot])
                previous = self.group.same(drawn)
                laws.append(law)
            drafts.append(previous)
        return torch.stack(drafts, 1), torch.stack(laws, 1) if laws else None
