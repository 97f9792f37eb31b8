"""Verify lengths: how many drafts of each request are worth a verify row."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from dspark_ops._lazy import torch
from dspark_ops.contracts.contract import Argument, Case, Contract, Option, Output, Semantic, Site
from dspark_ops.contracts.exactness import bitwise
from dspark_ops.errors import ContractError

if TYPE_CHECKING:
    from torch import Tensor

    from dspark_ops.contracts.model_shapes import ModelShapes

DROP_BELOW = 1e-6
"""Survival under which a draft is never verified (C1.10.2)."""


def schedule_prefix(
    survival: Tensor,
    steps_per_second: Tensor,
    budget: Tensor | None = None,
    mode: str = "early_stop",
    min_verify: int = 1,
    max_verify: int = 0,
) -> Tensor:
    """Return the rows that each request verifies in this step, the anchor included.

    Drafts enter in the order of falling survival, then rising position, then rising request. K of them are admitted; a
    draft of survival below 1e-6, or NaN, never is. Since survival does not rise along a request, what is admitted of a
    request is a prefix. K is

    - ``budget``: the number given, which may exceed the number of drafts;
    - ``early_stop``: the first m for which admitting one draft more does not raise ``expected * steps_per_second``
      (the paper's Algorithm 1: it never looks past a draft that it does not admit, so it is lossless by itself);
    - ``global``: the m of the largest ``expected * steps_per_second``, the smallest of equal ones. It looks ahead, so
      it is lossless only with survivals of an earlier step (C1.10.7).

    ``expected`` is ``R + sum of the admitted survivals``, in float64, added in the order of admission; the rate is that
    of a step with ``R * max(min_verify, 1) + m`` tokens.

    Args:
        survival: [R, G] float32, probability that the target accepts drafts 1 to k (C1.8.3), not rising along a row.
        steps_per_second: [L] float64, rate of a step with b tokens at index b; index 0 is unused. Steps larger than
            L - 1 tokens have the last rate.
        budget: [1] int32, the K of mode ``budget``; None in the other modes.
        mode: ``early_stop``, ``global`` or ``budget``.
        min_verify: rows that each request verifies at least; its admitted drafts come on top. Below 1 counts as 1 when
            the result is clamped.
        max_verify: rows that each request verifies at most; 0 stands for G + 1. Only the first `max_verify` columns
            take part. If there are fewer than G + 1, a budget spent on the last of them is lost to the clamp.

    Returns:
        [R] int32, ``clamp(min_verify + admitted, max(min_verify, 1), max_verify)``.

    Raises:
        ContractError: unknown mode, negative `max_verify`, or a budget is missing or given without effect.

    Source: C1.10.2 to C1.10.4, C1.10.8.
    """
    if mode not in ("early_stop", "global", "budget"):
        raise ContractError(f"schedule_prefix: mode is {mode!r}: wanted 'early_stop', 'global' or 'budget'")
    if max_verify < 0:
        raise ContractError(f"schedule_prefix: max_verify is {max_verify}: wanted 0 (all rows) or more")
    if (budget is not None) != (mode == "budget"):
        wanted, got = ("a [1] int32 tensor", "None") if mode == "budget" else ("None", "a tensor")
        raise ContractError(f"schedule_prefix: budget is {got}: mode {mode!r} wants {wanted}")
    rows, gamma = survival.shape
    most = max_verify or gamma + 1
    window = survival[:, : min(most, gamma)]
    keys = _keys(window)
    order = keys.argsort(descending=True, stable=True)
    if budget is None:
        throughput = throughputs(window, steps_per_second, max(min_verify, 1))
        stops = torch.nn.functional.pad(throughput[1:] <= throughput[:-1], (0, 1), value=True)
        budget = throughput.argmax() if mode == "global" else stops.int().argmax()
    rank = torch.empty_like(order).scatter_(0, order, torch.arange(len(order), device=order.device))
    selected = ((keys > -torch.inf) & (rank < budget)).view(window.shape[1], rows)
    counts = selected.sum(0, dtype=torch.int32) + min_verify
    return counts.clamp(max(min_verify, 1), most)


def throughputs(survival: Tensor, steps_per_second: Tensor, rows_each: int = 1) -> Tensor:
    """Return the expected tokens per second of a step that admits the m most likely drafts, by m.

    Args:
        survival: [R, G] float32, see `schedule_prefix`.
        steps_per_second: [L] float64, see there.
        rows_each: rows that each request has without any admitted draft.

    Returns:
        [R * G + 1] float64; -inf for an m that would admit a draft below the floor.

    Source: C1.10.4.
    """
    ranked = _keys(survival).sort(descending=True, stable=True).values
    live = (ranked > -torch.inf).sum()
    gains = torch.where(ranked > -torch.inf, ranked, 0.0).double()
    expected = torch.nn.functional.pad(gains.cumsum(0), (1, 0)) + len(survival)
    counts = torch.arange(len(expected), device=survival.device)
    tokens = (counts + len(survival) * rows_each).clamp(max=len(steps_per_second) - 1)
    return torch.where(counts <= live, expected * steps_per_second[tokens], -torch.inf)


def _keys(survival: Tensor) -> Tensor:
    """Return the survivals column after column, so that a stable sort breaks ties by position, then by request."""
    return torch.where(survival >= DROP_BELOW, survival, -torch.inf).T.reshape(-1)


def _cases(scale: str, seed: int) -> Iterator[Case]:
    generator = torch.Generator().manual_seed(seed)
    for rows in (1, 2, 7, 33) if scale == "small" else (1, 8, 64, 256):
        for gamma in (1, 5, 7):
            survival = torch.rand(rows, gamma, generator=generator).cumprod(-1)
            length = rows * (gamma + 1) + 1
            rates = 1.0 / (20.0 + torch.arange(length).double())
            stairs = 1.0 / (20.0 + 8.0 * (torch.arange(length) // 8).double())
            for mode in ("early_stop", "global"):
                yield Case(f"{mode}, {rows}x{gamma}", _inputs(survival, rates, mode=mode))
                yield Case(f"{mode} on a staircase, {rows}x{gamma}", _inputs(survival, stairs, mode=mode))
                coarse = (survival * 4).round() / 4
                yield Case(f"{mode}, ties and zeros, {rows}x{gamma}", _inputs(coarse, rates, mode=mode))
            for budget in (-1, 0, rows, rows * gamma // 2, rows * gamma, rows * gamma + 9):
                yield Case(f"budget {budget} of {rows}x{gamma}", _inputs(survival, rates, budget))
            yield Case(f"budget, all equal, {rows}x{gamma}", _inputs(torch.full((rows, gamma), 0.5), rates, rows + 1))
            yield Case(f"at least 2, at most {gamma}, {rows}x{gamma}", _inputs(survival, rates, rows, 2, max(gamma, 2)))
            yield Case(f"at least 2, all admitted, {rows}x{gamma}", _inputs(survival, rates, rows * gamma, 2))
            for least in (0, 2):
                raised = {**_inputs(survival, stairs, mode="global"), "min_verify": least}
                yield Case(f"global, at least {least}, {rows}x{gamma}", raised)
                yield Case(f"early stop, at least {least}, {rows}x{gamma}", {**raised, "mode": "early_stop"})
            yield Case(f"at least 0, none admitted, {rows}x{gamma}", _inputs(survival, rates, 0, 0))
            short = _inputs(survival, rates[: rows + 2], mode="global")
            yield Case(f"table shorter than the step, {rows}x{gamma}", short)
    dying = torch.tensor([[1.0, 1e-6, 9.9e-7], [0.9, float("nan"), float("nan")], [0.0, 0.0, 0.0]])
    flat = torch.ones(13, dtype=torch.float64)
    for mode in ("early_stop", "global"):
        yield Case(f"{mode}, survival at the floor, NaN and zero", _inputs(dying, flat, mode=mode), _lens(3, 2, 1))
    yield Case("budget, survival at the floor, NaN and zero", _inputs(dying, flat, 99), _lens(3, 2, 1))
    apart = torch.tensor([[0.9, 0.8, 0.7, 0.6], [0.5, 0.4, 0.3, 0.2]])
    yield Case("a budget over the first two columns only", _inputs(apart, flat, 4, 1, 3), _lens(3, 2))
    yield Case("a budget of what the first two columns hold", _inputs(apart, flat, 4, 1, 2), _lens(2, 2))
    # more rows would be faster, but the second draft is below the floor
    rising = torch.tensor([0, 1, 0.6, 5], dtype=torch.float64)
    halved = torch.tensor([[0.5, 0.0]])
    yield Case("global, a rate that rises behind the last draft", _inputs(halved, rising, mode="global"), _lens(1))
    yield from _golden_cases()
    yield Case("no requests", _inputs(torch.empty(0, 5), flat), _lens())


def _golden_cases() -> Iterator[Case]:
    survival = torch.tensor([[0.9, 0.72, 0.36], [0.6, 0.3, 0.12]])
    falling = torch.tensor([0, 0, 1, 0.96, 0.9, 0.82, 0.73, 0.65, 0.58], dtype=torch.float64)
    stairs = torch.tensor([0, 0, 1, 0.68, 0.68, 0.68, 0.67, 0.66, 0.5], dtype=torch.float64)
    halved, sure = torch.tensor([0, 1, 0.5, 0.5], dtype=torch.float64), torch.ones(1, 2)
    yield Case("a draft that leaves the throughput as it is, early stop", _inputs(sure, halved), _lens(1))
    yield Case("a draft that leaves the throughput as it is, global", _inputs(sure, halved, mode="global"), _lens(3))
    yield Case("C9.1 vector 2, early stop", _inputs(survival, falling), _lens(3, 2))
    yield Case("C9.1 vector 2, global", _inputs(survival, falling, mode="global"), _lens(3, 2))
    yield Case("C9.1 vector 3, early stop", _inputs(survival, stairs), _lens(1, 1))
    yield Case("C9.1 vector 3, global", _inputs(survival, stairs, mode="global"), _lens(4, 3))
    peek = torch.tensor([0, 1, 0.5, 0.45], dtype=torch.float64)
    for second, early, whole in ((0.72, 1, 3), (0.0, 1, 1)):
        one = torch.tensor([[0.8, second]])
        yield Case(f"C9.1 vector 4, a_2 = {second}, early stop", _inputs(one, peek), _lens(early))
        yield Case(f"C9.1 vector 4, a_2 = {second}, global", _inputs(one, peek, mode="global"), _lens(whole))


def _inputs(
    survival: Tensor, rates: Tensor, budget: int | None = None, least: int = 1, most: int = 0, mode: str = "budget"
) -> dict[str, object]:
    if budget is None and mode == "budget":
        mode = "early_stop"
    return {
        "survival": survival, "steps_per_second": rates,
        "budget": None if budget is None else torch.tensor([budget], dtype=torch.int32),
        "mode": mode, "min_verify": least, "max_verify": most,
    }  # fmt: skip


def _lens(*rows: int) -> dict[str, Tensor]:
    return {"verify_lens": torch.tensor(rows, dtype=torch.int32)}


def _sites(shapes: ModelShapes) -> tuple[Site, ...]:
    # a table for 64 requests; the length is the server's choice and no kernel depends on it
    return (Site("draft", axes={"G": shapes.gamma, "L": 64 * shapes.rows_per_request + 1}),)


SCHEDULE_PREFIX = Contract(
    name="schedule_prefix",
    summary="Verify rows of each request, from survival probabilities and step rates.",
    source="C1.10",
    phases=("draft",),
    parameters=(
        Argument("survival", ("R", "G"), ("float32",), doc="probability that drafts 1 to k are all accepted"),
        Argument("steps_per_second", ("L",), ("float64",), doc="rate of a step with b tokens, by b"),
        Argument("budget", (1,), ("int32",), optional=True, doc="drafts admitted in mode budget"),
        Option("mode", "str", "early_stop", ("early_stop", "global", "budget"), "how the number of drafts is found"),
        Option("min_verify", "int", 1, doc="least rows per request"),
        Option("max_verify", "int", 0, doc="most rows per request; 0 = G + 1"),
    ),
    outputs=(Output("verify_lens", ("R",), "int32", bitwise(), "rows to verify, anchor included"),),
    rows="R",
    reference=schedule_prefix,
    cases=_cases,
    sites=_sites,
    semantics=(Semantic("ties", "position", ("position",), "equal survivals: position first, then request"),),
    small=True,
)

CONTRACTS = (SCHEDULE_PREFIX,)
