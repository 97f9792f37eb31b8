"""What selection and dispatch cost: import, planning, and a bound call beside other ways to dispatch.

    python benchmarks/dispatch_cost.py [--output benchmarks/results/dispatch_cost.json]

Needs torch (CPU) and pluggy. Calls are measured with a kernel that only returns a tensor made beforehand, so that a
difference of two figures is dispatch alone. All variants are measured in every round, for microseconds each, so
that a disturbance of the machine hits all alike. An overhead is the median over the rounds of the difference to the
direct call of the same round. Where a neighbour keeps the other half of the core busy, all times double; so the bounds
are held against the undisturbed rounds, those with a direct call near the fastest one, and the figures over all rounds
stand beside them.
"""

from __future__ import annotations

import argparse
import datetime
import inspect
import json
import os
import platform
import statistics
import subprocess
import sys
import time
import timeit
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pluggy
import torch

import dspark_ops
from dspark_ops import contracts
from dspark_ops.api import Kernel, RankClass, axis, elements, family
from dspark_ops.selection.discovery import discover
from dspark_ops.selection.registry import RegisteredKernel, Registry
from dspark_ops.selection.settings import Settings

ROUNDS, CALLS = 6000, 50
#: A round counts as undisturbed if its direct call took at most this much more than the fastest one.
CALM = 1.2
ROWS = 6
RESULT = torch.zeros(ROWS, dtype=torch.int64)

_IMPORT = """
import sys, time
start = time.perf_counter()
import dspark_ops
seconds = time.perf_counter() - start
print(seconds, *[name for name in ("torch", "triton", "pydantic", "numpy") if name in sys.modules])
"""


def few(x: Any) -> Any:
    """Stand-in for a kernel."""
    return RESULT


def many(x: Any) -> Any:
    """Stand-in for another kernel."""
    return RESULT


def import_cost(rounds: int = 15) -> dict[str, Any]:
    """Time ``import dspark_ops`` in fresh interpreters, and name the heavy modules that it loads."""
    seconds, loaded = [], set()
    for _ in range(rounds):
        first, *names = subprocess.run(
            [sys.executable, "-c", _IMPORT], capture_output=True, text=True, check=True
        ).stdout.split()
        seconds.append(float(first))
        loaded.update(names)
    return {"median_ms": ms(statistics.median(seconds)), "max_ms": ms(max(seconds)), "heavy_modules": sorted(loaded)}


def planning_cost(registry: Registry, device: dspark_ops.Device, rounds: int = 30) -> dict[str, Any]:
    """Time planning of every operator for 64 row counts."""
    seconds = []
    for _ in range(rounds):
        start = time.perf_counter()
        plan = dspark_ops.plan(device=device, registry=registry, rows=range(1, 65), config=Settings())
        seconds.append(time.perf_counter() - start)
    first, later = seconds[0], seconds[1:]
    return {
        "operators": len(plan.operators),
        "operators_at_sites": len(plan.selections),
        "kernels": sum(len(kernels) for kernels in registry.kernels.values()),
        "row_counts": 64,
        "buckets": sum(len(selection.choices) for selection in plan.selections),
        "first_ms": ms(first),
        "median_ms": ms(statistics.median(later)),
        "fastest_ms": ms(min(later)),
        "slowest_ms": ms(max(later)),
    }


def crowded(per_operator: int = 8) -> Registry:
    """Return a registry with several kernels for every operator, each with constraints on the rows axis."""
    kernels = {}
    for name, contract in contracts.all_contracts().items():
        kernels[name] = tuple(
            RegisteredKernel(
                f"plugin/{name}/v{index}", "plugin", "plugin",
                Kernel(
                    name, f"v{index}", "plugin:f", arch=family("sm_10x") if index % 2 else None,
                    rank=RankClass.FUSED if index % 3 else RankClass.PORTABLE,
                    region=[axis(contract.rows).between(1, 8 * index + 8), elements(contract.rows, 2**31)],
                ),
            )
            for index in range(per_operator)
        )  # fmt: skip
    return Registry(kernels)


