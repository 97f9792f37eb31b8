"""Records everything that docs/performance.md shows, on this machine's GPU: one command.

    python benchmarks/record_all.py --results benchmarks/results && python docs/build_performance.py

Operators beside their peers (``record_gpu.py``), a whole cycle under two plans (``dspark-ops bench cycle``), and the
small model's tokens on the GPU (``decode_on_gpu.py``), which is run while the first one compiles. A part that fails
costs the others nothing: its earlier file stays, and the exit code is 1.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, required=True, help="folder that receives the JSON files")
    parser.add_argument("--name", default="h200", help="what the files are called after")
    parser.add_argument("--config", type=Path, help="configuration of the operator selection for the small model")
    parser.add_argument("--cpu-tokens", type=Path, help="see decode_on_gpu.py")
    options, rest = parser.parse_known_args()
    results = options.results
    results.mkdir(parents=True, exist_ok=True)
    failed = []
    with tempfile.TemporaryDirectory() as name:
        marker = Path(name) / "decoded"
        decode = [str(HERE / "decode_on_gpu.py"), "--out", str(results / f"decode_{options.name}.json")]
        for option, value in (("--config", options.config), ("--cpu-tokens", options.cpu_tokens)):
            decode += [option, str(value)] if value else []
        decoding = subprocess.Popen([sys.executable, *decode])
        record = [
            str(HERE / "record_gpu.py"),
            "--out",
            str(results / f"{options.name}.json"),
            "--wait-for",
            str(marker),
        ]
        recording = subprocess.Popen([sys.executable, *record, *rest])
        failed += [] if decoding.wait() == 0 else ["decode"]
        marker.touch()
        failed += [] if recording.wait() == 0 else ["operators"]
    for other in ("parts", "reference"):
        began = time.monotonic()
        suffix = "" if other == "parts" else f"_{other}"
        out = results / f"cycle{suffix}_{options.name}.json"
        cycle = ["-m", "dspark_ops.cli", "bench", "cycle", "--a", "planned", "--b", other, "--write", str(out)]
        code = subprocess.run([sys.executable, *cycle], check=False).returncode
        # 1 says that an operator was left out of the cycle, which the file states.
        failed += [] if code in (0, 1) and out.exists() else [f"cycle against {other}"]
        print(f"cycle against {other}: {time.monotonic() - began:.0f} s", flush=True)
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
