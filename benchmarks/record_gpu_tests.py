"""Turns a run of the GPU tests into the record that kernels' evidence points at, and into what their plugins may claim.

On the machine with the GPU, from the repository's root:

    python -m pytest -m gpu tests/plugins tests/conformance tests/decode --junitxml=gpu.xml
    python benchmarks/record_gpu_tests.py gpu.xml --commit "$(git rev-parse --short HEAD)"

or, faster, ``python benchmarks/run_gpu_tests.py``.

For every kernel that a test names, the record (benchmarks/results/gpu_tests_<arch>.json) holds whether all its tests
passed and a digest of the sources that it was made of; a plugin's `conformant.json` lists those that passed. A plugin
calls a kernel ``conformant`` only if it is listed there, and a test compares the digest with that of its sources now.
Kernels that have changed since a run lose the claim with

    python benchmarks/record_gpu_tests.py --prune
"""

from __future__ import annotations

import argparse
import datetime
import importlib
import json
import platform
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from dspark_ops.api import Arch, Kernel
from dspark_ops.conformance.sources import source_digest

ROOT = Path(__file__).resolve().parents[1]
PLUGINS = ROOT / "plugins"
#: Test files all of whose tests are of one kernel, which their names need not say.
OF_ONE_KERNEL = {
    "test_gpu_argmax": "argmax_rows", "test_gpu_topk": "topk_rows", "nvidia_sm90.test_gpu": "sparse_mla_decode"
}  # fmt: skip


@dataclass(slots=True)
class Tested:
    """What the tests say of one kernel."""

    sources: str
    passed: int = 0
    failed: list[str] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """Return it with plain types."""
        outcome = "failed" if self.failed else "passed"
        return {"outcome": outcome, "tests_passed": self.passed, "tests_failed": self.failed, "sources": self.sources}


def outcomes(junit: Path) -> Iterator[dict[str, str]]:
    """Yield each test of a JUnit file with its module, name, outcome and, if it failed, its message."""
    for case in ElementTree.parse(junit).iter("testcase"):
        kinds = {child.tag: child for child in case}
        outcome = next((kind for kind in ("failure", "error", "skipped") if kind in kinds), "passed")
        test = {"module": case.get("classname", ""), "test": case.get("name", ""), "outcome": outcome}
        if outcome != "passed":
            test["message"] = (kinds[outcome].get("message") or "")[:400]
        yield test


def kernels_of(plugin: str) -> dict[str, Kernel]:
    """Return a plugin's kernels by ``operator/variant``, those that run on a GPU."""
    manifest = importlib.import_module(f"dspark_ops_{plugin}.plugin").dspark_ops_manifest()
    return {
        f"{kernel.op}/{kernel.variant}": kernel
        for kernel in manifest.kernels
        if "triton_interpreter" not in kernel.features
    }


def tested_kernel(test: Mapping[str, str], kernels: Iterable[str]) -> str | None:
    """Return which of a plugin's kernels a test is of: its parameters name ``operator/variant``, or an operator.

    Raises:
        ValueError: a test names an operator of which the plugin has several kernels.
    """
    parameters = test["test"].partition("[")[2].rstrip("]").split("-")
    named = [*parameters, *(op for end, op in OF_ONE_KERNEL.items() if test["module"].endswith(f".{end}"))]
    for name in filter(None, named):
        found = [kernel for kernel in kernels if name in (kernel, kernel.partition("/")[0])]
        if len(found) > 1:
            raise ValueError(f"{test['module']}::{test['test']} names {name}, which may be {' or '.join(found)}")
        if found:
            return found[0]
    return None


def collect(tests: Iterable[Mapping[str, str]]) -> dict[str, dict[str, Tested]]:
    """Return what the tests say of the kernels of each plugin."""
    found: dict[str, dict[str, Tested]] = {}
    for test in tests:
        parts = test["module"].split(".")
        if parts[:2] != ["tests", "plugins"] or len(parts) < 4 or test["outcome"] == "skipped":
            continue
        kernels = kernels_of(parts[2])
        name = tested_kernel(test, kernels)
        if name is None:
            continue
        kernel = kernels[name]
        entry = found.setdefault(parts[2], {}).setdefault(name, Tested(source_digest(kernel.prepare or kernel.target)))
        if test["outcome"] == "passed":
            entry.passed += 1
        else:
            entry.failed.append(test["test"])
    return found


def machine() -> dict[str, Any]:
    """Return the GPU and the versions that the tests ran with."""
    import torch
    import triton

    from dspark_ops.selection.probe import probe

    device = probe(0)
    return {
        "device": torch.cuda.get_device_name(0),
        "arch": device.arch.name,
        "driver": device.driver,
        "torch": torch.__version__,
        "triton": triton.__version__,
        "python": platform.python_version(),
        "dspark-ops": version("dspark-ops"),
    }


