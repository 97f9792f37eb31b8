"""Text to tokens and back, with a stream of text that never shows half a character."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from dspark_ops._lazy import LazyModule
from dspark_ops.errors import ModelError

if TYPE_CHECKING:
    import tokenizers
else:
    tokenizers = LazyModule("tokenizers", "decode")

__all__ = ["TextStream", "TextTokenizer"]

_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


class TextTokenizer:
    """The tokenizer of a model directory.

    Args:
        path: its tokenizer.json.
        vocab: the model's vocabulary size; the file may not hold ids beyond it.
        bos: id put before every prompt.

    Raises:
        ModelError: the file is missing, cannot be read, or holds ids outside the vocabulary.
    """

    def __init__(self, path: str | Path, vocab: int, bos: int) -> None:
        path = Path(path)
        if not path.is_file():
            raise ModelError(f"{path}: missing; a model directory holds config.json, tokenizer.json, model.safetensors")
        try:
            self._tokenizer = tokenizers.Tokenizer.from_file(str(path))
        except Exception as error:  # the library raises bare Exception for every fault of the file
            raise ModelError(f"{path}: wanted a tokenizer of the tokenizers library: {error}") from error
        size = self._tokenizer.get_vocab_size(with_added_tokens=True)
        if size > vocab:
            raise ModelError(f"{path}: holds {size} entries, more than vocab_size {vocab} of config.json")
        self._bos = bos

    def encode(self, text: str) -> tuple[int, ...]:
        """Return the tokens of a prompt, the beginning-of-text token first."""
        return (self._bos, *self._tokenizer.encode(text, add_special_tokens=False).ids)

    def decode(self, tokens: list[int] | tuple[int, ...]) -> str:
        """Return the text of tokens; special tokens give none, bytes that are no UTF-8 give U+FFFD."""
        return str(self._tokenizer.decode(list(tokens), skip_special_tokens=True))

    def stream(self) -> TextStream:
        """Return an empty stream of text."""
        return TextStream(self)


class TextStream:
    """Turns tokens into text as they come."""

    def __init__(self, tokenizer: TextTokenizer) -> None:
        self._tokenizer = tokenizer
        self._tokens: list[int] = []
        self._shown = 0

    def push(self, tokens: list[int] | tuple[int, ...]) -> str:
        """Return the text that these tokens add; the bytes of half a character wait for the next call."""
        self._tokens += tokens
        text = self._tokenizer.decode(self._tokens)
        ready = len(text.rstrip(_REPLACEMENT)) if text.endswith(_REPLACEMENT) else len(text)
        new = text[self._shown : ready]
        self._shown = max(self._shown, ready)
        return new

    def finish(self) -> str:
        """Return what is left: bytes that never became a character, as U+FFFD."""
        text = self._tokenizer.decode(self._tokens)
        new = text[self._shown :]
        self._shown = len(text)
        return new
