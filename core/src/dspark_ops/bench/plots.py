"""The plots of a report, as SVG texts that stand inside a page."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterable, Sequence
from statistics import median
from typing import Any

from dspark_ops.bench.comparison import Comparison
from dspark_ops.bench.measurement import Measurement
from dspark_ops.bench.pairing import measured
from dspark_ops.bench.record import ArmRecord, Launch
from dspark_ops.bench.statistics import Estimate, percent

__all__ = ["effects", "histograms", "launches", "operator_shares"]

_COLORS = {"A": "#2b6cb0", "B": "#c05621", "A'": "#8a94a3"}
_SHOWN_OPERATORS = 14


def launches(first: ArmRecord, second: ArmRecord) -> str:
    """Return a plot of every launch in the order of time: its timed runs, and the median that counts."""
    items = [item for record in (first, second) for item in record.launches]
    items.sort(key=lambda item: item.started)

    def draw(axes: Any) -> None:
        for place, item in enumerate(items):
            if item.measurement is None:
                axes.axvline(place, color="#b91c1c", linestyle=":")
                continue
            values = item.measurement.cycle_us
            color = _COLORS[item.arm.value]
            axes.plot([place] * len(values), values, ".", color=color, alpha=0.35, markersize=4)
            axes.plot([place], [item.measurement.cycle], "D", color=color, markersize=6)
        for left, right in _neighbours(items):
            ends = [(place, measured(items[place]).cycle) for place in (left, right)]
            axes.plot(*zip(*ends, strict=True), "-", color="#64748b", linewidth=0.8, zorder=0)
        _legend(axes, [name for name in _COLORS if any(item.arm.value == name for item in items)])
        axes.set_xticks(range(len(items)), [item.arm.value for item in items])
        axes.set_xlabel("launches in the order of time; a line joins a pair, a dotted line is a failed launch")
        axes.set_ylabel("microseconds per cycle")

    return _svg("launches", draw, height=3.4)


def effects(comparison: Comparison) -> str:
    """Return a plot of all pairs, of A/B and of A/A, with mean and interval of each."""
    groups: list[tuple[str, list[float], Estimate | None, str]] = [
        ("A/B", [pair.ratio for pair in comparison.pairs], comparison.effect, _COLORS["B"]),
        ("A/A", [pair.ratio for pair in comparison.control_pairs], comparison.control, _COLORS["A'"]),
    ]

    def draw(axes: Any) -> None:
        axes.axvline(0, color="#334155", linewidth=0.8)
        for place, (_, ratios, estimate, color) in enumerate(groups):
            axes.plot([percent(ratio) for ratio in ratios], [place] * len(ratios), "o", color=color, alpha=0.5)
            if estimate is not None:
                low, mean, high = map(percent, (estimate.low, estimate.mean, estimate.high))
                xerr = [[mean - low], [high - mean]]
                axes.errorbar([mean], [place - 0.22], xerr=xerr, fmt="D", color=color, capsize=5)
        axes.set_yticks(range(len(groups)), [name for name, *_ in groups])
        axes.set_ylim(len(groups) - 0.4, -0.5)
        axes.set_xlabel("effect in percent, positive where the second is faster; dots are pairs, bars the intervals")

    return _svg("effects", draw, height=2.2)


def histograms(comparison: Comparison) -> str:
    """Return a plot of both arms' accept lengths, as shares of their verify steps; empty if neither has any."""
    arms = [arm for arm in comparison.arms or () if arm.histogram]
    if not arms:
        return ""

    def draw(axes: Any) -> None:
        width = 0.8 / len(arms)
        for number, arm in enumerate(arms):
            total = sum(arm.histogram.values())
            places = [length + (number - (len(arms) - 1) / 2) * width for length in arm.histogram]
            shares = [100 * count / total for count in arm.histogram.values()]
            length = "" if arm.accept_len is None else f", mean {arm.accept_len:.3f}"
            name = "AB"[number]
            axes.bar(places, shares, width, color=_COLORS[name], label=f"{name}{length}")
        axes.set_xticks(sorted({length for arm in arms for length in arm.histogram}))
        axes.set_xlabel("tokens that a verify step gives")
        axes.set_ylabel("percent of verify steps")
        axes.legend(frameon=False)

    return _svg("histograms", draw, height=2.8)


