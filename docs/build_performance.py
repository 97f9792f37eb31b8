"""Writes docs/performance.md and its plots from the recorded figures: ``python docs/build_performance.py``.

Reads ``benchmarks/results/h200.json``, and where they exist ``cycle_h200.json``, ``cycle_reference_h200.json`` and
``decode_h200.json``; ``benchmarks/record_all.py`` writes them. ``flashmla_schedule_h200.json`` comes from
``benchmarks/flashmla_schedule.py``, ``shared_gpu_h200.json`` from ``benchmarks/shared_gpu.py``. Figures marked as those
of an earlier kernel are in the table alone. ``--check`` says if the page is up to date.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
import performance_decode
import performance_figures as figures
import performance_schedule
import performance_shared

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
PAGE = ROOT / "docs" / "performance.md"
IMAGES = ROOT / "docs" / "images" / "performance"
REASONS = ROOT / "docs" / "performance_reasons.toml"
PEERS = {"sglang": "SGLang 0.5.23", "flashmla": "FlashMLA", "compile": "torch.compile", "torch": "torch, eager"}


def main() -> None:
    """Write the page and its plots, or check the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="only say whether the page is up to date")
    check = parser.parse_args().check
    report, decode, schedule, shared = map(
        _read, ("h200.json", "decode_h200.json", "flashmla_schedule_h200.json", "shared_gpu_h200.json")
    )
    cycles = [found for found in map(_read, ("cycle_h200.json", "cycle_reference_h200.json")) if found]
    if report is None:
        sys.exit(f"{RESULTS / 'h200.json'} does not exist: run benchmarks/record_all.py on a GPU")
    reasons = tomllib.loads(REASONS.read_text(encoding="utf-8"))
    text = "\n".join(page(report, cycles, decode, reasons, schedule, shared)) + "\n"
    if check:
        if PAGE.read_text(encoding="utf-8") != text:
            sys.exit("docs/performance.md is not up to date: run python docs/build_performance.py")
        return
    PAGE.write_text(text, encoding="utf-8")
    draw(report, cycles)


def _read(name: str) -> dict[str, Any] | None:
    path = RESULTS / name
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None


def draw(report: Mapping[str, Any], cycles: Sequence[Mapping[str, Any]]) -> None:
    """Draw the plots that the page shows."""
    import performance_plots as plots

    IMAGES.mkdir(parents=True, exist_ok=True)
    groups = figures.measured(figures.current(report["groups"]))
    plots.operators_at(groups, 6, IMAGES / "operators.svg")
    plots.over_rows(groups, "sglang", IMAGES / "rows_sglang.svg")
    for cycle in cycles[:1]:
        plots.cycle_parts(cycle, IMAGES / "cycle.svg")


def page(
    report: Mapping[str, Any],
    cycles: Sequence[Mapping[str, Any]],
    decode: Mapping[str, Any] | None,
    reasons: dict[str, str],
    schedule: Mapping[str, Any] | None = None,
    shared: Mapping[str, Any] | None = None,
) -> Iterator[str]:
    """Yield the lines of the page."""
    groups = report["groups"]
    current = figures.current(groups)
    yield "<!-- written by docs/build_performance.py: do not edit -->"
    yield "# Performance"
    yield from _method(report)
    yield from _standings(current)
    yield from _earlier_standings(groups)
    yield from _targets(current, reasons, schedule)
    yield from _floors(current, reasons)
    yield from _table(groups)
    if cycles:
        yield from _cycle(cycles)
    if schedule is not None:
        yield from performance_schedule.section(schedule)
    if shared is not None:
        yield from performance_shared.section(shared)
    if decode is not None:
        yield from performance_decode.section(decode)
    yield from _not_measured(groups)


