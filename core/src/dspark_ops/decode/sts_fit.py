"""Fitting sequential temperature scaling: temperatures with which the products of confidences come true (C1.9)."""

from __future__ import annotations

import math
from collections.abc import Sequence

from dspark_ops.decode.calibration import Calibration
from dspark_ops.errors import ContractError

__all__ = ["BINS", "TEMPERATURES", "calibration_error", "fit_sts"]

#: Temperatures tried at each position: 1/8 to 8 in 48 equal factors, 1 among them.
TEMPERATURES = tuple(2.0 ** ((step - 24) / 8) for step in range(49))
#: Bins of the probability between 0 and 1, of equal width.
BINS = 20
_CLAMP = 1e-8


def fit_sts(
    logits: Sequence[Sequence[float]],
    accepted: Sequence[int],
    known: Sequence[int] | None = None,
    *,
    grid: Sequence[float] = TEMPERATURES,
    bins: int = BINS,
    dataset: str = "",
) -> Calibration:
    """Return the temperatures that calibrate the survival of each prefix of a block, fitted left to right.

    For draft 1, then 2, and so on, the temperature of the grid is taken with which the product of the confidences up to
    that draft has the least calibration error against "at least so many drafts were right", those before it fixed. Of
    equal errors the temperature nearest to 1 wins, then the lower one. A position that nothing is known of keeps 1.

    Args:
        logits: per block the confidence logits of its drafts, before any temperature; all blocks have the same length.
        accepted: per block, how many drafts in a row were right, counted from the first.
        known: per block, the leading drafts whose outcome counts; None counts all. It is the number of drafts that were
            verified, and no more than the place of an end-of-text token that was accepted. It must not depend on the
            outcome otherwise: leaving out blocks for being right or wrong moves every temperature.
        grid: temperatures to try, positive.
        bins: bins of the calibration error.
        dataset: what the blocks come from, for the record.

    Returns:
        A table with one temperature per draft, the number of blocks, and the calibration error of each position with
        all temperatures 1 and with the fitted ones.

    Raises:
        ContractError: no blocks, blocks of different lengths, a logit that is not finite, another number of counts than
            of blocks, a count below 0 or beyond the block, a grid without positive temperatures, or no bins.

    Source: C1.9.1, C1.9.2; the grid is that of C1.9.5. Tables fitted to single confidences are another kind (C1.9.5).
    """
    gamma = _require_blocks(logits, accepted, known)
    if not grid or not all(0 < value < math.inf for value in grid) or bins < 1:
        raise ContractError(f"fit_sts: wanted positive temperatures and 1 bin or more, got {list(grid)} and {bins}")
    order = sorted(grid, key=lambda value: (abs(math.log(value)), value))
    counts = [gamma] * len(logits) if known is None else known
    plain, fitted = ([1.0] * len(logits) for _ in range(2))
    temperatures, before, after = [], [], []
    for position in range(gamma):
        rows = [row for row, count in enumerate(counts) if count > position]
        scores = [logits[row][position] for row in rows]
        right = [accepted[row] > position for row in rows]
        _continue(plain, rows, _products(plain, rows, scores, 1.0))
        before.append(calibration_error([plain[row] for row in rows], right, bins))
        # `min` keeps the first of equal errors, and `order` begins with the temperatures nearest to 1
        errors = {value: calibration_error(_products(fitted, rows, scores, value), right, bins) for value in order}
        chosen = min(order, key=errors.__getitem__) if rows else 1.0
        _continue(fitted, rows, _products(fitted, rows, scores, chosen))
        temperatures.append(chosen)
        after.append(errors[chosen] if rows else 0.0)
    return Calibration(tuple(temperatures), dataset, len(logits), tuple(before), tuple(after))


def calibration_error(predicted: Sequence[float], right: Sequence[bool], bins: int = BINS) -> float:
    """Return the expected calibration error: the mean over bins of |mean prediction - share right|, by their sizes.

    Args:
        predicted: probabilities, 0 to 1; taken as no closer to either end than 1e-8.
        right: what came true.
        bins: number of bins of equal width.

    Returns:
        The error, 0 for no predictions. It does not depend on the order of the predictions, not in its last bit.

    Source: C1.9.2.
    """
    members: list[list[float]] = [[] for _ in range(bins)]
    true = [0] * bins
    for probability, outcome in zip(predicted, right, strict=True):
        inside = min(max(probability, _CLAMP), 1 - _CLAMP)
        place = min(int(inside * bins), bins - 1)
        members[place].append(inside)
        true[place] += outcome
    total = len(predicted)
    # a bin's size times the distance of its means is the distance of its sums
    return math.fsum(abs(math.fsum([*held, -count])) for held, count in zip(members, true, strict=True)) / max(total, 1)


def _require_blocks(logits: Sequence[Sequence[float]], accepted: Sequence[int], known: Sequence[int] | None) -> int:
    """Return the drafts of a block, the same for all."""
    if not logits:
        raise ContractError("fit_sts: wanted at least one block, got none")
    gamma = len(logits[0])
    for name, counts in (("accepted", accepted), ("known", known)):
        if counts is None:
            continue
        if len(counts) != len(logits):
            raise ContractError(f"fit_sts: wanted {name} of {len(logits)} blocks, got {len(counts)}")
        wrong = next((row for row, count in enumerate(counts) if not 0 <= count <= gamma), None)
        if wrong is not None:
            raise ContractError(f"fit_sts: {name}[{wrong}]: wanted 0 to {gamma}, got {counts[wrong]}")
    for row, scores in enumerate(logits):
        if len(scores) != gamma or not all(map(math.isfinite, scores)):
            raise ContractError(f"fit_sts: logits[{row}]: wanted {gamma} finite numbers, got {list(scores)}")
    return gamma


def _products(before: Sequence[float], rows: Sequence[int], scores: Sequence[float], temperature: float) -> list[float]:
    """Return for each of `rows` its product so far times the next confidence."""
    return [before[row] * _sigmoid(score / temperature) for row, score in zip(rows, scores, strict=True)]


def _continue(products: list[float], rows: Sequence[int], values: Sequence[float]) -> None:
    for row, value in zip(rows, values, strict=True):
        products[row] = value


def _sigmoid(x: float) -> float:
    if x >= 0:
        return 1 / (1 + math.exp(-x))
    power = math.exp(x)
    return power / (1 + power)