def claims_file(plugin: str) -> Path:
    """Return the file that says which of a plugin's kernels may be called conformant."""
    return PLUGINS / plugin / "src" / f"dspark_ops_{plugin}" / "conformant.json"


def write(path: Path, data: Any) -> None:
    """Write JSON as people read it."""
    path.write_text(json.dumps(data, indent=1, sort_keys=False) + "\n", encoding="utf-8")


def not_run(ids: Iterable[str], tests: Iterable[Mapping[str, str]]) -> Iterator[dict[str, str]]:
    """Yield the tests of these ids that are in no report."""
    ran = {(test["module"], test["test"]) for test in tests}
    for node in ids:
        file, _, name = node.partition("::")
        module = file.removesuffix(".py").replace("/", ".")
        if (module, name) not in ran:
            yield {"module": module, "test": name, "outcome": "not run"}


def record(
    junits: Iterable[Path], commit: str, output: Path | None, ids: Iterable[str] = (), merge: bool = False
) -> int:
    """Write the record and the claims of every plugin; return 1 if a test failed, or one of `ids` was not run.

    Args:
        junits: reports of the tests.
        commit: what was run.
        output: the record.
        ids: tests that should have been run; one that was not counts as failed.
        merge: keep what the record holds of kernels that were not tested now. The GPU must be of the same kind.
    """
    tests = [test for junit in junits for test in outcomes(junit)]
    tests += not_run(ids, tests)
    found, on = collect(tests), machine()
    where = output or ROOT / "benchmarks" / "results" / f"gpu_tests_{on['arch']}.json"
    date = datetime.date.today().isoformat()
    kernels = {
        f"{plugin}/{name}": {**tested.to_json(), "commit": commit, "date": date}
        for plugin, all_ in found.items()
        for name, tested in all_.items()
    }
    before = json.loads(where.read_text(encoding="utf-8")) if merge and where.exists() else {"kernels": {}, "tests": []}
    if merge and before["kernels"] and before["machine"]["device"] != on["device"]:
        raise SystemExit(f"{where} is of {before['machine']['device']}, this is {on['device']}: record without --merge")
    kept = {name: entry for name, entry in before["kernels"].items() if name not in kernels}
    ran = {(test["module"], test["test"]) for test in tests}
    tests = [test for test in before["tests"] if (test["module"], test["test"]) not in ran] + tests
    what = "pytest -m gpu tests/plugins tests/conformance tests/decode"
    data = {"what": what, "date": date, "commit": commit, "machine": on}
    write(where, {**data, "kernels": dict(sorted({**kept, **kernels}.items())), "tests": tests})
    for plugin, all_ in found.items():
        claim(plugin, on["arch"], all_, merge)
    return int(any(test["outcome"] in ("failure", "error", "not run") for test in tests))


def claim(plugin: str, arch: str, tested: Mapping[str, Tested], merge: bool) -> None:
    """Write which kernels of a plugin may be called conformant on an architecture: those made for it that passed."""
    kernels, here = kernels_of(plugin), Arch.parse(arch)
    passed = {
        name: entry.sources
        for name, entry in sorted(tested.items())
        if not entry.failed and (kernels[name].arch is None or kernels[name].arch.matches(here))
    }
    held = claims_file(plugin)
    claims = json.loads(held.read_text(encoding="utf-8")) if held.exists() else {}
    kept = claims.get(arch, {}) if merge else {}
    names = {name: digest for name, digest in kept.items() if name not in tested} | passed
    if names or arch in claims:
        write(held, {**claims, arch: dict(sorted(names.items()))})


def prune() -> int:
    """Take away the claims of kernels whose sources have changed; return how many."""
    dropped = 0
    for held in PLUGINS.glob("*/src/*/conformant.json"):
        kernels = kernels_of(held.parents[2].name)
        claims = json.loads(held.read_text(encoding="utf-8"))
        for arch, passed in claims.items():
            kept = {
                name: digest
                for name, digest in passed.items()
                if name in kernels and source_digest(kernels[name].prepare or kernels[name].target) == digest
            }
            dropped += len(passed) - len(kept)
            claims[arch] = kept
        write(held, claims)
    return dropped


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("junit", type=Path, nargs="*", help="the JUnit files of the run")
    parser.add_argument("--commit", default="not stated", help="what was run")
    parser.add_argument("--output", type=Path, help="the record; by default benchmarks/results/gpu_tests_<arch>.json")
    parser.add_argument("--merge", action="store_true", help="keep what the record holds of other kernels")
    parser.add_argument("--prune", action="store_true", help="drop the claims of kernels that have changed")
    arguments = parser.parse_args()
    if arguments.prune:
        print(f"{prune()} claims dropped")
        return 0
    if not arguments.junit:
        parser.error("name the JUnit file of the run, or give --prune")
    return record(arguments.junit, arguments.commit, arguments.output, merge=arguments.merge)


if __name__ == "__main__":
    sys.exit(main())
