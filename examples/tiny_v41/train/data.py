"""The data recipe: Python's own standard library sources, one fixed split, flat token streams.

The text is the ``Lib`` folder of the running CPython (PSF licence). Every choice is a function of a file's relative
path, size and bytes, so two machines with the same CPython release write the same streams and the same digest.
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import json
import pathlib
import sysconfig

import numpy as np
from tokenizers import Tokenizer

MAX_BYTES = 200_000
"""Larger files are dropped: they are generated tables and giant tests, which would weigh too much."""

EXCLUDED_PARTS = ("site-packages", "__pycache__", "encodings", "pydoc_data")
"""``encodings`` and ``pydoc_data`` are generated tables; ``site-packages`` is other people's code."""

HELDOUT_SHARE = 20
"""One file in this many is held out."""


@dataclasses.dataclass(frozen=True, slots=True)
class SourceFile:
    """One source file: its path below the library folder (posix form) and its text."""

    path: str
    text: str

    @property
    def heldout(self) -> bool:
        """True when the file belongs to the held-out split; decided by the hash of the path alone."""
        return int(hashlib.sha256(self.path.encode()).hexdigest()[:8], 16) % HELDOUT_SHARE == 0


def stdlib_root() -> pathlib.Path:
    """The folder that holds the running interpreter's standard library."""
    return pathlib.Path(sysconfig.get_path("stdlib"))


def read_sources(root: pathlib.Path | None = None) -> list[SourceFile]:
    """All usable files in path order: UTF-8, not empty, at most ``MAX_BYTES``, no exact duplicate of an earlier one."""
    root = stdlib_root() if root is None else root
    seen: set[bytes] = set()
    files = []
    for path in sorted(root.rglob("*.py"), key=lambda item: item.relative_to(root).as_posix()):
        relative = path.relative_to(root)
        if any(part in EXCLUDED_PARTS for part in relative.parts):
            continue
        raw = path.read_bytes()
        digest = hashlib.sha256(raw).digest()
        if not raw.strip() or len(raw) > MAX_BYTES or digest in seen:
            continue
        try:
            text = raw.decode("utf-8")
        except UnicodeDecodeError:
            continue
        seen.add(digest)
        files.append(SourceFile(relative.as_posix(), text.replace("\r\n", "\n")))
    return files


def digest_of(files: list[SourceFile]) -> str:
    """sha256 over (path, text) of the files in order: two equal digests mean equal data."""
    digest = hashlib.sha256()
    for file in files:
        digest.update(file.path.encode() + b"\0" + file.text.encode() + b"\0")
    return digest.hexdigest()


def encode_stream(files: list[SourceFile], tokenizer: Tokenizer, bos: int, eos: int) -> np.ndarray:
    """Every file as ``bos, tokens, eos``, one after the other: uint16 ``[tokens]``."""
    parts = []
    for encoding in tokenizer.encode_batch([file.text for file in files], add_special_tokens=False):
        parts.append(np.asarray([bos, *encoding.ids, eos], dtype=np.uint16))
    return np.concatenate(parts)


def pick_prompts(
    files: list[SourceFile], tokenizer: Tokenizer, count: int, low: int = 24, high: int = 96
) -> list[dict]:
    """Up to ``count`` prompts from held-out files: whole lines, ASCII, ``low..high`` tokens, spread over the files.

    A prompt starts at a ``def`` or ``class`` line and ends at the end of a later line, without its newline. Files are
    visited in the order of their hash, one prompt a file and round, so no file dominates.
    """
    order = sorted(files, key=lambda file: hashlib.sha256(file.path.encode()).hexdigest())
    pools = [list(_prompt_candidates(file, tokenizer, low, high)) for file in order if file.heldout]
    prompts: list[dict] = []
    while any(pools) and len(prompts) < count:
        for pool in pools:
            if pool and len(prompts) < count:
                prompts.append(pool.pop(0))
    return prompts


