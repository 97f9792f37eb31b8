"""Stand-ins for a drafter, for tests and benchmarks: they know the continuation and are right as often as told."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from dspark_ops._lazy import torch
from dspark_ops.decode.drafting import DraftRequests, Proposal

if TYPE_CHECKING:
    from torch import Tensor

    from dspark_ops.decode.v41.rows import Rows

__all__ = ["OracleDrafter"]


class OracleDrafter:
    """Drafts the first `right` tokens of a known continuation, then wrong ones.

    Args:
        continuations: for each request, prompt and continuation in one sequence of tokens.
        vocab: size of the vocabulary.
        right: right drafts per block; 0 is always wrong, gamma or more is always right.
        confidence: stated confidence of a right draft; a wrong one gets 1 less this. None states 0.5 for all.

    Where the known continuation ends, drafts are wrong.
    """

    def __init__(
        self, continuations: Sequence[Sequence[int]], vocab: int, right: int, confidence: float | None = None
    ) -> None:
        self._known = [list(tokens) for tokens in continuations]
        self._vocab, self._right, self._confidence = vocab, right, confidence
        self.committed_rows = 0

    def commit(self, rows: Rows, features: Tensor) -> None:
        """Count the rows; nothing else is kept."""
        if len(rows) != features.shape[0]:
            raise ValueError(f"{len(rows)} committed rows came with features of {features.shape[0]}")
        self.committed_rows += len(rows)

    def propose(self, requests: DraftRequests) -> Proposal:
        """Return point-mass drafts."""
        starts = requests.start.tolist()
        rows = [self._block(index, start, requests.gamma) for index, start in zip(requests.index, starts, strict=True)]
        device = requests.start.device
        drafts = torch.tensor([tokens for tokens, _ in rows], device=device)
        confidence = torch.tensor([values for _, values in rows], device=device)
        probs = None
        if requests.temperature is not None:
            probs = torch.nn.functional.one_hot(drafts, self._vocab).float()
        return Proposal(drafts, probs, confidence, confidence.cumprod(-1))

    def _block(self, index: int, start: int, gamma: int) -> tuple[list[int], list[float]]:
        known = self._known[index]
        tokens, confidences = [], []
        for offset in range(gamma):
            position = start + offset + 1
            truth = known[position] if position < len(known) else 0
            right = offset < self._right and position < len(known)
            tokens.append(truth if right else (truth + 1 + offset) % self._vocab)
            sure = 0.5 if self._confidence is None else self._confidence
            confidences.append(sure if right else 1.0 - sure)
        return tokens, confidences
