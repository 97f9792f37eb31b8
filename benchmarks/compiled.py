"""Builds what every Triton kernel launches, for architectures that need not be present, and writes what came out.

    python benchmarks/compiled.py --arch sm_100 --arch sm_103 [--plugin nvidia_sm10x] [--operator argmax_rows]

For each kernel and place of the model, the kernel's own preparation says what it would compile (see
`dspark_ops.conformance.prepared`); every build's registers, spills, shared memory and instructions go into
``benchmarks/results/compiled.json``, beside the launches and bytes of one call. Entries that are built again replace
older ones; others stay, unless their kernel is gone.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import re
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from dspark_ops import contracts
from dspark_ops.bench.static_cost import StaticCall
from dspark_ops.conformance.builds import MODEL, places_built
from dspark_ops.conformance.machine_facts import dependent_loads, machine_facts
from dspark_ops.conformance.prepared import Launch, build
from dspark_ops.contracts.contract import Contract
from dspark_ops.selection.device import Device
from dspark_ops.selection.discovery import survey
from dspark_ops.selection.evidence import digest_of
from dspark_ops.selection.settings import Settings

RESULTS = Path(__file__).resolve().parent / "results" / "compiled.json"
#: Rows at which a call's cost is told.
COST_ROWS = 6


def entry_of(kernel: Any, device: Device, contract: Contract) -> dict[str, Any]:
    """Return what one kernel is on one architecture: the cost of a call, and its builds."""
    builds: dict[str, tuple[Launch, list[str]]] = {}
    costs: dict[str, Any] = {}
    for place in places_built(kernel, contract, device):
        for launch in place.launches:
            builds.setdefault(launch.key, (launch, []))[1].append(place.site.name)
        costs[place.site.name] = static_call(contract.name, place.site.name).cost(place.bound, device)
    made = [described(launch, names, device.arch.name) for launch, names in builds.values()]
    worst = {
        name: max((entry[name] for entry in made), default=0)
        for name in ("registers", "spilled", "shared", "dependent loads")
    }
    return {**worst, "cost of a call": costs, "builds": made}


@cache
def static_call(operator: str, place: str) -> StaticCall:
    """Return the call whose cost is told at a place: the same for every kernel and architecture."""
    contract = contracts.get(operator)
    (site,) = [site for site in contract.sites(contracts.model_shapes(MODEL)) if site.name == place]
    return StaticCall(contract, site, COST_ROWS)


def described(launch: Launch, sites: list[str], arch: str) -> dict[str, Any]:
    """Return one build as plain data."""
    made = build(launch, arch)
    return {
        "function": launch.name,
        "sites": sorted(set(sites)),
        "types": dict(launch.signature),
        "aligned": list(launch.aligned),
        "constants": {name: value if plain(value) else str(value) for name, value in launch.constants.items()},
        "options": dict(launch.options),
        "registers": made.registers,
        "spilled": made.spilled,
        "shared": made.shared,
        "dependent loads": dependent_loads(made.triton_ir),
        "instructions": machine_facts(made),
    }


def plain(value: Any) -> bool:
    """Return whether a value is written to JSON as it is."""
    return value is None or isinstance(value, (bool, int, float, str))


def wanted(kernel: Any, device: Device, arguments: argparse.Namespace) -> bool:
    """Return whether a kernel is to be built; those of other packages are built by these."""
    if any(package.module != "triton" for package in kernel.kernel.packages):
        return False
    chosen = (not arguments.plugin or kernel.plugin in arguments.plugin) and (
        not arguments.operator or kernel.kernel.op in arguments.operator
    )
    arch = kernel.kernel.arch
    return bool(chosen and kernel.kernel.prepare and arch is not None and arch.matches(device.arch))


@contextmanager
def alone() -> Iterator[None]:
    """Keep the file for one process: runs for several architectures may go on side by side."""
    with RESULTS.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def recorded() -> dict[str, Any]:
    """Return the results so far."""
    return json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {}


def write(data: Mapping[str, Any]) -> None:
    """Write the results, one build a line, so that a change shows what changed."""
    lines: list[str] = []

    def placed(value: Any) -> Any:
        if isinstance(value, dict) and ("function" in value or "launches" in value):
            lines.append(json.dumps(value, sort_keys=True))
            return f"line {len(lines) - 1}"
        if isinstance(value, dict):
            return {name: placed(item) for name, item in sorted(value.items())}
        return [placed(item) for item in value] if isinstance(value, list) else value

    text = json.dumps(placed(dict(data)), indent=1)
    text = re.sub(r'"line (\d+)"', lambda match: lines[int(match[1])], text)
    RESULTS.write_text(text + "\n", encoding="utf-8")


def main() -> int:
    """Build and write; 1 if a build spills."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--arch", action="append", required=True)
    parser.add_argument("--plugin", action="append")
    parser.add_argument("--operator", action="append")
    parser.add_argument("--missing", action="store_true", help="only entries that are not there, or of other sources")
    arguments = parser.parse_args()
    spills = 0
    # Before anything is imported: sources that are edited meanwhile are then built again by --missing.
    digests = {kernel.id: digest_of(kernel) for kernels in survey(Settings()).kernels.values() for kernel in kernels}
    for name in arguments.arch:
        device = Device.simulate(name)
        for operator, kernels in survey(Settings()).kernels.items():
            contract = contracts.get(operator)
            for kernel in kernels:
                if not wanted(kernel, device, arguments):
                    continue
                start = time.monotonic()
                origin = {"sources": digests[kernel.id], "triton": version("triton")}
                if arguments.missing and origin.items() <= recorded().get(kernel.id, {}).get(name, {}).items():
                    continue
                entry = {**entry_of(kernel.kernel, device, contract), **origin}
                spills += entry["spilled"] > 0
                with alone():
                    data = recorded()
                    data.setdefault(kernel.id, {})[device.arch.name] = entry
                    write(data)
                seconds = time.monotonic() - start
                print(f"{device.arch.name:8} {kernel.id:55} {len(entry['builds']):3} builds, {entry['registers']:3} "
                      f"registers, {entry['spilled']} spilled, {seconds:5.1f} s", flush=True)  # fmt: skip
    registered = {kernel.id for kernels in survey(Settings()).kernels.values() for kernel in kernels}
    with alone():
        write({kernel: builds for kernel, builds in recorded().items() if kernel in registered})
    return int(spills > 0)


if __name__ == "__main__":
    sys.exit(main())
