"""What the record of FlashMLA's schedule says: targets with their reasons, and a section. No file is read here."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from performance_figures import Target

Report = Mapping[str, Any]

#: The bound of each size, and what FlashMLA alone, handed a schedule, took where the bound was set.
BOUNDS = {(1, 512): (13.0, 10.5), (64, 2048): (52.0, 47.0)}
#: The arms in the order of the section's columns.
ARMS = {
    "flashmla_own": "FlashMLA, own schedule", "flashmla_handed": "FlashMLA, handed it",
    "flashmla_walked": "`mla_sched_meta`, FlashMLA", "adapter": "ours", "adapter_handed": "ours, handed it",
    "portable": "portable",
}  # fmt: skip


def targets(report: Report | None) -> Iterator[tuple[Target, str]]:
    """Yield the target of each size, over rotating inputs as everywhere on the page, and why it is missed."""
    for size in report["sizes"] if report else ():
        key = size["rows"], size["topk"]
        if size["inputs"] != "rotating" or key not in BOUNDS:
            continue
        bound, seen = BOUNDS[key]
        alone, ours = _us(size, "flashmla_handed"), _us(size, "adapter_handed")
        what = f"`sparse_mla_decode` by FlashMLA, handed our schedule, {_size(size)}"
        reason = (
            f"FlashMLA's two launches alone take {alone:.2f} here, {seen:g} where the target was set; "
            f"the adapter's one in front adds {ours - alone:.2f}, of {bound - seen:g} that the target allows"
        )
        yield Target(what, bound, ours, "set"), reason


def section(report: Report) -> Iterator[str]:
    """Yield the lines about the schedule that is handed over."""
    machine = report["machine"]
    yield "\n## A schedule handed to FlashMLA\n"
    yield (
        "`sparse_mla_decode` takes what `mla_sched_meta` wrote, once for all layers of a step whose lengths are equal. "
        f"`ours` is `nvidia_sm90/sparse_mla_decode/flashmla` without and with it: FlashMLA behind one launch, which "
        f"makes the schedule where none is given, and puts -1 in place of slots beyond the last page, since FlashMLA "
        f"follows every other index. It is {_bits(report)}. `portable` is what a plan has for one row.\n"
    )
    yield f"{machine['device']}, driver {machine['driver']}, torch {machine['torch']}, Triton {machine['triton']}, " + (
        f"sgl-flash-mla {report['packages']['sgl-flash-mla']}; {report['what']}; {report['rounds']} rounds:\n"
    )
    yield "\n".join(f"- {name}: {text}" for name, text in report["inputs"].items()) + "\n"
    yield f"| size | inputs | {' | '.join(ARMS.values())} |"
    yield f"| --- | --- |{' --- |' * len(ARMS)}"
    for size in report["sizes"]:
        cells = [f"{_us(size, arm):.2f}" for arm in ARMS]
        yield f"| {_size(size)} | {size['inputs']} | {' | '.join(cells)} |"
    yield "\nAgain: `python benchmarks/flashmla_schedule.py --out benchmarks/results/flashmla_schedule_h200.json`."


def _us(size: Report, arm: str) -> float:
    return float(size["arms"][arm]["median_us"])


def _size(size: Report) -> str:
    rows = size["rows"]
    return f"{rows} {'row' if rows == 1 else 'rows'} of {size['topk']} entries"


def _bits(report: Report) -> str:
    kinds = [(kind, names) for size in report["sizes"] for kind, names in size["bits_of_flashmla_own"].items()]
    checked = ", ".join(dict.fromkeys(kind for kind, _ in kinds))
    same = all(equal for _, names in kinds for equal in names.values())
    return f"{'equal' if same else 'NOT equal'} to FlashMLA with its own schedule to the bit ({checked})"
