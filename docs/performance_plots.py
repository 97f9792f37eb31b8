"""The plots of docs/performance.md, drawn from the recorded figures."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

Group = Mapping[str, Any]

COLOURS = {"own": "#1b6ca8", "sglang": "#d1793a", "flashmla": "#7a5195", "compile": "#6b9a4b", "torch": "#9a9a9a"}
NAMES = {"own": "dspark-ops", "sglang": "SGLang", "flashmla": "FlashMLA", "compile": "torch.compile", "torch": "torch"}
STYLE = {"font.size": 8, "axes.spines.top": False, "axes.spines.right": False, "svg.hashsalt": "dspark-ops"}


def save(figure: Any, path: Path) -> None:
    """Write a figure as SVG without a date, so that equal figures give equal files."""
    figure.savefig(path, bbox_inches="tight", metadata={"Date": None})
    plt.close(figure)


def operators_at(groups: Sequence[Group], rows: int, path: Path) -> None:
    """Draw every operator at one row count: a dot per arm, over a logarithmic scale of microseconds."""
    here = sorted(
        (one for one in groups if one["rows"] == rows and "own" in one["arms"]),
        key=lambda one: -one["arms"]["own"]["median_us"],
    )
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(figsize=(7, 0.19 * len(here) + 0.8))
        for name, colour in COLOURS.items():
            arms = [(one["arms"].get(name, {}), at) for at, one in enumerate(here)]
            points = [(arm["median_us"], at) for arm, at in arms if "median_us" in arm]
            if points:
                size = 30 if name == "own" else 16
                axes.scatter(*zip(*points, strict=True), s=size, color=colour, label=NAMES[name], zorder=3)
        floors = [(one["floor_us"], at) for at, one in enumerate(here) if "floor_us" in one]
        if floors:
            axes.scatter(*zip(*floors, strict=True), marker="|", s=60, color="black", label="floor", zorder=2)
        axes.set_yticks(range(len(here)), [one["op"] for one in here])
        axes.set_xscale("log")
        axes.set_xlabel(f"microseconds per call, {rows} rows (of the operator's own rows axis)")
        axes.grid(axis="x", which="both", alpha=0.25)
        axes.legend(loc="lower center", bbox_to_anchor=(0.4, 1.0), ncols=6, frameon=False)
        save(figure, path)


def over_rows(groups: Sequence[Group], peer: str, path: Path) -> int:
    """Draw own time and a peer's over the row counts, a small plot per operator; return how many there are."""
    by_operator: dict[str, list[Group]] = {}
    for one in groups:
        if "median_us" in one["arms"].get(peer, {}) and "median_us" in one["arms"].get("own", {}):
            by_operator.setdefault(one["op"], []).append(one)
    if not by_operator:
        return 0
    columns = min(4, len(by_operator))
    lines = math.ceil(len(by_operator) / columns)
    with plt.rc_context(STYLE):
        figure, grid = plt.subplots(lines, columns, figsize=(8.5, 1.6 * lines), squeeze=False)
        for axes in grid.flat:
            axes.set_visible(False)
        for axes, (operator, found) in zip(grid.flat, sorted(by_operator.items()), strict=False):
            axes.set_visible(True)
            found = sorted(found, key=lambda one: one["rows"])
            counts = [one["rows"] for one in found]
            for name in ("own", peer):
                arms = [one["arms"][name] for one in found]
                axes.plot(counts, [arm["median_us"] for arm in arms], "o-", ms=2.5, lw=1.2, color=COLOURS[name])
                low, high = [arm["p10_us"] for arm in arms], [arm["p90_us"] for arm in arms]
                axes.fill_between(counts, low, high, color=COLOURS[name], alpha=0.2, lw=0)
            axes.set_title(operator, fontsize=8)
            axes.set_ylim(bottom=0)
            axes.grid(alpha=0.25)
        handles = [plt.Line2D([], [], color=COLOURS[name], label=NAMES[name]) for name in ("own", peer)]
        figure.legend(handles=handles, loc="upper center", ncols=2, frameon=False)
        figure.supxlabel("rows")
        figure.supylabel("microseconds per call (shade: first to last decile)")
        figure.tight_layout(rect=(0, 0, 1, 0.97))
        save(figure, path)
    return len(by_operator)


def cycle_parts(report: Mapping[str, Any], path: Path) -> None:
    """Draw what each operator takes of a cycle under two plans, the largest first."""
    names = list(report["arms"])
    entries = [one for one in report["operators"] if max(one[name]["us"] for name in names) >= 5]
    labels = [f"{one['operator']} ({one['site']}, {one['calls']}x)" for one in entries]
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(figsize=(7, 0.26 * len(entries) + 0.8))
        for shift, (name, colour) in enumerate(zip(names, ("#1b6ca8", "#9a9a9a"), strict=True)):
            places = [at + 0.38 * shift for at in range(len(entries))]
            axes.barh(places, [one[name]["us"] for one in entries], height=0.36, color=colour, label=name)
        axes.set_yticks([at + 0.19 for at in range(len(entries))], labels)
        axes.invert_yaxis()
        axes.set_xlabel("microseconds of one cycle, each operator's calls alone in one graph")
        axes.legend(frameon=False, loc="lower right")
        axes.grid(axis="x", alpha=0.25)
        save(figure, path)
