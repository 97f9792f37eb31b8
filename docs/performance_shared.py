"""What the record of a GPU alone and a shared one says, as a section of the page. No file is read here."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

Report = Mapping[str, Any]

STATES = {"alone": "alone", "after_another_process": "after another process"}


def section(report: Report) -> Iterator[str]:
    """Yield the lines about a GPU that one process has to itself, and one that had another."""
    machine = report["machine"]
    peers = sorted({arm for operators in report["states"].values() for arms in operators.values() for arm in arms})
    peers.remove("own")
    yield "\n## A GPU alone and a shared one\n"
    yield (
        "Once another process has had a context on the GPU, and even when it is gone, kernels that are set up early "
        "(PDL) begin at another time than before: those that let the next one be set up at their end, as SGLang's do, "
        "take about 0.1 us less. The figures above are of that state, for the processes that record them all have "
        "contexts; a server that has its GPU to itself is in the other one. Ours ask for their arguments before they "
        "wait and let the next one in at once, which is among the fastest in both.\n"
    )
    yield (
        f"{machine['device']}, driver {machine['driver']}, torch {machine['torch']}, Triton {machine['triton']}; "
        f"{report['rows']} rows, {report['what']}; {report['rounds']} rounds:\n"
    )
    columns = [f"{arm}, {state}" for state in STATES.values() for arm in ("own", *peers)]
    yield f"| operator | {' | '.join(columns)} |"
    yield f"| --- |{' --- |' * len(columns)}"
    for name in report["states"]["alone"]:
        cells = [
            f"{arms[arm]['median_us']:.2f}" if arm in arms else "-"
            for arms in (report["states"][state][name] for state in STATES)
            for arm in ("own", *peers)
        ]
        yield f"| `{name}` | {' | '.join(cells)} |"
    yield "\nAgain: `python benchmarks/shared_gpu.py --out benchmarks/results/shared_gpu_h200.json`."