def bound_ops(rows_decide: bool) -> Any:
    """Bind `argmax_rows` to the stand-ins: to one for all row counts, or to two by row count."""
    small = [axis("R").at_most(16)] if rows_decide else []
    kernels = tuple(
        RegisteredKernel(
            f"plugin/argmax_rows/{name}", "plugin", "", Kernel("argmax_rows", name, f"{__name__}:{name}", region=region)
        )
        for name, region in (("few", small), ("many", []))
    )
    registry = Registry({"argmax_rows": kernels})
    device = dspark_ops.Device.simulate("cpu")
    return dspark_ops.plan(device=device, registry=registry, operators=["argmax_rows"], config=Settings()).bind()


def pluggy_call() -> Callable[..., Any]:
    """Return a pluggy hook call with one implementation and ``firstresult``."""
    spec, impl = pluggy.HookspecMarker("cost"), pluggy.HookimplMarker("cost")

    class Spec:
        @spec(firstresult=True)
        def argmax_rows(self, x: Any) -> Any:
            """The operator as a hook."""

    class Plugin:
        @impl
        def argmax_rows(self, x: Any) -> Any:
            return few(x)

    manager = pluggy.PluginManager("cost")
    manager.add_hookspecs(Spec)
    manager.register(Plugin())
    return lambda x: manager.hook.argmax_rows(x=x)


def torch_custom_op() -> Callable[..., Any]:
    """Return a ``torch.library.custom_op`` around the stand-in."""

    @torch.library.custom_op("dspark_ops_cost::argmax_rows", mutates_args=())
    def argmax_rows(x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = few(x)
        return result

    operator: Callable[..., Any] = argmax_rows
    return operator


def signature_bind() -> Callable[..., Any]:
    """Return a dispatcher that binds its arguments to a signature on every call."""
    signature = inspect.signature(few)
    table = {count: few for count in range(1, 65)}

    def argmax_rows(*arguments: Any, **options: Any) -> Any:
        bound = signature.bind(*arguments, **options)
        bound.apply_defaults()
        return table[bound.arguments["x"].shape[0]](*bound.args, **bound.kwargs)

    return argmax_rows


def call_costs() -> dict[str, Any]:
    """Measure every variant in turn, round by round."""
    x = torch.zeros(ROWS, 16)
    one, two = bound_ops(rows_decide=False), bound_ops(rows_decide=True)
    variants: dict[str, tuple[str, dict[str, Any]]] = {
        "direct": ("f(x)", {"f": few}),
        "ops_attribute_raw": ("ops.argmax_rows(x)", {"ops": one}),
        "ops_attribute_by_rows": ("ops.argmax_rows(x)", {"ops": two}),
        "kept_function_by_rows": ("f(x)", {"f": two.argmax_rows}),
        "at_rows_kept_function": ("f(x)", {"f": two.at(rows=ROWS).argmax_rows}),
        "reading_the_shape_alone": ("x.shape[0]", {}),
        "pluggy_hook": ("f(x)", {"f": pluggy_call()}),
        "torch_custom_op": ("f(x)", {"f": torch_custom_op()}),
        "signature_bind": ("f(x)", {"f": signature_bind()}),
    }
    if one.argmax_rows is not few or two.at(rows=ROWS).argmax_rows is not few:
        raise SystemExit("a raw callable is not the kernel's own function")
    timers = {name: timeit.Timer(statement, globals={"x": x, **names}) for name, (statement, names) in variants.items()}
    samples: dict[str, list[float]] = {name: [] for name in timers}
    for number in range(ROUNDS + ROUNDS // 10):
        for name, timer in timers.items():
            calls = CALLS // 10 if name == "torch_custom_op" else CALLS
            seconds = timer.timeit(calls)
            if number >= ROUNDS // 10:  # the first rounds warm up
                samples[name].append(seconds / calls * 1e9)
    direct = samples["direct"]
    calm = [number for number, value in enumerate(direct) if value <= CALM * min(direct)]
    figures: dict[str, Any] = {"rounds": len(direct), "undisturbed_rounds": len(calm)}
    for name, values in samples.items():
        overheads = [value - base for value, base in zip(values, direct, strict=True)]
        figures[name] = {
            "ns": round(statistics.median(values[number] for number in calm), 1),
            "overhead_ns": round(statistics.median(overheads[number] for number in calm), 1),
            "overhead_all_rounds_ns": round(statistics.median(overheads), 1),
            "fastest_ns": round(min(values), 1),
        }
    return figures


def allocations(calls: int = 10_000) -> dict[str, int]:
    """Count memory blocks that calls leave behind."""
    x = torch.zeros(ROWS, 16)
    two = bound_ops(rows_decide=True)
    found = {}
    for name, function in (("by_rows", two.argmax_rows), ("at_rows", two.at(rows=ROWS).argmax_rows)):
        for _ in range(100):
            function(x)
        counter = iter(range(calls))
        before = sys.getallocatedblocks()
        for _ in counter:
            function(x)
        found[name] = sys.getallocatedblocks() - before
    return found


def machine() -> dict[str, Any]:
    """Describe where this runs."""
    cpu = platform.processor()
    info = Path("/proc/cpuinfo")
    if info.exists():
        lines = info.read_text().splitlines()
        cpu = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), cpu)
    return {
        "cpu": cpu,
        "cores": os.cpu_count(),
        "load": [round(value, 2) for value in os.getloadavg()],
        "system": platform.platform(),
        "python": platform.python_version(),
        "versions": {name: version(name) for name in ("torch", "pluggy", "pydantic")},
        "dspark_ops": dspark_ops.__version__,
    }


