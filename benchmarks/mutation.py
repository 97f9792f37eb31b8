"""Does a contract's own suite catch a kernel that is almost its reference? Ten planted faults per operator.

    python benchmarks/mutation.py [OPERATOR ...] [--exhaustive]
        [--output benchmarks/results/mutation.json] [--report docs/mutation.md]

Each mutant (see `mutants`) is run by `check_numbers` over the contract's small cases, as a kernel of a plugin is,
against the untouched reference and the golden values. A mutant that passes every case survives. Survivors that no input
can tell apart, or that stay within the contract's own bounds, are listed with the argument in
``mutation_equivalents.json``; nothing else is left out of the count, and an entry that is caught after all is an error.
One process, one core, some minutes.
"""

from __future__ import annotations

import argparse
import copy
import datetime
import json
import os
import platform
import signal
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from dspark_ops import contracts
from dspark_ops.conformance.numbers import check_numbers
from dspark_ops.contracts import Case, Contract
from mutants import KINDS, Mutant, mutants_of

HERE = Path(__file__).resolve().parent
EQUIVALENTS = HERE / "mutation_equivalents.json"
SECONDS_PER_MUTANT = 20.0


class Recorded:
    """A contract's cases with the reference's results on each, so that they are computed once for all mutants."""

    def __init__(self, contract: Contract) -> None:
        """Run the reference over the small cases of seed 0."""
        self.contracts = [self._of_one(contract, case) for case in contract.cases("small", 0)]

    def _of_one(self, contract: Contract, case: Case) -> Contract:
        inputs = copy.deepcopy(dict(case.inputs))
        case = replace(case, inputs=copy.deepcopy(inputs))  # a generator may change what it has handed out
        returned = contract.reference(**inputs)
        written = {item.name: inputs[item.name] for item in contract.arguments if item.written and item.name in inputs}

        def replay(**arguments: Any) -> Any:
            for name, value in written.items():
                if value is not None:
                    arguments[name].copy_(value)
            return returned

        return replace(contract, reference=replay, cases=lambda scale, seed: iter((case,)))

    def verdict(self, function: Callable[..., Any]) -> str:
        """Return what the first case that catches `function` says, or an empty text if none does."""
        for contract in self.contracts:
            failures = check_numbers(contract, function)
            if failures:
                return f"{failures[0].case}: {failures[0].what}"
        return ""


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise `TimeoutError` in the block after that long: a fault may make a loop endless."""

    def stop(*_: Any) -> None:
        raise TimeoutError(f"ran for more than {seconds:g} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def check(contract: Contract, equivalents: Mapping[str, str], count: int) -> dict[str, Any]:
    """Return the counts and the survivors of one operator."""
    start = time.perf_counter()
    recorded = Recorded(contract)
    wrong = recorded.verdict(contract.reference)
    if wrong:  # a case that fails anyway would catch every mutant
        raise SystemExit(f"{contract.name}: the reference itself is refused: {wrong}")
    mutants = mutants_of(contract.name, contract.reference, count)
    survivors, same, kinds = [], [], dict.fromkeys(KINDS, 0)
    for mutant in mutants:
        kinds[mutant.kind] += 1
        caught = _caught(recorded, mutant)
        if mutant.key in equivalents:
            if caught:
                raise SystemExit(
                    f"{contract.name}: a case tells {mutant.key!r} apart: take it out of {EQUIVALENTS.name}"
                )
            same.append({"mutant": mutant.key, "reason": equivalents[mutant.key]})
        elif not caught:
            survivors.append({"mutant": mutant.key, "kind": mutant.kind, "line": mutant.line})
    return {
        "family": contract.reference.__module__.rpartition(".")[2],
        "cases": len(recorded.contracts),
        "mutants": len(mutants),
        "caught": len(mutants) - len(same) - len(survivors),
        "kinds": {kind: number for kind, number in kinds.items() if number},
        "equivalent": same,
        "survivors": survivors,
        "seconds": round(time.perf_counter() - start, 2),
    }


def _caught(recorded: Recorded, mutant: Mutant) -> bool:
    try:
        with time_limit(SECONDS_PER_MUTANT), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return bool(recorded.verdict(mutant.build()))
    except TimeoutError:
        return True  # an endless kernel is found by everyone


def run(names: Sequence[str], equivalents: Mapping[str, Mapping[str, str]], count: int) -> dict[str, Any]:
    """Return the entry of each operator, and say on the way how it went."""
    operators = {}
    for name in names:
        operators[name] = entry = check(contracts.get(name), equivalents.get(name, {}), count)
        differ = entry["mutants"] - len(entry["equivalent"])
        sys.stdout.write(f"{name}: {entry['caught']} of {differ} caught, {entry['seconds']} s\n")
        for item in entry["survivors"]:
            sys.stdout.write(f"    survives: {item['mutant']}  ({entry['family']}.py:{item['line']})\n")
        sys.stdout.flush()
    return operators


def totals(operators: Mapping[str, Any]) -> dict[str, Any]:
    """Return the sums over all operators, and the share of the mutants that differ which the suite catches."""
    made, caught, same = (
        sum(count(item) for item in operators.values())
        for count in (lambda x: x["mutants"], lambda x: x["caught"], lambda x: len(x["equivalent"]))
    )
    share = round(caught / (made - same), 4) if made > same else None
    return {"mutants": made, "equivalent": same, "caught": caught, "survivors": made - same - caught, "share": share}


def machine() -> dict[str, Any]:
    """Return what the run depends on."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.exists() else []
    cpu = next((line.partition(":")[2].strip() for line in lines if "model name" in line), platform.processor())
    return {
        "cpu": cpu, "cores": os.cpu_count(), "system": platform.platform(), "python": platform.python_version(),
        "versions": {"torch": torch.__version__}, "dspark_ops": version("dspark-ops"),
    }  # fmt: skip


