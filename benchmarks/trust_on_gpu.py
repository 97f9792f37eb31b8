"""Goes the way of docs/trust.md on this machine in one run, and keeps what each command said.

    python benchmarks/trust_on_gpu.py --out benchmarks/results/trust_h200
    python benchmarks/trust_on_gpu.py --device cpu --out FOLDER          # the same way with Triton's interpreter

Steps: the doctor; `tune` for two operators; a lock written with the measured table, checked, and started from under
``lock = "require"``; a start that the lock refuses; trial runs of every kernel that decoding the small model chooses
(``--whole``: of every operator); `bench ab` of the references (A) against the portable kernels (B) with A against A
beside them and drawn acceptance; `compare` of the records, once as they are and once with the arms exchanged, which it
refuses. Each step's output is a file in the folder; `summary.json` has command, exit code, seconds and what was looked
at. A step that would begin behind the deadline is left out and listed as such. Exit code 1: a step did not do what it
should.

Where one plugin serves an operator there is nothing to tune, so a plugin is made for this run, outside of any
distribution: `sample/.../twice` calls the kernel two times and says that it is fused. Without times the plan takes it,
by its class; with times it does not.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

MODEL = Path(__file__).parents[1] / "examples" / "tiny_v41"
TUNED = ("argmax_rows", "mhc_post")
ROWS = "1,6"
SHAPES = "deepseek-v4.1-flash/tp4"


@dataclass(slots=True)
class Way:
    """The run: where its files are, what it may still take, and what its steps did."""

    out: Path
    device: str
    deadline: float
    variables: dict[str, str]
    began: float = field(default_factory=time.monotonic)
    steps: list[dict[str, Any]] = field(default_factory=list)

    def step(self, name: str, words: Sequence[str], check: Callable[[int, Any, str], str]) -> None:
        """Run a command of the library, keep its output as ``NAME.json`` or ``.txt``, and judge it.

        Args:
            name: of the step.
            words: behind ``dspark-ops``.
            check: gets exit code, the JSON that was printed (None if it is none) and stderr; returns what is wrong.
        """
        if self._late(name):
            return
        start = time.monotonic()
        done = subprocess.run(
            [sys.executable, "-m", "dspark_ops.cli", *words], capture_output=True, text=True, env=self.variables,
            cwd=self.out, check=False,
        )  # fmt: skip
        try:
            data = json.loads(done.stdout)
        except ValueError:
            data = None
        path = self.out / f"{name}{'.txt' if data is None else '.json'}"
        path.write_text(done.stdout if data is not None else done.stdout + done.stderr, encoding="utf-8")
        self.keep(name, start, check(done.returncode, data, done.stderr), rc=done.returncode, words=list(words))

    def keep(self, name: str, start: float, wrong: str, **facts: Any) -> None:
        """Add a step that has run to the summary."""
        entry = {"step": name, "seconds": round(time.monotonic() - start, 1), "wrong": wrong, **facts}
        self.steps.append(entry)
        sys.stderr.write(f"{name}: {entry['seconds']} s{f': WRONG: {wrong}' if wrong else ''}\n")

    def _late(self, name: str) -> bool:
        late = time.monotonic() - self.began > self.deadline
        if late:
            self.steps.append(
                {"step": name, "wrong": "", "left_out": f"the deadline of {self.deadline:g} s had passed"}
            )
        return late

    def trial(self, operators: Sequence[str] | None) -> None:
        """Bind a plan with trial runs, and keep which kernels were tried, skipped and quarantined."""
        if self._late("trial"):
            return
        os.environ.update(self.variables)
        import dspark_ops
        from dspark_ops.binding.smoke import chosen_kernels

        said: list[str] = []
        handler = logging.Handler()
        handler.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
        log = logging.getLogger("dspark_ops.smoke")
        log.addHandler(handler)
        log.setLevel(logging.INFO)
        start = time.monotonic()
        policy = {"smoke": "on", "smoke_seconds": 120, "fallback": "allow"}
        plan = dspark_ops.plan(model=SHAPES, rows=[6], operators=operators, config={"policy": policy})
        tried = chosen_kernels(plan)
        bound = plan.bind().plan
        found = {"kernels": list(tried), "said": said, "digest": plan.digest, "bound_digest": bound.digest}
        (self.out / "trial.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
        quarantined = [text for text in said if "quarantined" in text]
        skipped = sum("was not tried" in text for text in said)
        self.keep("trial", start, "; ".join(quarantined), tried=len(tried) - skipped, skipped=skipped)


def main() -> int:
    """Run all steps and return 0, or 1 where one did not do what it should."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder for the files; must not hold any yet")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--pairs", type=int, default=2, help="pairs of A and B, and as many of A and A")
    parser.add_argument("--max-tokens", type=int, default=24)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--deadline", type=float, default=110.0, help="no step begins after so many seconds")
    parser.add_argument("--whole", action="store_true", help="trial runs of every operator's kernels")
    options = parser.parse_args()
    out = options.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    if any(out.iterdir()):
        parser.error(f"--out {out}: holds files already")
    way = Way(out, options.device, options.deadline, _variables(out, options.device))
    _configurations(out, options.device)

    way.step("doctor", ["doctor", "--json"], _answered)
    words = ["tune", *(word for name in TUNED for word in ("--op", name)), "--rows", ROWS, "--rounds", "9"]
    way.step("tune", [*words, "--config", "tune.toml", "--evidence", "evidence.json", "--json"], _tuned)
    plan = ["plan", "--model", SHAPES, "--rows", ROWS]
    way.step("plan_without_times", [*plan, "--config", "tune.toml", "--json"], _takes("sample/{}/twice"))
    way.step("lock_write", [*plan, "--config", "lock.toml", "--write"], _ends_with(0))
    way.step("lock_check", [*plan, "--config", "lock.toml", "--check"], _ends_with(0))
    way.step("start_required", [*plan, "--config", "required.toml", "--json"], _takes(_fastest(out)))
    way.step("start_refused", [*plan, "--config", "denied.toml"], _ends_with(1, "policy.lock is 'require'"))
    way.trial(None if options.whole else _decoded(options.device))
    arms = ["--a", "reference.toml", "--b", "portable.toml"]
    way.step(
        "bench_ab",
        ["bench", "ab", "--model", str(MODEL), "--prompt", "def add(a, b):", *arms, "--device", options.device,
         "--pairs", str(options.pairs), "--control", str(options.pairs), "--runs", str(options.runs), "--warmups", "1",
         "--max-tokens", str(options.max_tokens), "--simulate-accept", "2.5", "--no-gate", "--out", "ab", "--json"],
        _compared,
    )  # fmt: skip
    way.step("compare", ["compare", "ab/A.json", "ab/B.json", "--json"], _compared)
    way.step("compare_exchanged", ["compare", "ab/B.json", "ab/A.json"], _ends_with(2, "wanted arm A, then arm B"))
    seconds = round(time.monotonic() - way.began, 1)
    summary = {"seconds": seconds, "machine": _machine(options.device), "steps": way.steps}
    (out / "summary.json").write_text(json.dumps(summary, indent=1) + "\n", encoding="utf-8")
    return int(any(step["wrong"] for step in way.steps))