def ms(seconds: float) -> float:
    """Return milliseconds, to two places."""
    return round(seconds * 1e3, 2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "results" / "dispatch_cost.json")
    output = parser.parse_args().output
    torch.set_num_threads(1)
    before = machine()
    device = dspark_ops.Device.simulate("sm_103")
    imported = import_cost()
    installed, full = planning_cost(discover(Settings()), device), planning_cost(crowded(), device)
    calls, left = call_costs(), allocations()
    result = {
        "date": datetime.date.today().isoformat(),
        "machine": before,
        "load_after": [round(value, 2) for value in os.getloadavg()],
        "method": {
            "calls": f"{ROUNDS} rounds of {CALLS} calls per variant (torch_custom_op: a tenth), in turn; medians",
            "import": "15 fresh interpreters; time of the import statement alone",
            "planning": "30 plans for a simulated sm_103, without discovery and configuration; the first one imports",
        },
        "import": imported,
        "planning_installed_plugins": installed,
        "planning_eight_kernels_per_operator": full,
        "calls": calls,
        "blocks_left_by_10000_calls": left,
    }
    bounds = {
        "import dspark_ops under 150 ms": imported["median_ms"] < 150,
        "import loads neither torch nor triton": not {"torch", "triton"} & set(imported["heavy_modules"]),
        "planning under 50 ms": max(installed["median_ms"], full["median_ms"]) < 50,
        "raw call at most 40 ns over direct": calls["ops_attribute_raw"]["overhead_ns"] <= 40,
        "row-dispatched call at most 150 ns over direct": calls["kept_function_by_rows"]["overhead_ns"] <= 150,
        "the same, read from ops at every call": calls["ops_attribute_by_rows"]["overhead_ns"] <= 150,
        "at(rows=n) is the kernel's own function": True,  # call_costs stops otherwise
        "10,000 calls leave no memory behind": max(left.values()) < 100,
    }
    result["bounds"] = {text: "met" if holds else "missed" for text, holds in bounds.items()}
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
