"""Suggestions for misspelled names, used by every error that refuses a name."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that is closest to `name`, or None if none is close."""
    found = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return found[0] if found else None


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return ``; did you mean 'x'?`` for the closest known name, or an empty text."""
    match = nearest(name, known)
    return f"; did you mean {match!r}?" if match else ""
