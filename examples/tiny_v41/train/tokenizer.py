"""Train the tokenizer: byte-level BPE, as many entries as the config's ``vocab_size``, five specials in front.

Only the training split is read. The result has no post-processor: a caller who wants ``<bos>`` puts it there.
"""

from __future__ import annotations

import argparse
import json
import pathlib

from data import read_sources
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

SPECIALS = ("<pad>", "<bos>", "<eos>", "<unk-reserved>", "<noise>")
"""Ids 0..4. ``<noise>`` fills the rows of a draft block that are to be predicted; it never occurs in text."""


def train(texts: list[str], vocab_size: int) -> Tokenizer:
    """A tokenizer of exactly ``vocab_size`` entries; raises ValueError when the text is too small for that many."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(SPECIALS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    if tokenizer.get_vocab_size() != vocab_size:
        got = tokenizer.get_vocab_size()
        raise ValueError(f"wanted {vocab_size} entries, got {got}: the training text is too small")
    return tokenizer


def main() -> None:
    """Write ``tokenizer.json`` beside ``config.json``."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=pathlib.Path, default=pathlib.Path(__file__).resolve().parent.parent)
    args = parser.parse_args()
    config = json.loads((args.model / "config.json").read_text())
    texts = [file.text for file in read_sources() if not file.heldout]
    train(texts, config["vocab_size"]).save(str(args.model / "tokenizer.json"), pretty=False)


if __name__ == "__main__":
    main()
