"""What a comparison says, as tables for people and as JSON for programs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict
from typing import Any

from rich.console import Console

from dspark_ops.bench.comparison import ArmSummary, Comparison
from dspark_ops.bench.pairing import Pair, measured
from dspark_ops.bench.record import SCHEMA, ArmRecord
from dspark_ops.bench.sensitivity import PROMISED_POWER
from dspark_ops.bench.statistics import percent
from dspark_ops.cli._show import table


def report_of(first: ArmRecord, second: ArmRecord, comparison: Comparison) -> dict[str, Any]:
    """Return the report of a comparison with plain types only."""
    return {
        "kind": "dspark-ops ab report",
        "schema": SCHEMA,
        "sessions": [first.session, second.session],
        "treatments": {"A": dict(first.treatment), "B": dict(second.treatment)},
        "declared": sorted({*first.declared, *second.declared}),
        "order": first.order,
        "simulated": comparison.simulated,
        "workload": dict(first.workload),
        "fingerprints": {
            name: next((dict(item.fingerprint) for item in record.launches if item.measurement), None)
            for name, record in (("A", first), ("B", second))
        },
        "dispatch": {
            name: [asdict(item) for item in served]
            for name, record in (("A", first), ("B", second))
            if (served := next((i.measurement.dispatch for i in record.launches if i.measurement), None)) is not None
        },
        "comparison": comparison.to_json(),
    }


def print_comparison(out: Console, comparison: Comparison, records: tuple[ArmRecord, ArmRecord]) -> None:
    """Print the verdict, the intervals, all pairs, both arms, and what was not shown."""
    out.print(comparison.text, style="bold", markup=False)
    _print_list(out, "faults", comparison.faults)
    _print_list(out, "left out", comparison.left_out)
    rows = list(_estimates(comparison))
    if rows:
        columns = ("estimate", "#effect", "#interval", "#pairs", "#spread of a pair")
        out.print()
        out.print(table("effect of B, positive where B is faster", columns, rows))
    pairs = [*_pairs("A/B", comparison.pairs), *_pairs("A/A", comparison.control_pairs)]
    if pairs:
        out.print()
        out.print(table("pairs of launches", ("pair", "#A, us", "#other, us", "#effect", "first"), pairs))
    if comparison.arms:
        columns = (
            "arm",
            "#launches",
            "#us per cycle",
            "#tokens/s",
            "#at A's length",
            "#first token, ms",
            "#accept len",
            "#host waits",
        )
        out.print()
        out.print(table("medians over launches", (*columns, "accept lengths"), map(_arm, comparison.arms)))
    if comparison.treated:
        out.print()
        out.print(table("served differently, and called", ("operator", "A", "B"), comparison.treated))
    if found := comparison.sensitivity:
        needed = ", ".join(f"{effect:g} % needs {count or 'over 1024'}" for effect, count in found.pairs_for.items())
        chance = f"{100 * PROMISED_POWER:.0f} %"
        out.print(
            f"\nan effect of {percent(found.smallest):.1f} % would be found with a chance of {chance} (spread of the "
            f"{found.origin}); pairs needed, with as many of A and A: {needed}",
            markup=False,
            soft_wrap=True,
        )
    _print_list(out, "notes", comparison.notes)
    _print_list(out, "not shown", comparison.not_shown)
    where = records[0].session if comparison.interleaved else f"{records[0].session} and {records[1].session}"
    out.print(f"\nsession {where}, order {records[0].order}", markup=False)


def _estimates(comparison: Comparison) -> Iterator[tuple[str, ...]]:
    named = (
        ("cycles per second", comparison.effect),
        ("A against A", comparison.control),
        ("tokens per second", comparison.tps),
        ("tokens per second at A's accept length", comparison.tps_normalised),
    )
    for name, item in named:
        if item is not None:
            interval = f"[{percent(item.low):+.2f}, {percent(item.high):+.2f}] %"
            yield name, f"{percent(item.mean):+.2f} %", interval, str(item.pairs), f"{percent(item.deviation):.2f} %"


def _pairs(name: str, pairs: Iterable[Pair]) -> Iterator[tuple[str, ...]]:
    for pair in pairs:
        cycles = [f"{measured(launch).cycle:.1f}" for launch in (pair.first, pair.second)]
        leader = min((pair.first, pair.second), key=lambda launch: launch.number)
        yield f"{name} {pair.number}", *cycles, f"{percent(pair.ratio):+.2f} %", leader.arm.value


def _arm(arm: ArmSummary) -> tuple[str, ...]:
    total = sum(arm.histogram.values())
    shares = ", ".join(f"{length}: {100 * count / total:.0f} %" for length, count in arm.histogram.items())
    figures = (
        (arm.output_tps, 1), (arm.tps_normalised, 1), (arm.ttft_ms, 1), (arm.accept_len, 3),
        (arm.host_syncs_per_cycle, 2),
    )  # fmt: skip
    shown = ["-" if value is None else f"{value:.{digits}f}" for value, digits in figures]
    return arm.arm, str(arm.launches), f"{arm.cycle_us:.1f}", *shown, shares or "-"


def _print_list(out: Console, title: str, lines: Iterable[str]) -> None:
    texts = list(lines)
    if texts:
        out.print(f"\n{title}", style="bold")
        for text in texts:
            out.print(f"  - {text}", markup=False, soft_wrap=True)
