"""What the recorded figures say, as numbers and sentences: ratios, means, targets. No file is read or written here."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Group = Mapping[str, Any]

#: Traffic above which the bytes decide, and the factor over the floor that is asked for.
LARGE_BYTES = 8_000_000
FLOOR_FACTOR = 1.5


@dataclass(frozen=True)
class Standing:
    """How the own kernels stand against one peer: groups compared, geometric mean, and those that are slower."""

    peer: str
    groups: int
    mean: float
    slower: tuple[str, ...]
    not_told: int


@dataclass(frozen=True)
class Target:
    """A figure that was asked for: what it is, the bound in microseconds, and the figure, None where not measured."""

    what: str
    bound: float
    found: float | None
    source: str

    @property
    def text(self) -> str:
        """Whether it is met, in a word."""
        if self.found is None:
            return "not measured"
        return "met" if self.found <= self.bound else "missed"


def own_us(group: Group) -> float | None:
    """Return the microseconds of the own kernel, or None."""
    return group["arms"].get("own", {}).get("median_us")


def measured(groups: Sequence[Group]) -> list[Group]:
    """Return the groups whose own kernel was timed."""
    return [group for group in groups if own_us(group) is not None]


def current(groups: Sequence[Group]) -> list[Group]:
    """Return the groups that were timed with the kernels as they are."""
    return [group for group in groups if "earlier" not in group]


def standing(groups: Sequence[Group], peer: str) -> Standing | None:
    """Return how the own kernels stand against a peer, or None if no group has both."""
    logs, slower, hidden = [], [], 0
    for group in measured(groups):
        arm = group["arms"].get(peer)
        if arm is None or "median_us" not in arm:
            continue
        ratio = arm["median_us"] / group["arms"]["own"]["median_us"]
        logs.append(math.log(ratio))
        told = arm["own_is_faster"]["ratio"]
        hidden += told is None
        if told is not None and told < 1:
            slower.append(f"`{group['op']}` {group['rows']} ({1 / told:.2f}x)")
    if not logs:
        return None
    return Standing(peer, len(logs), math.exp(sum(logs) / len(logs)), tuple(slower), hidden)


def over_floor(groups: Sequence[Group]) -> tuple[list[Group], list[Group]]:
    """Return the groups of large traffic, and all others, that take longer than 1.5 times their floor."""
    beyond = [group for group in measured(groups) if group.get("over_floor", 0) > FLOOR_FACTOR]
    large = [group for group in beyond if group["bytes"] > LARGE_BYTES]
    return large, [group for group in beyond if group["bytes"] <= LARGE_BYTES]


def targets(groups: Sequence[Group]) -> Iterator[Target]:
    """Yield the absolute targets with what was found; the bounds are an earlier run's figures of SGLang's kernels."""
    found = {(group["op"], group["rows"]): own_us(group) for group in measured(groups)}
    earlier = "SGLang 0.5.23, seen before"
    for operator, rows, bound, source in (
        ("argmax_rows", 6, 4.73, earlier),
        ("mhc_combine_norm", 6, 2.7, earlier),
        ("mhc_combine_norm_mxfp8", 6, 4.1, earlier),
        ("mhc_post", 6, 1.6, earlier),
        ("moe_gate_topk_packed", 6, 3.0, earlier),
        ("accept_greedy", 1, 1.65, f"{earlier}: the tail without argmax"),
        ("compress_c1", 6, 1.8, earlier),
        ("mla_sched_meta", 1, 2.5, "set"),
        ("mla_sched_meta", 64, 5.0, "set"),
    ):
        yield Target(f"`{operator}`, {rows} rows", bound, found.get((operator, rows)), source)


def failures(groups: Sequence[Group]) -> dict[str, dict[str, list[int]]]:
    """Return for each operator the reasons why it was not timed, with the row counts."""
    reasons: dict[str, dict[str, list[int]]] = {}
    for group in groups:
        if "failed" in group:
            reasons.setdefault(group["op"], {}).setdefault(group["failed"], []).append(group["rows"])
    return reasons


def left_out(groups: Sequence[Group]) -> dict[tuple[str, str], set[str]]:
    """Return for each peer and reason the operators at which it does not take part, plain absences left out."""
    reasons: dict[tuple[str, str], set[str]] = {}
    for group in groups:
        for peer, reason in group["unfit"].items():
            if not reason.startswith("it has no kernel of this operator"):
                reasons.setdefault((peer, reason.partition("\n")[0][:240]), set()).add(group["op"])
    return reasons
