"""Runs the GPU tests in several processes on one GPU, and writes the record that kernels' evidence points at.

    python benchmarks/run_gpu_tests.py --jobs 8 --reports gpu-reports --commit "$(git rev-parse --short HEAD)"

Most of a run is compiling, which one process does on one core. Tests that hold numbers do not mind neighbours; none of
them measures time. Each job writes a JUnit file into the folder, also when it is stopped by the time limit; then
`record_gpu_tests` makes the record of all of them, in which a test that was not run counts against its kernel.
"""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
import time
from pathlib import Path

from record_gpu_tests import kernels_of, record, tested_kernel

ROOT = Path(__file__).resolve().parents[1]
PLACES = ("tests/plugins", "tests/conformance", "tests/decode")
_RUN = "import sys, pytest; sys.exit(pytest.main(sys.argv[1:]))"


def collected(places: list[str]) -> list[str]:
    """Return the ids of the GPU tests at these places, or with these arguments of pytest."""
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-m", "gpu", *places]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    ids = [line for line in found.stdout.splitlines() if "::" in line]
    if not ids:
        raise SystemExit(f"no GPU tests were found:\n{found.stdout}{found.stderr}")
    check_names(ids)
    return ids


def check_names(ids: list[str]) -> None:
    """Refuse before the run what could not be recorded after it.

    Raises:
        ValueError: a test of a plugin names an operator of which the plugin has several kernels.
    """
    for node in ids:
        file, _, name = node.partition("::")
        module = file.removesuffix(".py").replace("/", ".")
        if module.startswith("tests.plugins.") and module.count(".") > 2:
            tested_kernel({"module": module, "test": name}, kernels_of(module.split(".")[2]))


def run(ids: list[str], jobs: int, reports: Path, seconds: float) -> list[Path]:
    """Run the tests, every job its share of them, and return the JUnit files that were written."""
    reports.mkdir(parents=True, exist_ok=True)
    # Tests of one operator stand side by side, and big ones do: dealing them out spreads both.
    shares = [ids[number::jobs] for number in range(jobs)]
    running = []
    for number, share in enumerate(share for share in shares if share):
        junit = reports / f"gpu{number}.xml"
        log = (reports / f"gpu{number}.log").open("w")
        command = [sys.executable, "-c", _RUN, "-q", "-m", "gpu", f"--junitxml={junit}", *share]
        running.append((subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=subprocess.STDOUT), junit, log))
    end = time.monotonic() + seconds
    for process, _, log in running:
        try:
            process.wait(max(1.0, end - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGINT)  # on which pytest still writes its report
            process.wait()
        log.close()
    return [junit for _, junit, _ in running if junit.exists()]


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("places", nargs="*", default=list(PLACES), help="files, folders or ids of tests")
    parser.add_argument("--only", help="only tests that this expression fits, as pytest's -k")
    parser.add_argument("--jobs", type=int, default=4, help="processes side by side")
    parser.add_argument("--reports", type=Path, required=True, help="folder for logs and JUnit files")
    parser.add_argument("--seconds", type=float, default=1800, help="stop what still runs after so long")
    parser.add_argument("--commit", default="not stated", help="what is run")
    parser.add_argument("--merge", action="store_true", help="keep what the record holds of other kernels")
    parser.add_argument("--output", type=Path, help="the record; by default benchmarks/results/gpu_tests_<arch>.json")
    arguments = parser.parse_args()
    ids = collected([*arguments.places, *(["-k", arguments.only] if arguments.only else [])])
    junits = run(ids, arguments.jobs, arguments.reports, arguments.seconds)
    return record(junits, arguments.commit, arguments.output, ids, arguments.merge)


if __name__ == "__main__":
    sys.exit(main())