def _variables(out: Path, device: str) -> dict[str, str]:
    """Write the sample plugin, and return the environment in which it is found."""
    site = out / "sample"
    info = site / "sample-1.0.dist-info"
    info.mkdir(parents=True)
    shutil.copyfile(Path(__file__).with_name("trust_sample_plugin.py"), site / "sample_plugin.py")
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: sample\nVersion: 1.0\n", encoding="utf-8")
    (info / "entry_points.txt").write_text("[dspark_ops.plugins]\nsample = sample_plugin\n", encoding="utf-8")
    (info / "RECORD").write_text("sample_plugin.py,,\n", encoding="utf-8")
    variables = {name: value for name, value in os.environ.items() if not name.startswith("DSPARK_OPS_")}
    variables["PYTHONPATH"] = os.pathsep.join([str(site), *filter(None, [os.environ.get("PYTHONPATH")])])
    return variables | ({"TRITON_INTERPRET": "1"} if device == "cpu" else {})


def _configurations(out: Path, device: str) -> None:
    loaded = ["sample", "triton"] if device == "cuda" else ["sample"]
    own = f"[plugins]\nallow = {json.dumps(loaded)}\n"
    allow = '[policy]\nfallback = "allow"\n'
    texts = {
        "tune": own + allow,
        "lock": own + allow + '[files]\nmeasured = "measured.json"\nevidence = ["evidence.json"]\n',
        "required": own + allow + 'lock = "require"\n[files]\nlock = "dspark-ops.lock"\n',
        "reference": "[plugins]\nallow = []\n" + allow,
        "portable": '[plugins]\nallow = ["triton"]\n' + allow + (_only_argmax() if device == "cpu" else ""),
    }
    texts["denied"] = texts["required"] + '[ops.argmax_rows]\ndeny = ["sample/*", "triton/*"]\n'
    for name, text in texts.items():
        (out / f"{name}.toml").write_text(text, encoding="utf-8")


