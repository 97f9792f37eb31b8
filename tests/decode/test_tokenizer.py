"""Text of the shipped tokenizer: there and back, and streams that never show half a character."""

from __future__ import annotations

from pathlib import Path

import pytest

from dspark_ops.decode.tokenizer import TextTokenizer
from dspark_ops.errors import ModelError

TINY = Path(__file__).parents[2] / "examples" / "tiny_v41" / "tokenizer.json"


@pytest.fixture(scope="module")
def tokenizer() -> TextTokenizer:
    return TextTokenizer(TINY, vocab=4096, bos=1)


@pytest.mark.parametrize("text", ["def f(x):\n    return x", "naïve café – 漢字 🙂", "\t\n  "])
def test_text_comes_back_and_the_prompt_begins_with_the_beginning_of_text(tokenizer: TextTokenizer, text: str) -> None:
    tokens = tokenizer.encode(text)
    assert tokens[0] == 1 and 1 not in tokens[1:]
    assert tokenizer.decode(tokens) == text


def test_a_stream_gives_the_same_text_in_pieces_and_no_half_character(tokenizer: TextTokenizer) -> None:
    text = "x = '漢字🙂' # é"
    stream = tokenizer.stream()
    pieces = [stream.push([token]) for token in tokenizer.encode(text)]
    assert all("\N{REPLACEMENT CHARACTER}" not in piece for piece in pieces)
    assert "".join(pieces) + stream.finish() == text
    assert len([piece for piece in pieces if piece]) < len(pieces)


def test_bytes_that_never_become_a_character_are_shown_at_the_end(tokenizer: TextTokenizer) -> None:
    half = tokenizer.encode("🙂")[1:-1]
    stream = tokenizer.stream()
    assert stream.push(half) == ""
    assert set(stream.finish()) == {"\N{REPLACEMENT CHARACTER}"}


def test_a_tokenizer_with_more_entries_than_the_vocabulary_is_refused() -> None:
    with pytest.raises(ModelError, match="holds 4096 entries, more than vocab_size 4000"):
        TextTokenizer(TINY, vocab=4000, bos=1)
