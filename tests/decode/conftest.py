"""A tokenizer whose tokens are bytes, for models whose text matters and whose knowledge does not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import safetensors.torch as safetensors_torch
import tokenizers

from dspark_ops.decode.tokenizer import TextTokenizer
from dspark_ops.decode.v41.synthetic import random_weights, small_config

SPECIALS = ("<pad>", "<bos>", "<eos>", "<unk>", "<noise>")


def tokenizer_of(folder: Path, letters: list[str], merges: list[tuple[str, str]]) -> TextTokenizer:
    """Write a byte-level tokenizer whose tokens are the special ones, single letters and merged ones."""
    names = [*SPECIALS, *letters, *("".join(pair) for pair in merges)]
    vocab = {token: number for number, token in enumerate(names)}
    made = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=vocab, merges=merges))
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    made.add_special_tokens(list(SPECIALS))
    made.save(str(folder / "tokenizer.json"))
    return TextTokenizer(folder / "tokenizer.json", 300, 1)


@pytest.fixture(scope="session")
def byte_tokenizer(tmp_path_factory: pytest.TempPathFactory) -> TextTokenizer:
    """All bytes, and the tokens ab, abc and xy."""
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    return tokenizer_of(tmp_path_factory.mktemp("bytes"), alphabet, [("a", "b"), ("ab", "c"), ("x", "y")])


@pytest.fixture(scope="session")
def letter_tokenizer(tmp_path_factory: pytest.TempPathFactory) -> TextTokenizer:
    """300 entries without a byte that is no character: 94 letters and 201 pairs of them."""
    letters = [chr(code) for code in range(33, 127)]
    pairs = [(first, second) for first in letters for second in letters][7:208]
    return tokenizer_of(tmp_path_factory.mktemp("letters"), letters, pairs)


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory, letter_tokenizer: TextTokenizer) -> Path:
    """A model directory: a small model with random weights that writes letters."""
    folder = tmp_path_factory.mktemp("model")
    config = small_config(vocab_size=300)
    (folder / "config.json").write_text(json.dumps(config.raw))
    (folder / "tokenizer.json").write_text(letter_tokenizer._tokenizer.to_str())
    safetensors_torch.save_file(random_weights(config, seed=6), folder / "model.safetensors")
    return folder
