"""Which stream each kernel of a captured verify step runs on, with side streams and without.

    python benchmarks/stream_trace.py [--output benchmarks/results/stream_trace_h200.json]

The small model's verify step is captured twice: all on one lane, and with the prepare plans of its layers on streams.
Both are replayed under torch's profiler. The main lane is the stream that the query's kernels run on; the record counts
the writes of keys and values on it, the streams in use, and how much of the kernels' time lies beside other kernels.
Times per replay are medians of rounds in which the two take turns, without the profiler.
"""

from __future__ import annotations

import argparse
import datetime
import json
import platform
import statistics
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from dspark_ops.decode import DecodeOptions, Model, StaticPolicy, load_model
from dspark_ops.decode.options import Execution, RuntimeOptions
from dspark_ops.decode.runtimes.runtime_set import RuntimeSet

ROOT = Path(__file__).resolve().parents[1]
#: Parts of the names of the kernels that turn the queries, and that write keys and values.
QUERY, STORE = "turned_copy", "norm_rope_store"


def prepared(model: Model, side_streams: bool, requests: int) -> RuntimeSet:
    """Return captured runtimes whose buffers hold live requests in the middle of a text."""
    options = DecodeOptions(
        policy=StaticPolicy(),
        execution=Execution.GRAPH,
        runtimes=RuntimeOptions(sizes=(requests,), extra_widths=(), side_streams=side_streams),
    )
    stops = torch.tensor([model.config.eos], device="cuda")
    runtimes = RuntimeSet(model, model.state(requests), options, requests, stops)
    runtimes.prepare(sampled=False, unfolded=True, folded=False)
    buffers = runtimes.buffers
    buffers.slot.copy_(torch.arange(requests))
    buffers.start.fill_(100)
    buffers.anchor.fill_(7)
    buffers.live.fill_(True)
    buffers.lens.fill_(model.config.gamma + 1)
    buffers.drafts.fill_(9)
    return runtimes


def kernels(runtimes: RuntimeSet, requests: int, width: int) -> list[dict[str, Any]]:
    """Return the kernels of one replay: name, stream, start and duration in microseconds."""
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as found:
        runtimes.primary.verify(requests, width)
        torch.cuda.synchronize()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "trace.json"
        found.export_chrome_trace(str(file))
        events = json.loads(file.read_text(encoding="utf-8"))["traceEvents"]
    return [
        {"name": event["name"], "stream": event["args"]["stream"], "start": event["ts"], "us": event["dur"]}
        for event in events
        if event.get("cat") == "kernel"
    ]


def beside_others(found: list[dict[str, Any]]) -> float:
    """Return the microseconds in which more than one kernel runs."""
    edges = sorted(edge for item in found for edge in ((item["start"], 1), (item["start"] + item["us"], -1)))
    total, running, last = 0.0, 0, 0.0
    for place, change in edges:
        total += place - last if running > 1 else 0.0
        running, last = running + change, place
    return total


def summary(found: list[dict[str, Any]]) -> dict[str, Any]:
    """Return where the writes of keys and values run."""
    turns = Counter(item["stream"] for item in found if QUERY in item["name"])
    if not turns:
        names = ", ".join(sorted({item["name"][:40] for item in found})) or "none"
        raise SystemExit(f"no kernel named {QUERY!r} in the trace: found {names}")
    main = turns.most_common(1)[0][0]
    stores = [item for item in found if STORE in item["name"]]
    return {
        "kernels": len(found),
        "kernels_by_stream": dict(Counter(str(item["stream"]) for item in found).most_common()),
        "kv_writes": len(stores),
        "kv_writes_on_the_query_lane": sum(item["stream"] == main for item in stores),
        "kernel_us": round(sum(item["us"] for item in found), 1),
        "us_beside_other_kernels": round(beside_others(found), 1),
    }


def replay_us(runtimes: RuntimeSet, requests: int, width: int, replays: int = 50) -> float:
    """Return the mean time of a replay."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(replays):
        runtimes.primary.verify(requests, width)
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) * 1e3 / replays


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path)
    parser.add_argument("--requests", type=int, default=1)
    arguments = parser.parse_args()
    model = load_model(ROOT / "examples" / "tiny_v41", device="cuda", config={"policy": {"fallback": "allow"}})
    requests, width = arguments.requests, model.config.gamma + 1
    with torch.inference_mode():
        ways = {name: prepared(model, name == "streams", requests) for name in ("one lane", "streams")}
        traces = {name: summary(kernels(runtimes, requests, width)) for name, runtimes in ways.items()}
        logits = {name: runtimes.primary.verify(requests, width).logits.clone() for name, runtimes in ways.items()}
        times: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(15):
            for name, runtimes in ways.items():
                times[name].append(replay_us(runtimes, requests, width))
    report = {
        "date": datetime.date.today().isoformat(),
        "machine": {
            "device": torch.cuda.get_device_name(0), "torch": torch.__version__, "python": platform.python_version()
        },
        "requests": requests,
        "rows": requests * width,
        "equal_bits": torch.equal(*logits.values()),
        "ways": traces,
        "replay_us": {name: round(statistics.median(values), 1) for name, values in times.items()},
    }  # fmt: skip
    text = json.dumps(report, indent=1)
    print(text)
    if arguments.output:
        arguments.output.write_text(text + "\n", encoding="utf-8")
    return 0 if report["equal_bits"] else 1


if __name__ == "__main__":
    sys.exit(main())