def _prompt_candidates(file: SourceFile, tokenizer: Tokenizer, low: int, high: int):
    """Yield this file's prompts, in an order given by a hash so that they do not all sit at the top of the file."""
    lines = file.text.split("\n")
    starts = [index for index, line in enumerate(lines) if line.lstrip().startswith(("def ", "class ", "async def "))]
    starts.sort(key=lambda index: hashlib.sha256(f"{file.path}:{index}".encode()).hexdigest())
    for start in starts:
        target = low + 8 + int(hashlib.sha256(f"{start}:{file.path}".encode()).hexdigest()[:4], 16) % (high - low - 15)
        for stop in range(start + 2, min(start + 16, len(lines))):
            text = "\n".join(lines[start:stop])
            ids = tokenizer.encode(text, add_special_tokens=False).ids
            if len(ids) > high:
                break
            if len(ids) >= target and text.isascii() and lines[stop - 1].strip() and tokenizer.decode(ids) == text:
                yield {"prompt": text, "source": file.path}
                break


def line_starts(files: list[SourceFile], tokenizer: Tokenizer, count: int, width: int) -> np.ndarray:
    """uint16 ``[count, width]``: the first ``width`` tokens from line starts of training files, for rollouts.

    Half of the starts are ``def`` and ``class`` lines, as in the prompts; all are encoded from the start of the line,
    as a prompt is and a window of the long stream is not.
    """
    generator = np.random.default_rng(0)
    plain, heads = [], []
    for index, file in enumerate(files):
        at = 0
        for line in file.text.splitlines(keepends=True):
            if line.strip():
                (heads if line.lstrip().startswith(("def ", "class ", "async def ")) else plain).append((index, at))
            at += len(line)
    picks = [pool[i] for pool in (plain, heads) for i in generator.integers(len(pool), size=count)]
    texts = [files[index].text[at : at + 12 * width] for index, at in picks]
    rows = [e.ids[:width] for e in tokenizer.encode_batch(texts, add_special_tokens=False) if len(e.ids) > width]
    order = generator.permutation(len(rows))[:count]
    return np.asarray([rows[i] for i in order], dtype=np.uint16)


def main() -> None:
    """Write ``train.npy``, ``heldout.npy``, ``starts.npy`` and ``manifest.json`` for the trainers, and the prompts."""
    here = pathlib.Path(__file__).resolve().parent.parent
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=pathlib.Path, required=True, help="folder for the token streams")
    parser.add_argument("--model", type=pathlib.Path, default=here, help="folder with config.json and tokenizer.json")
    parser.add_argument("--prompts", type=pathlib.Path, default=here / "prompts.jsonl")
    args = parser.parse_args()
    config = json.loads((args.model / "config.json").read_text())
    tokenizer = Tokenizer.from_file(str(args.model / "tokenizer.json"))
    files = read_sources()
    splits = {"train": [f for f in files if not f.heldout], "heldout": [f for f in files if f.heldout]}
    args.out.mkdir(parents=True, exist_ok=True)
    manifest: dict = {"python": sysconfig.get_python_version(), "digest": digest_of(files)}
    for name, members in splits.items():
        stream = encode_stream(members, tokenizer, config["bos_token_id"], config["eos_token_id"])
        np.save(args.out / f"{name}.npy", stream)
        size = sum(len(file.text.encode()) for file in members)
        manifest[name] = {"files": len(members), "bytes": size, "tokens": int(stream.size)}
    np.save(args.out / "starts.npy", line_starts(splits["train"], tokenizer, 32768, 96))
    prompts = pick_prompts(files, tokenizer, 306)
    args.prompts.write_text("".join(json.dumps(prompt) + "\n" for prompt in prompts[:50]))
    (args.out / "prompts_extra.jsonl").write_text("".join(json.dumps(prompt) + "\n" for prompt in prompts[50:]))
    (args.out / "manifest.json").write_text(json.dumps(manifest, indent=2) + "\n")
    print(json.dumps(manifest, indent=2), f"prompts: {len(prompts)}")


if __name__ == "__main__":
    main()
