"""The report of a comparison as one page: it holds all it needs, and fetches nothing."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

from dspark_ops.bench import plots
from dspark_ops.bench.comparison import Comparison, Verdict
from dspark_ops.bench.fingerprint import flat
from dspark_ops.bench.pairing import measured, pairs_of
from dspark_ops.bench.record import ArmRecord
from dspark_ops.bench.sensitivity import PROMISED_POWER
from dspark_ops.bench.statistics import percent

__all__ = ["page"]

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #1e293b; max-width: 62rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.4rem; } h2 { font-size: 1.1rem; margin-top: 2.2rem; }
.verdict { border-left: 6px solid #64748b; background: #f1f5f9; padding: .8rem 1rem; font-weight: 600; }
.simulated { border: 2px dashed #b45309; padding: .4rem 1rem; }
.faster { border-color: #15803d; } .slower { border-color: #c2410c; } .void { border-color: #b91c1c; }
table { border-collapse: collapse; margin: .6rem 0; } td, th { padding: .2rem .8rem .2rem 0; text-align: left; }
th { border-bottom: 1px solid #94a3b8; } td { border-bottom: 1px solid #e2e8f0; vertical-align: top; }
svg { max-width: 100%; height: auto; } pre { background: #f8fafc; padding: .6rem; overflow-x: auto; }
td.field { font-family: ui-monospace, monospace; font-size: .85em; } .scroll { overflow-x: auto; }
"""
_CLASS = {Verdict.FASTER: "faster", Verdict.SLOWER: "slower", Verdict.VOID: "void"}


def page(comparison: Comparison, first: ArmRecord, second: ArmRecord) -> str:
    """Return the HTML text of a report: verdict, intervals, plots, pairs, dispatch, fingerprints, what was not shown.

    Raises:
        MissingDependencyError: matplotlib is not installed.
    """
    pairs = pairs_of(first, second)
    shares, what = plots.operator_shares((pairs.first, pairs.second))
    parts = [
        f'<p class="verdict {_CLASS.get(comparison.verdict, "noise")}">{escape(comparison.text)}</p>',
        '<p class="simulated">simulated: true. Acceptance was drawn, not found.</p>' if comparison.simulated else "",
        _list("Faults", comparison.faults),
        _list("Left out", comparison.left_out),
        "<h2>Effect</h2>" + plots.effects(comparison) if pairs.compared or pairs.control else "",
        _estimates(comparison),
        "<h2>Launches</h2>" + plots.launches(first, second),
        _pairs(comparison),
        _arms(comparison),
        "<h2>Accept lengths</h2>" + plot if (plot := plots.histograms(comparison)) else "",
        f"<h2>Operators</h2><p>Shares of {escape(what)}.</p>{shares}" if shares else "",
        _dispatch(pairs),
        _list("Notes", comparison.notes),
        _list("Not shown", comparison.not_shown),
        _treatments(first, second),
        _fingerprints(first, second),
    ]
    title = f"A/B {first.session}"
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head>\n<body><h1>{escape(title)}</h1>\n"
        + "\n".join(part for part in parts if part)
        + "\n</body></html>\n"
    )


def _estimates(comparison: Comparison) -> str:
    named = (
        ("cycles per second", comparison.effect),
        ("A against A", comparison.control),
        ("tokens per second", comparison.tps),
        ("tokens per second at A's accept length", comparison.tps_normalised),
    )
    rows = [
        (name, f"{percent(item.mean):+.2f} %", f"[{percent(item.low):+.2f}, {percent(item.high):+.2f}] %", item.pairs)
        for name, item in named
        if item is not None
    ]
    text = _table(("estimate", "effect of B", "interval", "pairs"), rows)
    if found := comparison.sensitivity:
        needed = ", ".join(f"{effect:g} %: {count or 'over 1024'}" for effect, count in found.pairs_for.items())
        text += (
            f"<p>An effect of {percent(found.smallest):.1f} % would be found with a chance of "
            f"{100 * PROMISED_POWER:.0f} % by this many pairs. Pairs needed for an effect of {needed}.</p>"
        )
    return text


def _pairs(comparison: Comparison) -> str:
    rows = [
        (f"{name} {pair.number}", *(f"{measured(item).cycle:.1f}" for item in (pair.first, pair.second)),
         f"{percent(pair.ratio):+.2f} %")
        for name, group in (("A/B", comparison.pairs), ("A/A", comparison.control_pairs))
        for pair in group
    ]  # fmt: skip
    return _table(("pair", "A, us per cycle", "other", "effect"), rows)


def _arms(comparison: Comparison) -> str:
    rows = [
        (arm.arm, arm.launches, f"{arm.cycle_us:.1f}",
         *("-" if value is None else f"{value:.3f}" for value in (arm.output_tps, arm.tps_normalised, arm.ttft_ms,
                                                                   arm.accept_len, arm.host_syncs_per_cycle)))
        for arm in comparison.arms or ()
    ]  # fmt: skip
    heads = (
        "arm",
        "launches",
        "us per cycle",
        "tokens/s",
        "tokens/s at A's length",
        "first token, ms",
        "accept len",
        "host waits per cycle",
    )
    return _table(heads, rows)


def _dispatch(pairs: Any) -> str:
    text = ""
    for name, group in (("A", pairs.first), ("B", pairs.second)):
        served = measured(group[0]).dispatch if group else None
        if served is None:
            continue
        rows = [(item.operator, item.kernel, item.rank, item.calls, item.why) for item in served]
        text += f"<details><summary>What served arm {name}</summary>"
        text += _table(("operator", "kernel", "class", "calls", "why"), rows) + "</details>"
    return text


def _treatments(first: ArmRecord, second: ArmRecord) -> str:
    text = "<h2>Treatment</h2>"
    for name, record in (("A", first), ("B", second)):
        others = {key: value for key, value in record.treatment.items() if key != "config"}
        text += f"<p>Arm {name}</p><pre>{escape(json.dumps(others, indent=1))}</pre>"
        if config := record.treatment.get("config"):
            text += f"<pre>{escape(str(config))}</pre>"
    return f"{text}<p>Shared</p><pre>{escape(json.dumps(dict(first.workload), indent=1))}</pre>"


def _fingerprints(first: ArmRecord, second: ArmRecord) -> str:
    found = [next((flat(i.fingerprint) for i in record.launches if i.measurement), {}) for record in (first, second)]
    names = sorted({*found[0], *found[1]})
    rows = [(name, found[0].get(name, "-"), found[1].get(name, "-")) for name in names]
    return f"<details><summary>Fingerprint</summary>{_table(('field', 'A', 'B'), rows, field=True)}</details>"


def _table(heads: Sequence[str], rows: Iterable[Sequence[Any]], field: bool = False) -> str:
    lines = [row for row in rows]
    if not lines:
        return ""
    kind = ' class="field"' if field else ""
    body = "".join("<tr>" + "".join(f"<td{kind}>{escape(str(cell))}</td>" for cell in row) + "</tr>" for row in lines)
    head = "".join(f"<th>{escape(name)}</th>" for name in heads)
    return f'<div class="scroll"><table><tr>{head}</tr>{body}</table></div>'


def _list(title: str, lines: Iterable[str]) -> str:
    items = "".join(f"<li>{escape(line)}</li>" for line in lines)
    return f"<h2>{title}</h2><ul>{items}</ul>" if items else ""