def report(result: Mapping[str, Any]) -> str:
    """Return the page for people, in Markdown."""
    total, operators, machine_ = result["total"], result["operators"], result["machine"]
    families = ", ".join(sorted({item["family"] for item in operators.values()}))
    differ = total["mutants"] - total["equivalent"]
    bare = [name for name, item in operators.items() if not item["mutants"]]
    lines = [
        "# Does the suite catch an almost right kernel?",
        "",
        "Written by `python benchmarks/mutation.py --exhaustive --report docs/mutation.md`; the record is "
        "`benchmarks/results/mutation.json`.",
        "",
        "Each contract's reference, with the private functions of its module that it calls, is changed in up to ten "
        f"small ways, one at a time: {', '.join(KINDS)}. The changed function is then run like a kernel of a plugin, "
        "over the contract's small cases with seed 0. What only validates, defaults and texts are not changed, and "
        "functions shared between families (`numerics`, layouts) are not either: they have bit-exact tests of their "
        "own.",
        "",
        f"**{total['caught']} of {differ} mutants that differ were caught ({100 * total['share']:.1f} %)**, over "
        f"{len(operators)} operators of the families {families}. {total['equivalent']} more are not counted, each with "
        f"its reason below; counted as uncaught they would make it {100 * total['caught'] / total['mutants']:.1f} %.",
        "",
        f"Run on {result['date']}: {machine_['cpu']}, torch {machine_['versions']['torch']}, one core, "
        f"{result['seconds']:.0f} s.",
        "",
        *_exhaustive(result.get("exhaustive")),
        f"Only calls of others, with nothing of their own to change: {', '.join(map(_code, bare)) or 'none'}.",
        "",
        "## Survivors",
        "",
    ]
    survivors = [(name, item) for name, entry in operators.items() for item in entry["survivors"]]
    lines += ["None." if not survivors else "| operator | function: before => after |\n| --- | --- |"]
    lines += [f"| `{name}` | {_code(item['mutant'])} |" for name, item in survivors]
    lines += [
        "",
        "## Not counted: changes that the contract admits, or that change nothing",
        "",
        "| operator | function: before => after | why |",
        "| --- | --- | --- |",
    ]
    argued = result["exhaustive"]["argued"] if "exhaustive" in result else _argued(operators)
    lines += [
        f"| `{name}` | {_code(item['mutant'])} | {item['reason']} |" for name, items in argued.items() for item in items
    ]
    lines += [
        "",
        "## Counts",
        "",
        "| operator | cases | mutants | caught | equivalent | survivors |",
        "|" + " --- |" * 6,
    ]
    lines += [
        f"| `{name}` | {item['cases']} | {item['mutants']} | {item['caught']} | {len(item['equivalent'])} | "
        f"{len(item['survivors'])} |"
        for name, item in operators.items()
    ]
    return "\n".join(lines) + "\n"


def _argued(operators: Mapping[str, Any]) -> dict[str, Any]:
    return {name: entry["equivalent"] for name, entry in operators.items() if entry["equivalent"]}


def _exhaustive(every: Mapping[str, Any] | None) -> list[str]:
    if every is None:
        return []
    number = sum(map(len, every["survivors"].values()))
    left = "none is left" if not number else f"{number} survive (the record names them)"
    return [
        f"Of all {every['mutants']} mutants that these rules can make, {every['caught']} were caught "
        f"({100 * every['caught'] / every['mutants']:.1f} %). Of the others, {every['equivalent']} are argued below, "
        f"one by one, and {left}. Cases were added for what earlier runs let through, so neither share says how many "
        "faults of other kinds would be caught.",
        "",
    ]


def _code(text: str) -> str:
    return "`" + text.replace("|", "\\|") + "`"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, print the survivors, and return 1 if fewer than 95 % of the mutants that differ were caught."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("operators", nargs="*", help="names; by default every operator")
    parser.add_argument("--count", type=int, default=10, help="mutants per operator")
    parser.add_argument("--output", type=Path, help="where to write the record")
    parser.add_argument("--report", type=Path, help="where to write the page for people")
    parser.add_argument(
        "--exhaustive", action="store_true", help="afterwards, run every mutant there is, for the record"
    )
    given = parser.parse_args(arguments)
    torch.set_num_threads(1)
    equivalents = json.loads(EQUIVALENTS.read_text(encoding="utf-8"))
    start, names = time.perf_counter(), given.operators or contracts.names()
    operators = run(names, equivalents, given.count)
    total = totals(operators)
    sys.stdout.write(f"{json.dumps(total)}\n")
    result = {
        "date": datetime.date.today().isoformat(), "machine": machine(), "seed": 0, "scale": "small",
        "count": given.count, "seconds": round(time.perf_counter() - start, 1), "total": total, "operators": operators,
    }  # fmt: skip
    if given.exhaustive:
        every = run(names, equivalents, sys.maxsize)
        left = {name: [item["mutant"] for item in entry["survivors"]] for name, entry in every.items()}
        survivors = {name: items for name, items in left.items() if items}
        result["exhaustive"] = {**totals(every), "survivors": survivors, "argued": _argued(every)}
    if given.output:
        given.output.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    if given.report:
        given.report.write_text(report(result), encoding="utf-8")
    return 0 if total["share"] is None or total["share"] >= 0.95 else 1


if __name__ == "__main__":
    sys.exit(main())
