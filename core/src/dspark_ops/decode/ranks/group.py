"""What the model asks of the ranks that it is spread over."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["SOLO", "RankGroup", "SoloGroup", "joined_columns"]


class RankGroup(Protocol):
    """The ranks of one model, seen from one of them.

    Every rank calls the same methods in the same order, with tensors of the same shapes.

    Attributes:
        rank: this one, from 0.
        size: how many there are.
    """

    @property
    def rank(self) -> int:
        """See above."""

    @property
    def size(self) -> int:
        """See above."""

    def gather(self, tensor: Tensor) -> Tensor:
        """Return the tensors of all ranks in their order, [size, ...], bit for bit.

        Raises:
            RankError: another rank has ended, or does not answer in time.
        """

    def same(self, tensor: Tensor) -> Tensor:
        """Return rank 0's tensor, bit for bit.

        Raises:
            RankError: as `gather`.
        """

    def exchange(self, topic: str, text: str) -> list[str]:
        """Return the texts of all ranks in their order, without a collective; for what is compared before the first.

        Args:
            topic: what is exchanged. Every rank exchanges the same topics in the same order.
            text: of this rank.

        Raises:
            RankError: a rank has failed, or gives no text in time.
        """


class SoloGroup:
    """The only rank there is: nothing is exchanged."""

    rank: Final = 0
    size: Final = 1

    def gather(self, tensor: Tensor) -> Tensor:
        """Return a view with a leading 1."""
        return tensor.unsqueeze(0)

    def same(self, tensor: Tensor) -> Tensor:
        """Return the tensor itself."""
        return tensor

    def exchange(self, topic: str, text: str) -> list[str]:
        """Return the one text."""
        return [text]


SOLO: Final = SoloGroup()


def joined_columns(group: RankGroup, x: Tensor, width: int) -> Tensor:
    """Return the columns of all ranks side by side, [T, width]; what is behind `width` is padding and is dropped.

    Args:
        group: the ranks.
        x: [T, C], this rank's columns. On one rank it is returned as it is.
        width: columns that are wanted, at most ``size * C``.
    """
    if group.size == 1:
        return x
    joined = group.gather(x).movedim(0, 1).flatten(1)
    return joined if joined.shape[1] == width else joined[:, :width].contiguous()
