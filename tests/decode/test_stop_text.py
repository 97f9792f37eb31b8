"""Stop strings: the cut is exact wherever tokens end, and nothing is shown that is cut later."""

from __future__ import annotations

import random

import pytest

from dspark_ops.decode.stop_text import GrowingText
from dspark_ops.decode.tokenizer import TextTokenizer


def tokens_of(tokenizer: TextTokenizer, text: str) -> tuple[int, ...]:
    return tokenizer.encode(text)[1:]


def shown(tokenizer: TextTokenizer, stops: tuple[str, ...], parts: list[tuple[int, ...]]) -> tuple[str, GrowingText]:
    """Return what a reader sees, put together, after each part was pushed and shown."""
    grown, seen = GrowingText(tokenizer, stops), ""
    for part in parts:
        grown.push(part)
        seen += grown.take()
    return seen + grown.finish(), grown


@pytest.mark.parametrize(
    ("text", "stops", "kept"),
    [
        ("one.two", (".",), "one"),
        ("one\n\ntwo", ("\n\n",), "one"),
        ("abcabd", ("abd",), "abc"),
        ("aaab", ("aab",), "a"),
        ("xabcy", ("bcy", "c"), "xab"),
        ("xabcy", ("c", "abc"), "x"),
        ("né à côté", ("cô",), "né à "),
        ("ab", ("abc",), "ab"),
        ("end", ("end",), ""),
        ("nothing", (), "nothing"),
    ],
)
def test_the_text_stops_before_the_stop_string_that_is_complete_first(
    byte_tokenizer: TextTokenizer, text: str, stops: tuple[str, ...], kept: str
) -> None:
    tokens = tokens_of(byte_tokenizer, text)
    whole, _ = shown(byte_tokenizer, stops, [tokens])
    assert whole == kept
    single, grown = shown(byte_tokenizer, stops, [(token,) for token in tokens])
    assert (single, grown.text) == (kept, kept)
    assert grown.stopped == (kept != text)


def test_the_token_that_completes_a_stop_string_is_the_last_one_that_counts(byte_tokenizer: TextTokenizer) -> None:
    tokens = tokens_of(byte_tokenizer, "zabcxyz")
    assert len(tokens) == 4  # z, abc, xy, z
    assert GrowingText(byte_tokenizer, ("b",)).push(tokens) == 2
    assert GrowingText(byte_tokenizer, ("cx",)).push(tokens) == 3
    assert GrowingText(byte_tokenizer, ("q",)).push(tokens) == 4
    grown = GrowingText(byte_tokenizer, ("b",))
    grown.push(tokens)
    assert (grown.text, grown.push(tokens)) == ("za", 0)


def test_nothing_is_shown_that_is_taken_back_and_nothing_is_held_without_need(byte_tokenizer: TextTokenizer) -> None:
    rng = random.Random(3)
    for _ in range(300):
        text = "".join(rng.choice("abcxyé") for _ in range(rng.randrange(1, 14)))
        stops = tuple("".join(rng.choice("abcxyé") for _ in range(rng.randrange(1, 4))) for _ in range(2))
        tokens = tokens_of(byte_tokenizer, text)
        grown, seen = GrowingText(byte_tokenizer, stops), ""
        wanted, _ = shown(byte_tokenizer, stops, [tokens])
        at = 0
        while at < len(tokens):
            size = rng.randrange(1, 4)
            grown.push(tokens[at : at + size])
            seen += grown.take()
            assert wanted.startswith(seen)
            if not grown.stopped:
                held = grown.text[len(seen) :]
                assert not held or any(stop.startswith(held) for stop in stops)
            at += size
        assert seen + grown.finish() == wanted
        assert not any(stop in wanted for stop in stops)


def test_half_a_character_waits_and_ends_as_a_replacement(byte_tokenizer: TextTokenizer) -> None:
    tokens = tokens_of(byte_tokenizer, "a€")
    grown = GrowingText(byte_tokenizer)
    grown.push(tokens[:-1])
    assert (grown.take(), grown.finish()) == ("a", "\N{REPLACEMENT CHARACTER}")