def _method(report: Mapping[str, Any]) -> Iterator[str]:
    machine = report["machine"]
    yield (
        f"\nMachine: {machine['device']} ({machine['arch']}, {machine['units']} units, "
        f"L2 {machine['l2_bytes'] >> 20} MiB), driver {machine['driver']}, CUDA {machine['toolkit']}, "
        f"torch {machine['torch']}, Triton {machine['triton']}, dspark-ops {machine['dspark_ops']}. "
        f"Sizes: `{report['model']}`. Clocks as found, not set."
    )
    yield f"\nMethod: {report['what']}; {report['rounds']} rounds. Rows count the operator's own rows axis."
    if "floor" in report:
        floor = report["floor"]
        yield (
            f"\nFloor: the larger of bytes over the measured copy bandwidth "
            f"({floor['copy_bytes_per_second'] / 1e12:.2f} TB/s, read and written bytes together), and "
            f"{floor['one_load_launch_us']:.2f} us for a kernel that loads one element, plus "
            f"{floor['dependent_load_us']:.2f} us for each further load that must wait for the one before. Bytes are "
            f"counted once per input and output; of pages and tables only what the indices name. These are the last "
            f"run's figures; the floor of a group is of the run that timed it."
        )
    yield (
        "\nThree cautions. Kernels that may begin before their predecessor has ended (PDL: SGLang's in CUDA C++) "
        "overlap here with the equal call in front of them, more than they would between other operators. An operator "
        "of a few kilobytes reads from the cache whatever one does. And the processes that record share the GPU, one "
        "timing while the others wait, which moves small kernels by up to 0.2 us: see below, a GPU alone and a shared "
        "one.\n"
    )
    yield (
        "Again: `python benchmarks/record_all.py --results benchmarks/results`, then "
        "`python docs/build_performance.py`. One operator: `dspark-ops bench micro --op argmax_rows --vs torch,sglang`."
    )


def _standings(groups: Sequence[figures.Group]) -> Iterator[str]:
    yield "\n## Against what people would use instead\n"
    yield "| peer | groups compared | geometric mean, own faster by | not told apart | own slower in |"
    yield "| --- | --- | --- | --- | --- |"
    slow: list[figures.Standing] = []
    for peer, name in PEERS.items():
        found = figures.standing(groups, peer)
        if found is None:
            yield f"| {name} | 0 | - | - | not measured |"
            continue
        slow.append(found)
        yield f"| {name} | {found.groups} | {found.mean:.2f}x | {found.not_told} | {len(found.slower)} |"
    yield (
        "\nA group is one operator at one row count. A ratio counts as told where its first and last decile over the "
        "rounds lie on one side of 1. `torch` runs the contract's reference, which accumulates in float64 where its "
        "tolerance asks for that: no fast torch code was written for it.\n"
    )
    yield "![every operator at 6 rows](images/performance/operators.svg)\n"
    if any(found.peer == "sglang" for found in slow):
        yield "![over the row counts, beside SGLang](images/performance/rows_sglang.svg)\n"
    for found in slow:
        if found.slower and found.peer != "torch":
            yield f"\nSlower than {PEERS[found.peer]}: {', '.join(found.slower)}."


def _earlier_standings(groups: Sequence[figures.Group]) -> Iterator[str]:
    """Yield how all figures stand, those of kernels that have changed since among them, if there are any."""
    commits = sorted({group["earlier"] for group in groups if "earlier" in group})
    if not commits:
        return
    found = [one for peer in PEERS if peer != "torch" and (one := figures.standing(groups, peer)) is not None]
    stand = "; ".join(
        f"{PEERS[one.peer]}, {one.groups} groups, {one.mean:.2f}x, slower in {len(one.slower)}" for one in found
    )
    yield (
        f"\n{len(groups) - len(figures.current(groups))} of {len(groups)} groups were timed at {', '.join(commits)}, "
        "with kernels that have changed since; what is said of the kernels as they are leaves them out. With them: "
        f"{stand}."
    )


def _targets(
    groups: Sequence[figures.Group], reasons: Mapping[str, str], schedule: Mapping[str, Any] | None
) -> Iterator[str]:
    yield "\n## Targets\n"
    yield "| target | at most, us | found, us | | what is known |"
    yield "| --- | --- | --- | --- | --- |"
    known = [(one, reasons.get(one.what.split("`")[1], "not looked into yet")) for one in figures.targets(groups)]
    for target, why in (*known, *performance_schedule.targets(schedule)):
        found = "-" if target.found is None else f"{target.found:.2f}"
        reason = why if target.text == "missed" else ""
        yield f"| {target.what} ({target.source}) | {target.bound:g} | {found} | {target.text} | {reason} |"


