"""Runs the tests that build kernels for architectures, and writes what they prove as records of evidence.

    python benchmarks/record_compiled.py --output compiled.json [words for pytest, such as -k argmax]

A kernel gets a record ``compiled`` for an architecture if every function that its host code launches was built for it
and no test that built one of them failed. Name the file in ``files.evidence``.
"""

from __future__ import annotations

import argparse
import datetime
import sys
from collections import defaultdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from dspark_ops import contracts
from dspark_ops.api import Arch, Evidence
from dspark_ops.conformance import compiled
from dspark_ops.conformance.launched import launched_functions
from dspark_ops.selection.discovery import survey
from dspark_ops.selection.evidence import EvidenceRecord, add_evidence, digest_of
from dspark_ops.selection.settings import Settings

ROOT = Path(__file__).resolve().parents[1]


class Recorder:
    """A pytest plugin that notes which test builds which function for which architecture, and which tests fail."""

    def __init__(self) -> None:
        self.built: dict[tuple[str, str], dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
        self.failed: set[str] = set()
        self._test = ""
        build = compiled.compile_kernel

        def recorded(kernel: Any, arch: str, *arguments: Any, **options: Any) -> Any:
            made = build(kernel, arch, *arguments, **options)
            function = getattr(kernel, "fn", kernel)
            self.built[function.__module__, function.__name__][arch].add(self._test)
            return made

        # Test modules take the function by name when they are imported, which is after this.
        compiled.compile_kernel = recorded

    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        """Note which test runs."""
        self._test = item.nodeid

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note which test failed."""
        if report.failed:
            self.failed.add(report.nodeid)

    def arches(self, function: tuple[str, str]) -> set[str]:
        """Return the architectures for which a function was built in tests that all passed."""
        return {arch for arch, tests in self.built.get(function, {}).items() if not tests & self.failed}


def records(recorder: Recorder) -> list[EvidenceRecord]:
    """Return the records of all installed kernels that were built whole."""
    date = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
    versions = {"torch": version("torch"), "triton": version("triton")}
    found: list[EvidenceRecord] = []
    registry = survey(Settings())
    packages = {module for plugin in registry.plugins for module in plugin.modules}
    for operator, kernels in registry.kernels.items():
        for kernel in kernels:
            own = kernel.kernel
            functions = launched_functions(own.target, own.prepare or own.target, packages=packages)
            arches = set.intersection(*(recorder.arches(function) for function in functions)) if functions else set()
            found += [
                EvidenceRecord(
                    kernel.id, Evidence.COMPILED, arch, "compile", date, digest_of(kernel),
                    contracts.get(operator).version, versions=versions,
                )
                for arch in sorted(arches)
                if own.arch is not None and own.arch.matches(Arch.parse(arch))
            ]  # fmt: skip
    return found


def main() -> int:
    """Run the tests and write the records."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True, help="the file of records; newer ones replace older ones")
    arguments, words = parser.parse_known_args()
    recorder = Recorder()
    tests = [str(path) for path in sorted((ROOT / "tests" / "plugins").rglob("test_compiled*.py"))]
    # This process has imported what pytest would rewrite; the builds do not depend on that.
    quiet = ["-W", "ignore::pytest.PytestAssertRewriteWarning"]
    code = pytest.main(["-q", "-m", "not gpu", *quiet, *tests, *words], plugins=[recorder])
    made = records(recorder)
    add_evidence(arguments.output, made)
    print(f"{len(made)} records of {len({record.kernel for record in made})} kernels in {arguments.output}")
    return int(code)


if __name__ == "__main__":
    sys.exit(main())
