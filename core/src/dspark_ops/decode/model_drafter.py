"""The model's own drafter, tied to the operators and caches of one run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dspark_ops.decode.drafting import DraftRequests, Proposal
from dspark_ops.decode.model import Model
from dspark_ops.decode.v41.rows import Rows
from dspark_ops.decode.v41.state import DecodeState

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["ModelDrafter"]


class ModelDrafter:
    """A `Drafter` that runs the model's draft stages for blocks of `gamma` drafts."""

    def __init__(self, model: Model, state: DecodeState, gamma: int) -> None:
        self._drafter = model.drafter
        ops = model.ops(gamma)
        self._ops, self._commit_ops = ops.at(site="draft"), ops.at(site="commit")
        self._state = state

    def commit(self, rows: Rows, features: Tensor) -> None:
        """Write the context rows of every draft stage."""
        self._drafter.commit(self._commit_ops, self._state, rows, features)

    def propose(self, requests: DraftRequests) -> Proposal:
        """Run the block."""
        return self._drafter.propose(self._ops, self._state, requests)
