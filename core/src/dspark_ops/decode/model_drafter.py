"""The model's own drafter, tied to the operators and caches of one run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dspark_ops._lazy import torch
from dspark_ops.decode.calibration import Calibration
from dspark_ops.decode.drafting import DraftRequests, Proposal
from dspark_ops.decode.model import Model
from dspark_ops.decode.v41.rows import Rows
from dspark_ops.decode.v41.state import DecodeState

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["ModelDrafter"]


class ModelDrafter:
    """A `Drafter` that runs the model's draft stages for blocks of `gamma` drafts.

    Args:
        model: the model.
        state: caches of the run.
        gamma: drafts per block.
        calibration: temperatures of the confidences, one per draft, or None.
    """

    def __init__(self, model: Model, state: DecodeState, gamma: int, calibration: Calibration | None = None) -> None:
        self._drafter = model.drafter
        ops = model.ops(gamma)
        self._ops, self._commit_ops = ops.at(site="draft"), ops.at(site="commit")
        self._state = state
        self._temperatures: Tensor | None = None
        if calibration is not None:
            self._temperatures = torch.tensor(calibration.temperatures, device=model.torch_device)

    def commit(self, rows: Rows, features: Tensor) -> None:
        """Write the context rows of every draft stage."""
        self._drafter.commit(self._commit_ops, self._state, rows, features)

    def propose(self, requests: DraftRequests) -> Proposal:
        """Run the block."""
        return self._drafter.propose(self._ops, self._state, requests, self._temperatures)
