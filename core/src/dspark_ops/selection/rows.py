"""Row counts as short texts: ``1-64``, ``1-7,9-15``, ``6-384/6`` (every sixth)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final

#: A plan keeps one table entry per row count up to the largest, so a typing slip must not ask for gigabytes.
MAX_ROWS: Final = 1 << 20

_SPAN: Final = re.compile(r"^(?P<low>\d+)(?:-(?P<high>\d+)(?:/(?P<step>\d+))?)?$")


def row_counts(rows: Iterable[int]) -> tuple[int, ...]:
    """Return the row counts that a plan covers: sorted, each once.

    Raises:
        ValueError: there are none, or one is negative or above `MAX_ROWS`.
    """
    counts = tuple(sorted(set(rows)))
    if not counts:
        raise ValueError("rows is empty: wanted the row counts to plan for, such as range(1, 65)")
    if counts[0] < 0 or counts[-1] > MAX_ROWS:
        raise ValueError(f"rows run from {counts[0]} to {counts[-1]}: wanted counts from 0 to {MAX_ROWS}")
    return counts


def rows_text(counts: Sequence[int]) -> str:
    """Return the text of sorted row counts; `rows_of` reads it back."""
    spans: list[str] = []
    start = 0
    if len(counts) > 1 and counts[-1] - counts[0] == len(counts) - 1:  # one run, which nearly all are
        return f"{counts[0]}-{counts[-1]}"
    while start < len(counts):
        end, step = _run(counts, start)
        low, high = counts[start], counts[end - 1]
        spans.append(str(low) if low == high else f"{low}-{high}" if step == 1 else f"{low}-{high}/{step}")
        start = end
    return ",".join(spans)


def rows_of(text: str) -> tuple[int, ...]:
    """Return the row counts that a text names.

    Raises:
        ValueError: the text is not of the form that `rows_text` writes.
    """
    counts: list[int] = []
    for span in text.split(","):
        match = _SPAN.match(span.strip())
        if not match:
            raise ValueError(f"cannot read row counts from {text!r}: wanted a form such as '6', '1-64' or '6-384/6'")
        low = int(match["low"])
        high = int(match["high"] or low)
        if high > MAX_ROWS:  # before the list is made
            raise ValueError(f"rows run to {high} in {text!r}: wanted counts from 0 to {MAX_ROWS}")
        counts.extend(range(low, high + 1, int(match["step"] or 1)))
    return row_counts(counts)


def _run(counts: Sequence[int], start: int) -> tuple[int, int]:
    """Return the end and the step of the longest even run; two counts that are not neighbours are no run."""
    if start + 1 == len(counts):
        return start + 1, 1
    step = counts[start + 1] - counts[start]
    end = start + 2
    while end < len(counts) and counts[end] - counts[end - 1] == step:
        end += 1
    if step == 1 or end - start >= 3:
        return end, step
    return start + 1, 1
