"""Prompts of the decode verb: from the command line or from a file."""

from __future__ import annotations

import json
import re
from pathlib import Path

from dspark_ops.errors import ConfigError

_ESCAPES = {"n": "\n", "t": "\t", "\\": "\\"}


def prompts_of(prompt: str | None, file: Path | None) -> list[str]:
    r"""Return the prompts that ``--prompt`` or ``--prompts`` gives, none of them empty.

    In ``--prompt``, ``\n``, ``\t`` and ``\\`` stand for a newline, a tab and a backslash; other backslashes are kept.

    Raises:
        ConfigError: neither or both are given, a prompt is empty, or the file cannot be read as what its name says.
    """
    if (prompt is None) == (file is None):
        got = "neither" if prompt is None else "both"
        raise ConfigError(f"wanted either --prompt TEXT or --prompts FILE, got {got}")
    if file is not None:
        return _from_file(file)
    text = re.sub(r"\\([nt\\])", lambda match: _ESCAPES[match[1]], prompt or "")
    if not text:
        raise ConfigError("--prompt is empty: wanted at least one character")
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise ConfigError(f"--prompt: wanted UTF-8 text, got a byte that is none at character {error.start}") from error
    return [text]


def _from_file(file: Path) -> list[str]:
    try:
        text = file.read_bytes().decode("utf-8")
    except FileNotFoundError:
        raise ConfigError(f"--prompts {file}: there is no such file") from None
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"--prompts {file}: wanted UTF-8 text, got byte 0x{error.object[error.start]:02x} at offset {error.start}"
        ) from error
    except OSError as error:
        raise ConfigError(f"--prompts {file}: cannot be read: {error.strerror}") from error
    lines = [(number, line.rstrip("\r")) for number, line in enumerate(text.split("\n"), 1) if line.strip()]
    if not lines:
        raise ConfigError(f"--prompts {file}: holds no prompt, wanted at least one line")
    if file.suffix.lower() not in (".jsonl", ".json"):
        return [line for _, line in lines]
    return [_from_json(file, number, line) for number, line in lines]


def _from_json(file: Path, number: int, line: str) -> str:
    try:
        value = json.loads(line)
    except ValueError as error:
        raise ConfigError(
            f'--prompts {file}:{number}: wanted one JSON object per line, such as {{"prompt": "..."}}: {error}'
        ) from error
    prompt = value.get("prompt") if isinstance(value, dict) else None
    if not isinstance(prompt, str) or not prompt:
        got = sorted(value) if isinstance(value, dict) else type(value).__name__
        raise ConfigError(
            f'--prompts {file}:{number}: wanted an object whose "prompt" is text and not empty, got {got}'
        )
    return prompt