def _only_argmax() -> str:
    """Keep all portable kernels but one from an interpreter that takes seconds for a call."""
    from dspark_ops.contracts import names

    return "".join(f'[ops.{name}]\ndeny = ["triton/*"]\n' for name in names() if name != "argmax_rows")


def _decoded(device: str) -> tuple[str, ...]:
    """Return the operators that decoding calls; in the interpreter, two of them."""
    from dspark_ops.decode.model import OPERATORS

    return tuple(OPERATORS) if device == "cuda" else TUNED


def _chosen(data: Mapping[str, Any]) -> dict[tuple[str, str], str]:
    """Return kernel and origin of the tuned operators in a printed plan, by operator and rows."""
    return {
        (selection["problem"]["operator"], choice["rows"]): choice["kernel"]["id"]
        for selection in data["plan"]["selections"] for choice in selection["choices"]
        if selection["problem"]["operator"] in TUNED
    }  # fmt: skip


def _answered(rc: int, data: Any, errors: str) -> str:
    return "" if data is not None and rc in (0, 1) else f"exit code {rc}: {errors[-300:]}"


def _tuned(rc: int, data: Any, errors: str) -> str:
    timed = {entry["operator"] for entry in data["times"]} if data else set()
    return "" if rc == 0 and timed == set(TUNED) else f"exit code {rc}, timed {sorted(timed)}: {errors[-300:]}"


def _takes(wanted: str | Callable[[], Mapping[tuple[str, int], set[str]]]) -> Callable[[int, Any, str], str]:
    """Return a check that a plan takes the kernel of a pattern, or one of those that a function gives."""

    def check(rc: int, data: Any, errors: str) -> str:
        if rc or data is None:
            return f"exit code {rc}: {errors[-300:]}"
        found = _chosen(data)
        if isinstance(wanted, str):
            other = {key: kernel for key, kernel in found.items() if kernel != wanted.format(key[0])}
        else:
            fastest = wanted()
            other = {key: kernel for key, kernel in found.items()
                     if not any(kernel in fastest[key[0], count] for count in _counts(key[1]))}  # fmt: skip
        return f"took {other}" if other or not found else ""

    return check


def _counts(rows: str) -> list[int]:
    return [int(part) for part in rows.replace("-", ",").split(",")]


def _fastest(out: Path) -> Callable[[], dict[tuple[str, int], set[str]]]:
    """Return a function that gives the fastest kernels of the measured table, at any site, by operator and rows."""

    def read() -> dict[tuple[str, int], set[str]]:
        (table,) = json.loads((out / "measured.json").read_text(encoding="utf-8"))["tables"].values()
        best: dict[tuple[str, int, str], tuple[float, str]] = {}
        for time_ in table["times"]:
            key = (time_["operator"], time_["rows"], time_["site"])
            best[key] = min(best.get(key, (float("inf"), "")), (time_["us"], time_["kernel"]))
        found: dict[tuple[str, int], set[str]] = {}
        for (operator, rows, _), (_, kernel) in best.items():
            found.setdefault((operator, rows), set()).add(kernel)
        return found

    return read


def _ends_with(code: int, text: str = "") -> Callable[[int, Any, str], str]:
    """Return a check of exit code and of a text on stderr."""
    return lambda rc, _, errors: "" if rc == code and text in errors else f"exit code {rc}: {errors[-300:]}"


def _compared(rc: int, data: Any, errors: str) -> str:
    if rc or data is None:
        return f"exit code {rc}: {errors[-300:]}"
    comparison = data["comparison"]
    missing = [name for name in ("effect", "control") if comparison[name] is None]
    for arm in comparison["arms"] or ():
        if not arm["conformance"].startswith("passed"):
            missing.append(f"check of arm {arm['arm']}'s kernels")
        if arm["host_syncs"] is None and data["workload"]["device"] == "cuda":
            missing.append(f"count of arm {arm['arm']}'s host waits")
    unlabelled = "" if comparison["simulated"] else "drawn acceptance without its label"
    return f"no {' and no '.join(missing)}" if missing else unlabelled


def _machine(device: str) -> dict[str, str]:
    import torch

    name = torch.cuda.get_device_name() if device == "cuda" else "cpu"
    return {"device": name, "torch": torch.__version__, "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())}


if __name__ == "__main__":
    sys.exit(main())
