"""What the steps of a run read and write at fixed addresses, shared by its runtimes."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

from dspark_ops._lazy import torch

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["StepBuffers"]


@dataclass(frozen=True, slots=True)
class StepBuffers:
    """One row per request of a step. Rows behind those in use, and rows that are not live, are padding.

    Attributes:
        slot: [R] int64, place in the state; 0 for padding, which stores nothing there.
        anchor: [R] int64, last token, which the target has not seen.
        start: [R] int64, its position: committed positions are below.
        live: [R] bool, whether the row is a request that goes on.
        budget: [R] int64, tokens that may still be emitted.
        lens: [R] int32, rows to verify, the anchor included; 0 for padding.
        forced: [R] int32, tokens that a folded step of a simulated run is to emit; written before every step.
        drafts: [R, G] int64, for the longest block; -1 stands for "no draft".
        confidence, survival: [R, G] float32, as `Proposal`.
        temperature: [R] float32, 0 for greedy requests.
        uniforms: [R, G] float32 that draw the drafts.
    """

    slot: Tensor
    anchor: Tensor
    start: Tensor
    live: Tensor
    budget: Tensor
    lens: Tensor
    forced: Tensor
    drafts: Tensor
    confidence: Tensor
    survival: Tensor
    temperature: Tensor
    uniforms: Tensor

    @classmethod
    def empty(cls, requests: int, longest: int, device: str) -> StepBuffers:
        """Return padding for up to `requests` requests and blocks of up to `longest` drafts."""

        def integers(*shape: int) -> Tensor:
            return torch.zeros(*shape, dtype=torch.int64, device=device)

        def floats(*shape: int) -> Tensor:
            return torch.zeros(*shape, device=device)

        return cls(
            slot=integers(requests),
            anchor=integers(requests),
            start=integers(requests),
            live=torch.zeros(requests, dtype=torch.bool, device=device),
            budget=integers(requests),
            lens=torch.zeros(requests, dtype=torch.int32, device=device),
            forced=torch.zeros(requests, dtype=torch.int32, device=device),
            drafts=integers(requests, longest),
            confidence=floats(requests, longest),
            survival=floats(requests, longest),
            temperature=floats(requests),
            uniforms=floats(requests, longest),
        )

    def __len__(self) -> int:
        return self.slot.shape[0]

    def first(self, requests: int) -> StepBuffers:
        """Return views of the first rows."""
        return StepBuffers(**{field.name: getattr(self, field.name)[:requests] for field in fields(self)})

    def pad_from(self, requests: int) -> None:
        """Make every row from `requests` on padding."""
        for tensor in (self.slot, self.anchor, self.start, self.live, self.budget, self.lens):
            tensor[requests:].zero_()

    def move(self, source: int, target: int) -> None:
        """Let row `target` be what row `source` is, and `source` padding; nothing is read by the host."""
        for tensor in (self.slot, self.anchor, self.start, self.live, self.budget, self.lens, self.temperature):
            tensor[target].copy_(tensor[source])
            tensor[source].zero_()  # assigning a number to one element would wait for the device
