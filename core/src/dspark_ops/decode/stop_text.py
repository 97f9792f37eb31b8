"""The text of a request as it grows, cut where a stop string begins."""

from __future__ import annotations

from collections.abc import Sequence

from dspark_ops.decode.tokenizer import TextTokenizer

__all__ = ["GrowingText"]


class GrowingText:
    """Text of emitted tokens, of which nothing is shown that a stop string could still cut.

    The stop string that is complete first ends the text, which then stops before it; of several that are complete with
    the same character the longest counts. So the cut does not depend on how many tokens come at once. Stop strings are
    looked for in what was emitted, not in the prompt, and may begin and end inside tokens.

    Args:
        tokenizer: turns tokens into text.
        stops: stop strings, none of them empty.

    Attributes:
        text: all text so far, without a stop string and what follows it. Its end may still be cut.
        stopped: whether a stop string has been found.
    """

    def __init__(self, tokenizer: TextTokenizer, stops: Sequence[str] = ()) -> None:
        self.text = ""
        self.stopped = False
        self._stops = tuple(stops)
        self._stream = tokenizer.stream()
        self._longest = max(map(len, self._stops), default=0)
        self._given = 0

    def push(self, tokens: Sequence[int]) -> int:
        """Add tokens and return how many of them count: all, or those up to the one that completes a stop string."""
        for number, token in enumerate(tokens):
            if self.stopped:
                return number
            self._add(self._stream.push((token,)))
        return len(tokens)

    def take(self) -> str:
        """Return text that has not been returned and that nothing can cut any more."""
        end = len(self.text) - (0 if self.stopped else self._held())
        new = self.text[self._given : end]
        self._given = max(self._given, end)
        return new

    def finish(self) -> str:
        """Return what is left when no token follows: text that was held back, and U+FFFD for half a character."""
        if not self.stopped:
            self._add(self._stream.finish())
        new = self.text[self._given :]
        self._given = len(self.text)
        return new

    def _add(self, text: str) -> None:
        begin = max(0, len(self.text) - self._longest + 1)
        self.text += text
        places = ((self.text.find(stop, begin), len(stop)) for stop in self._stops)
        ends = [(start + length, start) for start, length in places if start >= 0]
        if ends:
            self.stopped = True
            self.text = self.text[: min(ends)[1]]

    def _held(self) -> int:
        """Return the length of the longest end of the text that a stop string begins with."""
        return max(
            (size for stop in self._stops for size in range(1, len(stop)) if self.text.endswith(stop[:size])), default=0
        )
