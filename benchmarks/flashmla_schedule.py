"""Times FlashMLA's decode with and without a schedule handed over, and ours around it, on this machine's GPU.

    python benchmarks/flashmla_schedule.py --out benchmarks/results/flashmla_schedule_h200.json

Needs a Hopper GPU and the package ``sgl-flash-mla``. At FlashMLA's own 64 heads, over V4 pages of 584 bytes a token,
each arm is captured in a CUDA graph of many calls; the graphs take turns. Before, the outputs are held against the
contract's reference, and those of FlashMLA with our schedule, for full rows and for lengths of any size, bit by bit
against those with its own.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from dspark_ops import contracts
from dspark_ops.bench.agreement import Wanted, called_once
from dspark_ops.bench.inputs import Place, bench_inputs
from dspark_ops.bench.inputs_attention import filled_pages
from dspark_ops.bench.machine import cache_bytes, machine_facts, require_gpu
from dspark_ops.bench.timing import CallGraph, alternate, spread
from dspark_ops.contracts.contract import Site

WHAT = (
    "microseconds per call inside CUDA graphs of 8 to 384 calls; the graphs take turns, forward and backward; median, "
    "first and last decile over the rounds; 64 heads, full rows of distinct slots, pages in kv_v4"
)
#: What the calls of a graph read, by name.
INPUTS = {
    "rotating": "each call its own inputs, together 2 times the L2 cache where 384 sets can be; lengths and a sink",
    "repeated": "all calls the same inputs, all rows slots of the same 8192, in the L2 cache; lengths and a sink",
    "bare": "as repeated, without lengths and sink, pages of 64 slots",
}
CONTRACT = contracts.get("sparse_mla_decode")
SIZES = ((1, 512), (64, 2048))
POOL = 8192
SCHEDULE = ("sched_meta", "num_splits")
#: Arms whose outputs must be those of FlashMLA with its own schedule, to the bit.
SAME_BITS = ("flashmla_handed", "flashmla_walked", "adapter", "adapter_handed")
#: Bound operators keep memory for so many captured calls.
CALLS_PER_BINDING = 24

Call = Callable[[], Any]
Inputs = Mapping[str, Any]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="file that receives the figures as JSON")
    parser.add_argument("--rounds", type=int, default=25)
    options = parser.parse_args()
    device = require_gpu()
    report = {
        "what": WHAT,
        "machine": machine_facts(device),
        "packages": {"sgl-flash-mla": version("sgl-flash-mla")},
        "rounds": options.rounds,
        "inputs": INPUTS,
        "sizes": [measured(device, *size, inputs, options.rounds) for size in SIZES for inputs in INPUTS],
    }
    options.out.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


def measured(device: Any, rows: int, topk: int, kind: str, rounds: int) -> dict[str, Any]:
    """Check and time every arm at one size with one kind of inputs."""
    axes = {"A": 64, "D": 512, "W": topk, "X": 0}
    site = Site("verify", axes=axes, layouts={"cache": "kv_v4"}, options={"page_size": 256, "layout": "kv_v4"})
    place = Place(CONTRACT, site, rows, torch.Generator("cuda").manual_seed(0))
    sets = list(_sets(place, kind))
    arms = {name: (what, make) for name, what, make in _arms(device, site, rows)}

    ragged = dict(sets[0])
    ragged["lengths"] = torch.randint(0, topk + 1, (rows,), generator=place.generator, device="cuda").int()
    ragged["sched_meta"], ragged["num_splits"] = (torch.zeros_like(ragged[name]) for name in SCHEDULE)
    contracts.get("mla_sched_meta").reference(ragged["lengths"], ragged["sched_meta"], ragged["num_splits"])
    checked = {"full rows": sets[0], "lengths from 0 to the width": ragged}
    bits = {text: {name: _equal(arms, name, inputs) for name in SAME_BITS} for text, inputs in checked.items()}
    if not all(equal for names in bits.values() for equal in names.values()):
        raise SystemExit(f"{rows} rows of {topk}, {kind}: not the bits of FlashMLA with its own schedule: {bits}")
    for inputs in checked.values():
        wanted = Wanted(CONTRACT, inputs)
        for name, (_, make) in arms.items():
            if wrong := wanted.disagreement(called_once(CONTRACT, make, inputs, _outputs)):
                raise SystemExit(f"{name}, {rows} rows of {topk}, {kind}: wrong numbers: {wrong}")

    graphs = {name: CallGraph([make(inputs) for inputs in sets]) for name, (_, make) in arms.items()}
    samples = alternate(graphs, rounds)
    found = {}
    for name, (what, _) in arms.items():
        launches = graphs[name].launches
        per_call = None if launches is None else round(launches / len(sets), 3)
        found[name] = {"what": what, "launches": per_call, **spread(samples[name].values()).to_json()}
        print(f"{rows} x {topk}, {kind}: {name:16} {found[name]['median_us']:8.2f} us, {per_call} launches", flush=True)
    return {"rows": rows, "topk": topk, "inputs": kind, "calls": len(sets), "bits_of_flashmla_own": bits, "arms": found}


def _sets(place: Place, kind: str) -> Iterator[dict[str, Any]]:
    """Yield the inputs of each call of a graph."""
    first = bench_inputs(place)
    size = sum(value.numel() * value.element_size() for value in first.values() if isinstance(value, torch.Tensor))
    count = min(384, max(8, math.ceil(2 * cache_bytes() / size)))
    if kind == "rotating":
        yield first
        yield from (bench_inputs(place) for _ in range(count - 1))
        return
    same = {**first, "indices": place.distinct(place.axis("W"), POOL, place.rows)}
    same["cache"] = filled_pages(place, POOL, "kv_v4")
    if kind == "bare":
        same |= {"cache": filled_pages(place, POOL, "kv_v4", 64), "page_size": 64, "lengths": None, "sink": None}
    yield from [same] * min(count, 64)


def _arms(device: Any, site: Site, rows: int) -> Iterator[tuple[str, str, Callable[[Inputs], Call]]]:
    """Yield each arm: its name, what it is, and what makes a call from inputs."""
    from flash_mla.flash_mla_interface import FlashMLASchedMeta

    import dspark_ops_nvidia_sm90.flashmla as adapter
    import dspark_ops_triton.attention as portable
    import dspark_ops_triton.mla_schedule as schedule

    walk = schedule.prepare_mla_sched_meta(device, Site("verify", options={"extra_topk": 0}), [rows])

    def own(inputs: Inputs) -> Call:
        return lambda: _flashmla(inputs, FlashMLASchedMeta())

    def handed(inputs: Inputs) -> Call:
        made = FlashMLASchedMeta()
        _flashmla(inputs, made)
        return lambda: _flashmla(inputs, made)

    def walked(inputs: Inputs) -> Call:
        meta, splits = (torch.empty_like(inputs[name]) for name in SCHEDULE)
        lengths = (
            torch.full((rows,), inputs["indices"].shape[1], dtype=torch.int32, device="cuda")
            if inputs["lengths"] is None
            else inputs["lengths"]
        )

        def call() -> Any:
            walk(lengths, meta, splits)
            return _flashmla(inputs, FlashMLASchedMeta(tile_scheduler_metadata=meta, num_splits=splits))

        return call

    def bound(module: Any, with_schedule: bool) -> Callable[[Inputs], Call]:
        kept: list[Any] = []
        calls = iter(range(1 << 30))

        def make(inputs: Inputs) -> Call:
            if next(calls) % CALLS_PER_BINDING == 0:
                kept.append(module.prepare_sparse_mla_decode(device, site, [rows]))
            function = kept[-1]
            given = inputs if with_schedule else {**inputs, **dict.fromkeys(SCHEDULE)}
            arguments = [given[parameter.name] for parameter in CONTRACT.parameters]
            return lambda: function(*arguments)

        return make

    yield "flashmla_own", "FlashMLA, which makes its schedule in every call", own
    yield "flashmla_handed", "FlashMLA, handed the schedule that it made before", handed
    yield "flashmla_walked", "mla_sched_meta, then FlashMLA, handed what that wrote", walked
    yield (
        "adapter",
        "nvidia_sm90/sparse_mla_decode/flashmla, which makes the schedule in every call",
        bound(adapter, False),
    )
    yield (
        "adapter_handed",
        "nvidia_sm90/sparse_mla_decode/flashmla, handed mla_sched_meta's schedule",
        bound(adapter, True),
    )
    yield "portable", "triton/sparse_mla_decode/split_entries", bound(portable, False)


def _flashmla(inputs: Inputs, schedule: Any) -> tuple[torch.Tensor, torch.Tensor]:
    from flash_mla import flash_mla_with_kvcache

    cache, size = inputs["cache"], inputs["page_size"]
    pages = cache.as_strided((cache.shape[0], size, 1, 584), (cache.stride(0), 584, 584, 1))
    return flash_mla_with_kvcache(
        inputs["q"].unsqueeze(1), pages, None, None, 512, schedule, softmax_scale=512**-0.5, is_fp8_kvcache=True,
        indices=inputs["indices"].unsqueeze(1), attn_sink=inputs["sink"], topk_length=inputs["lengths"],
        use_legacy=True,
    )  # fmt: skip


def _outputs(returned: Sequence[torch.Tensor], inputs: Inputs) -> dict[str, torch.Tensor]:
    """Return what FlashMLA or an operator returned, by the contract's names."""
    shape = inputs["q"].shape
    return {"out": returned[0].reshape(shape), "lse": returned[1].reshape(shape[:2])}


def _equal(arms: Mapping[str, Any], name: str, inputs: Inputs) -> bool:
    """Return whether an arm's outputs are those of FlashMLA with its own schedule, to the bit."""
    one, other = (called_once(CONTRACT, arms[arm][1], inputs, _outputs) for arm in ("flashmla_own", name))
    return all(torch.equal(one[key].view(torch.int16), other[key].view(torch.int16)) for key in one)


if __name__ == "__main__":
    main()
