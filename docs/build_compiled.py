"""Writes docs/compiled.md from ``benchmarks/results/compiled.json``: what every kernel is on devices not at hand.

    python benchmarks/compiled.py --arch sm_90 --arch sm_100 --arch sm_103 --arch gfx942 --arch gfx950 --missing
    python docs/build_compiled.py

``--check`` says if the page is up to date. All plugins must be installed, since evidence is read from them.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from dspark_ops.selection.discovery import survey
from dspark_ops.selection.settings import Settings

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "compiled.json"
PAGE = ROOT / "docs" / "compiled.md"

#: Bytes per second of the largest part of an architecture, as its maker's data sheet has it.
BANDWIDTH = {
    "sm_90": ("H200", 4.8e12),
    "sm_100": ("B200", 8.0e12),
    "sm_103": ("B300", 8.0e12),
    "gfx942": ("MI300X", 5.3e12),
    "gfx950": ("MI355X", 8.0e12),
}
FACTS = {
    "scaled matrix instructions": "scaled products",
    "matrix instructions": "products",
    "waits for the kernel before": "early launch",
    "loads of 16 bytes": "16-byte loads",
    "atomics": "atomics",
}
_HEAD = """<!-- written by docs/build_compiled.py: do not edit -->
# Compiled: every kernel on every architecture

Every Triton kernel was built with Triton {triton} for the architectures below, as its own preparation asks for it at
the places of `deepseek-v4.1-flash/tp4` and rows 1, 6, 8, 32 and 64; none of these devices has to be present for that.
What a build is does not say how fast it is: **only sm_90 was run** ([performance.md](performance.md)), and nobody has
measured these kernels on sm_100, sm_103, gfx942 or gfx950.

* evidence: what the kernel was put through on that architecture ([trust.md](trust.md)).
* launches, programs, bytes: of one call of 6 rows at the first place of the model; programs of its largest launch; the
  fewest bytes that any implementation moves, indexed pages and tables by what the indices name.
* floor: these bytes at the bandwidth of the part's data sheet, in microseconds. Where it is below a launch, what counts
  is the launch and its dependent loads, the longest chain of loads that wait for one another.
* builds: different machine codes; registers and shared memory (LDS) of the largest, per thread and per program; spilled
  registers of the worst.
* in it: kinds of instructions that some build has. Each build with all its counts is in
  `benchmarks/results/compiled.json`.
"""


def page(results: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """Yield the lines of the page."""
    versions = sorted({entry["triton"] for builds in results.values() for entry in builds.values()})
    yield _HEAD.format(triton=", ".join(versions))
    kernels = {kernel.id: kernel for found in survey(Settings()).kernels.values() for kernel in found}
    spilled = []
    for name, (part, bandwidth) in BANDWIDTH.items():
        yield f"## {name} ({part}, {bandwidth / 1e12:g} TB/s)"
        yield ""
        yield (
            "| kernel | evidence | launches | programs | bytes | floor, us | dependent loads | builds | registers "
            "| spilled | shared | in it |"
        )
        yield "| --- " * 12 + "|"
        for kernel in sorted(results):
            entry = results[kernel].get(name)
            if entry is None or kernel not in kernels:
                continue
            evidence = kernels[kernel].kernel.evidence_on(name).value
            yield _row(kernel, evidence, entry, bandwidth)
            if entry["spilled"]:
                spilled.append(f"`{kernel}` on {name}: {entry['spilled']}")
        yield ""
    yield "## Spills"
    yield ""
    yield f"{'; '.join(spilled)}." if spilled else "None, on any architecture."


def _row(kernel: str, evidence: str, entry: Mapping[str, Any], bandwidth: float) -> str:
    cost = next(iter(entry["cost of a call"].values()), None)
    cells = [f"`{kernel}`", evidence]
    if cost is None:
        cells += ["-"] * 4
    else:
        floor = cost["bytes"] / bandwidth * 1e6
        cells += [str(cost["launches"]), str(cost["programs"]), f"{cost['bytes']:,}", f"{floor:.2f}"]
    cells += [str(entry["dependent loads"]), str(len(entry["builds"]))]
    cells += [str(entry[name]) for name in ("registers", "spilled", "shared")]
    present = {fact for build in entry["builds"] for fact in build["instructions"]}
    cells.append(", ".join(text for fact, text in FACTS.items() if fact in present))
    return f"| {' | '.join(cells)} |"


def main() -> int:
    """Write the page, or compare it with what is there."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 if the page is out of date")
    check = parser.parse_args().check
    text = "\n".join(page(json.loads(RESULTS.read_text(encoding="utf-8")))) + "\n"
    if check:
        return int(PAGE.read_text(encoding="utf-8") != text)
    PAGE.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
