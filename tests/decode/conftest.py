"""A tokenizer whose tokens are bytes, for models whose text matters and whose knowledge does not."""

from __future__ import annotations

from pathlib import Path

import pytest
import tokenizers

from dspark_ops.decode.tokenizer import TextTokenizer

SPECIALS = ("<pad>", "<bos>", "<eos>", "<unk>", "<noise>")


@pytest.fixture(scope="session")
def byte_tokenizer(tmp_path_factory: pytest.TempPathFactory) -> TextTokenizer:
    """Bytes behind five special tokens, some of them merged into tokens of two and three: 300 entries at most."""
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    merges = [("a", "b"), ("ab", "c"), ("x", "y")]
    names = [*SPECIALS, *alphabet, *("".join(pair) for pair in merges)]
    vocab = {token: number for number, token in enumerate(names)}
    made = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=vocab, merges=merges))
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    made.add_special_tokens(list(SPECIALS))
    path: Path = tmp_path_factory.mktemp("bytes") / "tokenizer.json"
    made.save(str(path))
    return TextTokenizer(path, 300, 1)