def _floors(groups: Sequence[figures.Group], reasons: Mapping[str, str]) -> Iterator[str]:
    if not any("floor_us" in group for group in groups):
        yield "\nThe floors were not recorded with these figures.\n"
        return
    large, small = figures.over_floor(groups)
    for title, found in (("above 8 MB of traffic", large), ("of less traffic", small)):
        yield f"\n### Further than 1.5 times from the floor, {title}\n"
        if not found:
            yield "None."
            continue
        yield "| operator | rows: times over the floor | what is known |"
        yield "| --- | --- | --- |"
        by_operator: dict[str, list[figures.Group]] = {}
        for group in found:
            by_operator.setdefault(group["op"], []).append(group)
        for operator, items in sorted(by_operator.items()):
            rows = ", ".join(
                f"{one['rows']}: {one['over_floor']:.1f}" for one in sorted(items, key=lambda g: g["rows"])
            )
            yield f"| `{operator}` | {rows} | {reasons.get(operator, 'not looked into yet')} |"


def _table(groups: Sequence[figures.Group]) -> Iterator[str]:
    yield "\n## All figures\n"
    yield "Microseconds per call: median (first to last decile); launches per call of the own kernel.\n"
    commits = sorted({group["earlier"] for group in groups if "earlier" in group})
    if commits:
        yield (
            f"Rows with * were timed at {', '.join(commits)}, with kernels that have changed since: they are shown "
            f"here, and nothing above counts them.\n"
        )
    yield "| operator | rows | own | launches | floor | parts | SGLang | FlashMLA | compile | torch |"
    yield "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |"
    for group in sorted(figures.measured(groups), key=lambda one: (one["op"], one["rows"])):
        arms = group["arms"]
        own = arms["own"]
        cells = [f"{own['median_us']:.2f} ({own['p10_us']:.2f} to {own['p90_us']:.2f})"]
        cells.append("-" if own["launches"] is None else f"{own['launches']:g}")
        cells.append(f"{group['floor_us']:.2f}" if "floor_us" in group else "-")
        for name in ("parts", "sglang", "flashmla", "compile", "torch"):
            value = arms.get(name, {}).get("median_us")
            cells.append("-" if value is None else f"{value:.2f}")
        mark = " *" if "earlier" in group else ""
        yield f"| `{group['op']}` | {group['rows']}{mark} | {' | '.join(cells)} |"


def _cycle(reports: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    yield f"\n## A whole cycle: {reports[0]['rows']} verify rows\n"
    yield (
        "All operators of one static greedy cycle in one graph, at the counts of V4.1-Flash (40 layers, 3 draft "
        "stages), matrix products and collectives left out; two plans in turn. `planned` is what a plan chooses, "
        "`parts` serves fused operators by their parts, `reference` everything by torch. An operator that one plan "
        "cannot capture is left out of both.\n"
    )
    for note in dict.fromkeys(report["note"] for report in reports if "note" in report):
        yield f"{note}\n"
    yield "| plan | us | first to last decile | launches | copies and fills | operators left out |"
    yield "| --- | --- | --- | --- | --- | --- |"
    for report in reports:
        left = ", ".join(sorted({f"`{entry['operator']}`" for entry in report["left_out"]})) or "none"
        for name, arm in report["arms"].items():
            span = f"{arm['p10_us']:.0f} to {arm['p90_us']:.0f}"
            counts = f"{arm['launches']} | {arm['copies_and_fills']}"
            yield f"| {name} | {arm['median_us']:.0f} | {span} | {counts} | {left} |"
    yield "\n![parts of a cycle](images/performance/cycle.svg)\n"
    for entry in reports[0]["left_out"]:
        yield f"`{entry['operator']}` at {entry['site']}, {entry['calls']} calls, is left out: {entry['why']}\n"
    planned = next(iter(reports[0]["arms"]))
    references = {
        entry["operator"] for entry in reports[0]["operators"] if entry[planned]["kernel"].endswith("/reference")
    }
    if references:
        yield f"Served by torch references even so: {', '.join(f'`{name}`' for name in sorted(references))}."


def _not_measured(groups: Sequence[figures.Group]) -> Iterator[str]:
    yield "\n## What was not measured, and why\n"
    failed = figures.failures(groups)
    for operator, reasons in sorted(failed.items()):
        for reason, rows in reasons.items():
            yield f"- `{operator}`, rows {', '.join(map(str, sorted(rows)))}: {reason}"
    if not failed:
        yield "Every operator with a kernel was timed at every row count."
    yield "\nPeers that do not take part:\n"
    for (peer, reason), operators in sorted(figures.left_out(groups).items()):
        yield f"- {PEERS.get(peer, peer)}, {', '.join(f'`{name}`' for name in sorted(operators))}: {reason}"


if __name__ == "__main__":
    main()