def operator_shares(groups: tuple[Sequence[Launch], Sequence[Launch]]) -> tuple[str, str]:
    """Return a plot of each operator's share in both arms, and what the shares are of: time, or calls.

    Shares of time come from the counted run of each launch; where calls return before their work is done there are no
    times, and the shares are those of calls. Empty if there is no dispatch evidence.
    """
    tables = [_operators(map(measured, group)) for group in groups]
    if not all(tables):
        return "", ""
    timed = all(seconds is not None for table in tables for seconds, _ in table.values())
    shares = []
    for table in tables:
        values = {name: (seconds or 0.0) if timed else float(calls) for name, (seconds, calls) in table.items()}
        total = sum(values.values()) or 1.0
        shares.append({name: 100 * value / total for name, value in values.items()})
    order = sorted({*shares[0], *shares[1]}, key=lambda name: -max(share.get(name, 0.0) for share in shares))
    shown = order[:_SHOWN_OPERATORS][::-1]

    def draw(axes: Any) -> None:
        for number, name in enumerate("AB"):
            places = [place + (0.2 if number == 0 else -0.2) for place in range(len(shown))]
            axes.barh(places, [shares[number].get(item, 0.0) for item in shown], 0.38, color=_COLORS[name], label=name)
        axes.set_yticks(range(len(shown)), shown)
        axes.set_xlabel(f"percent of the {'time inside operators' if timed else 'calls of operators'}")
        axes.legend(frameon=False, loc="lower right")

    what = "time inside operators, in the counted run of each launch" if timed else "calls: times were not taken"
    return _svg("operators", draw, height=0.6 + 0.36 * len(shown)), what


def _operators(items: Iterable[Measurement]) -> dict[str, tuple[float | None, int]]:
    """Return median seconds and calls of each operator that is no composition of others."""
    seconds: dict[str, list[float | None]] = {}
    calls: dict[str, int] = {}
    for item in items:
        own: dict[str, float | None] = {}
        for served in item.dispatch or ():
            if served.composed or not served.calls:
                continue
            before = own.get(served.operator, 0.0)
            own[served.operator] = None if served.seconds is None or before is None else before + served.seconds
            calls[served.operator] = max(calls.get(served.operator, 0), served.calls)
        for name, value in own.items():
            seconds.setdefault(name, []).append(value)
    return {name: (None if None in values else median(values), calls[name]) for name, values in seconds.items()}  # type: ignore[type-var]


def _neighbours(items: Sequence[Launch]) -> Iterable[tuple[int, int]]:
    for place, item in enumerate(items[:-1]):
        other = items[place + 1]
        if item.pair == other.pair and item.measurement and other.measurement:
            yield place, place + 1


def _legend(axes: Any, names: Sequence[str]) -> None:
    texts = {"A": "A", "B": "B", "A'": "A again, as control"}
    for name in names:
        axes.plot([], [], "D", color=_COLORS[name], label=texts[name])
    axes.legend(frameon=False, ncols=len(names), loc="upper center", bbox_to_anchor=(0.5, 1.16))


def _svg(name: str, draw: Callable[[Any], None], height: float) -> str:
    import matplotlib
    from matplotlib.figure import Figure

    # Without pyplot: no window system, and no state that a caller's own plots would share.
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": name, "font.family": "sans-serif"}):
        figure = Figure(figsize=(8.4, height), layout="constrained")
        axes = figure.subplots()
        axes.spines[["top", "right"]].set_visible(False)
        draw(axes)
        stream = io.StringIO()
        nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
        figure.savefig(stream, format="svg", transparent=True, metadata=nothing)
    text = stream.getvalue()
    # Names are made unique, since several plots share one page.
    return re.sub(r'(\bid="|url\(#|href="#)', rf"\g<1>{name}-", text[text.index("<svg") :])
