"""Prompts of the decode verb, from the command line or from a file, and what a line of a file asks for by itself."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dspark_ops.errors import ConfigError

#: What a line of a JSONL file may set for its own request, and the type it has there.
_OWN = {"temperature": float, "top_k": int, "top_p": float, "seed": int, "max_tokens": int}
_ESCAPES = {"n": "\n", "t": "\t", "\\": "\\"}


@dataclass(frozen=True, slots=True)
class Prompt:
    """A text to continue.

    Attributes:
        text: not empty.
        own: what it sets by itself: temperature, top_k, top_p, seed, max_tokens.
        stop: stop strings of its own.
    """

    text: str
    own: Mapping[str, Any] = field(default_factory=dict)
    stop: tuple[str, ...] = ()


def unescaped(text: str) -> str:
    r"""Return text in which ``\n``, ``\t`` and ``\\`` stand for a newline, a tab and a backslash."""
    return re.sub(r"\\([nt\\])", lambda match: _ESCAPES[match[1]], text)


def prompts_of(prompt: str | None, file: Path | None) -> list[Prompt]:
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
    text = unescaped(prompt or "")
    if not text:
        raise ConfigError("--prompt is empty: wanted at least one character")
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise ConfigError(f"--prompt: wanted UTF-8 text, got a byte that is none at character {error.start}") from error
    return [Prompt(text)]


def _from_file(file: Path) -> list[Prompt]:
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
        return [Prompt(line) for _, line in lines]
    return [_from_json(file, number, line) for number, line in lines]


def _from_json(file: Path, number: int, line: str) -> Prompt:
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
    own = {
        key: _number(f"--prompts {file}:{number}: {key}", value[key], kind)
        for key, kind in _OWN.items()
        if key in value
    }
    return Prompt(prompt, own, _stops(f"--prompts {file}:{number}: stop", value.get("stop", [])))


def _number(place: str, value: Any, kind: type) -> Any:
    whole = isinstance(value, int) and not isinstance(value, bool)
    if not (whole or (kind is float and isinstance(value, float))):
        raise ConfigError(f"{place}: wanted {'a number' if kind is float else 'a whole number'}, got {value!r}")
    return kind(value)


def _stops(place: str, value: Any) -> tuple[str, ...]:
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list) or not all(isinstance(text, str) and text for text in texts):
        raise ConfigError(f"{place}: wanted a text or a list of texts, none of them empty, got {value!r}")
    return tuple(texts)
