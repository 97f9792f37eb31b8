"""Times the tile sizes of the portable kernels on this GPU, and writes the best ones into the table that they read.

Method: for each operator every candidate is first compared with the contract's reference, then its calls are captured
into graphs over inputs that together exceed the cache, and the candidates take turns. The best one has the least
geometric mean of the medians over the row counts; it goes into the table if that beats the default by 2 %. Operators of
one group get the same tiles, since their bits have to be the same.

    python benchmarks/tune_tiles.py                       # all groups, and the table is rewritten for this architecture
    python benchmarks/tune_tiles.py mhc_post --dry-run    # one of them; the table stays
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import torch

import dspark_ops_triton
from dspark_ops import contracts
from dspark_ops.bench.agreement import Wanted, called_once
from dspark_ops.bench.inputs import Place, bench_inputs
from dspark_ops.bench.machine import machine_facts, require_gpu
from dspark_ops.bench.timing import CallGraph, alternate, spread
from dspark_ops_triton import (
    attention,
    compress,
    index_scores,
    kv_store,
    main_projection,
    mhc,
    mhc_mix,
    mhc_mxfp8,
    mhc_post,
    mhc_post_combine,
    mhc_post_grid,
    moe_gate,
    paged_logits,
    rope_wo_a,
)
from dspark_ops_triton.argmax import TILES as ARGMAX_TILES
from dspark_ops_triton.blocks.arrival import ArrivalState
from dspark_ops_triton.blocks.copy_tiles import ColumnTiles
from dspark_ops_triton.blocks.dependent import has_pdl
from dspark_ops_triton.blocks.grid_product import GridProduct
from dspark_ops_triton.blocks.head_projection import HeadProjection, meetings
from dspark_ops_triton.blocks.launching import RowTiles, bind_launch
from dspark_ops_triton.blocks.row_argmax import RowArgmax, Tiles, unit_count

MODEL = contracts.model_shapes("deepseek-v4.1-flash/tp4")
ROWS = (1, 6, 48)
WORKING_SET = 150e6  # bytes; the L2 cache of an H200 holds 60 MB
ROUNDS = 20
GAIN = 0.98
TABLE = Path(dspark_ops_triton.__file__).parent / "tiles.json"

Maker = Callable[[Any], Callable[..., Any]]


@dataclasses.dataclass(frozen=True)
class Group:
    """Operators that get the same tiles: how they are bound, what is the default, what is tried, and for what sizes."""

    operators: dict[str, Maker]
    default: Any
    candidates: tuple[Any, ...]
    axes: tuple[str, ...]
    rows: tuple[int, ...] = ROWS


def bound(body: Callable[..., Any], public: Callable[..., Any]) -> Maker:
    """Return what makes a launch of `body` for tiles."""
    return lambda tiles: bind_launch(body, tiles, public)


def argmax(tiles: Tiles) -> RowArgmax:
    device = torch.device("cuda")
    return RowArgmax(tiles, unit_count(device), ArrivalState(max(ROWS), device))


def mix(tiles: mhc_mix.Tiles) -> mhc_mix.MixSinkhorn:
    return mhc_mix.MixSinkhorn(tiles, ArrivalState(math.ceil(max(ROWS) / mhc_mix.TOKENS), torch.device("cuda")))


def of_lines(table: Sequence[Any], tiles: Any) -> tuple[Any, ...]:
    """Return a table in whose lines all that differs between `tiles` and the first line is as in `tiles`."""
    names = [field.name for field in dataclasses.fields(tiles)]
    changed = {name: getattr(tiles, name) for name in names if getattr(tiles, name) != getattr(table[0], name)}
    return tuple(dataclasses.replace(line, **changed) for line in table)


def projection(tiles: Any, form: str = "plain") -> Callable[..., Any]:
    table = of_lines(rope_wo_a.TILES, tiles)
    axes = contracts.get("rope_wo_a").sites(MODEL)[0].axes
    arrivals = ArrivalState(meetings(table, axes["G"] * axes["R"], ROWS), torch.device("cuda"))
    return cast("Callable[..., Any]", getattr(HeadProjection(table, arrivals), form))


def changes(tiles: Any, *each: dict[str, int]) -> tuple[Any, ...]:
    return tuple(dataclasses.replace(tiles, **fields) for fields in each)


def row_tiles(*warps: int) -> tuple[RowTiles, ...]:
    return tuple(RowTiles(count) for count in warps)


def threads(*counts: int) -> tuple[mhc.Tiles, ...]:
    return tuple(mhc.Tiles(count) for count in counts) + SHARED


#: Programs that share a row of 5120 lanes.
SHARED = tuple(mhc.Tiles(count, programs=programs) for count, programs in ((128, 2), (128, 4), (64, 8)))


#: For operators whose columns are computed apart.
COLUMNS = tuple(
    ColumnTiles(block, count, doubled)
    for block, count in ((128, 32), (256, 32), (256, 64), (512, 128), (1024, 128)) for doubled in (0, 24)
)  # fmt: skip


GROUPS = {
    "argmax_rows": Group(
        {"argmax_rows": argmax}, ARGMAX_TILES,
        tuple(Tiles(*sizes) for sizes in ((1024, 4, 8), (2048, 4, 8), (2048, 8, 8), (4096, 8, 4), (4096, 16, 2))),
        ("V",),
    ),
    "mhc_combine_norm": Group(
        {
            "mhc_combine_norm": bound(mhc._combine_norm, mhc.mhc_combine_norm),
            "mhc_combine_norm_mxfp8": bound(mhc_mxfp8._combine_norm_mxfp8, mhc_mxfp8.mhc_combine_norm_mxfp8),
        },
        mhc.TILES, threads(128, 256, 1024), ("N", "H"),
    ),
    "mhc_post": Group(
        {"mhc_post": bound(mhc_post._post, mhc_post.mhc_post)}, mhc_post.TILES, COLUMNS, ("N", "H"),
    ),
    "mhc_combine": Group(
        {"mhc_combine": bound(mhc._combine, mhc.mhc_combine)}, mhc.PLAIN_TILES, COLUMNS, ("N", "H"),
    ),
    "mhc_post_combine": Group(
        {"mhc_post_combine": bound(mhc_post_combine._post_combine, mhc_post_combine.mhc_post_combine)},
        mhc_post_combine.TILES, COLUMNS, ("N", "H"),
    ),
    "mhc_post_combine_norm": Group(
        {
            "mhc_post_combine_norm": bound(
                mhc_post_combine._post_combine_norm, mhc_post_combine.mhc_post_combine_norm
            ),
            "mhc_post_combine_norm_fp8_grid": bound(
                mhc_post_grid.post_combine_norm_grid, mhc_post_grid.mhc_post_combine_norm_fp8_grid
            ),
        },
        mhc_post_combine.NORM_TILES, threads(256, 1024), ("N", "H"),
    ),
    "mhc_mix_sinkhorn": Group(
        {"mhc_mix_sinkhorn": mix}, mhc_mix.TILES,
        tuple(mhc_mix.Tiles(*sizes) for sizes in ((256, 64, 4), (256, 128, 8), (512, 128, 4), (512, 128, 8))), ("J",),
    ),
    "moe_gate_topk": Group(
        {"moe_gate_topk_packed": bound(moe_gate._packed, moe_gate.moe_gate_topk_packed)}, moe_gate.TILES,
        row_tiles(1, 2, 8), ("E",),
    ),
    "compress_c1": Group(
        {"compress_c1": bound(compress._compress_c1, compress.compress_c1)}, compress.TILES, row_tiles(1, 2, 8), (),
    ),
    "compress_c2": Group(
        {"compress_c2": bound(compress._compress_c2, compress.compress_c2)}, compress.TILES, row_tiles(1, 2, 8), (),
        rows=(6, 48),  # whole requests
    ),
    "k_norm_rope_store": Group(
        {"k_norm_rope_store": bound(kv_store._store, kv_store.k_norm_rope_store)}, kv_store.TILES,
        row_tiles(1, 2, 8), (),
    ),
    "sparse_mla_decode": Group(
        {"sparse_mla_decode": attention.SparseDecode}, attention.TILES,
        changes(
            attention.TILES, {"merged": 16}, {"merge_warps": 2}, {"merged": 8, "merge_warps": 8},
            {"entries": 32, "warps": 4, "merged": 8},
        ), ("A",),
    ),
    "rope_wo_a": Group(
        {"rope_wo_a": projection, "rope_wo_a_mxfp8": lambda tiles: projection(tiles, "mxfp8")}, rope_wo_a.TILES[0],
        changes(rope_wo_a.TILES[0], {"stages": 3}, {"stages": 5}), ("K", "G", "R"),
    ),
    "index_scores": Group(
        {"index_scores": bound(index_scores._index_scores, index_scores.index_scores)}, index_scores.TILES,
        changes(
            index_scores.TILES, {"entries": 128}, {"programs": 1056}, {"entries": 128, "programs": 1056}, {"warps": 2},
            {"programs": 0},
        ), ("A",),
    ),
    "paged_mqa_logits_fp4": Group(
        {"paged_mqa_logits_fp4": bound(paged_logits._logits, paged_logits.paged_mqa_logits_fp4)}, paged_logits.TILES,
        changes(paged_logits.TILES, {"keys": 128}, {"programs": 1056}, {"keys": 128, "programs": 1056}, {"warps": 2}),
        ("H",),
    ),
    "main_projection": Group(
        {"main_projection": lambda tiles: GridProduct(of_lines(main_projection.HOPPER_TILES, tiles))},
        main_projection.HOPPER_TILES[0],
        changes(
            main_projection.HOPPER_TILES[0], {"splits": 8}, {"splits": 5}, {"depth": 64}, {"columns": 128, "depth": 64},
            {"columns": 128, "stages": 3},
        ), ("N", "K"),
    ),
}  # fmt: skip


def input_sets(name: str, rows: int) -> Iterator[dict[str, Any]]:
    """Yield inputs of calls at the first place of the model, as many as exceed the cache."""
    contract = contracts.get(name)
    generator = torch.Generator("cuda").manual_seed(rows)
    place = Place(contract, contract.sites(MODEL)[0], rows, generator)
    first = bench_inputs(place)
    yield first
    size = sum(value.nbytes for value in first.values() if isinstance(value, torch.Tensor))
    for _ in range(int(min(256, max(24, WORKING_SET // size))) - 1):
        yield bench_inputs(place)


def medians(name: str, arms: dict[Any, Callable[..., Any]], rows: int) -> dict[Any, float]:
    """Return microseconds per call of each arm whose numbers are right."""
    contract, sets = contracts.get(name), list(input_sets(name, rows))
    wanted = Wanted(contract, sets[0])
    graphs = {}
    for tiles, function in arms.items():
        wrong = wanted.disagreement(called_once(contract, lambda given, call=function: lambda: call(**given), sets[0]))
        if wrong:
            print(f"{name}, {rows} rows, {tiles}: not timed, {wrong}", flush=True)
            continue
        graphs[tiles] = CallGraph([lambda given=inputs, call=function: call(**given) for inputs in sets])
    return {tiles: spread(values.values()).median for tiles, values in alternate(graphs, ROUNDS).items()}


def tuned(name: str, group: Group, pdl: bool, machine: str) -> dict[str, Any]:
    """Return the table's entry of each operator of a group; none where the default is as good as the best one."""
    choices = [dataclasses.replace(tiles, pdl=pdl) for tiles in (group.default, *group.candidates)]
    times: dict[str, dict[Any, dict[int, float]]] = {}
    for operator, maker in group.operators.items():
        arms = {tiles: maker(tiles) for tiles in choices}
        times[operator] = {tiles: {} for tiles in choices}
        for rows in group.rows:
            for tiles, median in medians(operator, arms, rows).items():
                times[operator][tiles][rows] = round(median, 3)
        for tiles in choices:
            print(f"{operator:24} {times[operator][tiles]} {tiles}", flush=True)
    right = [tiles for tiles in choices if all(len(of[tiles]) == len(group.rows) for of in times.values())]

    def cost(tiles: Any) -> float:
        logarithms = [math.log(us) for of in times.values() for us in of[tiles].values()]
        return math.exp(sum(logarithms) / len(logarithms))

    best, default = min(right, key=cost), choices[0]
    if cost(best) > GAIN * cost(default):
        return {}
    changed = {
        field.name: getattr(best, field.name)
        for field in dataclasses.fields(best) if getattr(best, field.name) != getattr(default, field.name)
    }  # fmt: skip
    named = next(iter(group.operators))
    site = contracts.get(named).sites(MODEL)[0]
    axes = {axis: site.axes[axis] for axis in group.axes}
    key = {operator: name if len(group.operators) == 1 else operator for operator in group.operators}
    return {
        key[operator]: [{"axes": axes, "tiles": changed, "us": of[best], "default_us": of[default], "on": machine}]
        for operator, of in times.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("groups", nargs="*", help=f"of {', '.join(GROUPS)}; all if none is named")
    parser.add_argument("--dry-run", action="store_true", help="print the figures, leave the table")
    parser.add_argument("--out", type=Path, default=TABLE, help="the table; by default that of the plugin")
    options = parser.parse_args()
    unknown = sorted(set(options.groups) - set(GROUPS))
    if unknown:
        parser.error(f"no group {', '.join(unknown)}: wanted some of {', '.join(GROUPS)}")
    device = require_gpu()
    torch.manual_seed(0)
    facts = machine_facts(device).items()
    machine = ", ".join(f"{name} {value}" for name, value in facts if isinstance(value, str | int | float))
    entries = (table := json.loads(TABLE.read_text(encoding="utf-8"))).setdefault(device.arch.name, {})
    for name in options.groups or GROUPS:
        found = tuned(name, GROUPS[name], has_pdl(device), machine)
        for operator in (name, *GROUPS[name].operators):
            entries.pop(operator, None)
        entries |= found
        if not options.dry_run:
            text = json.dumps({arch: dict(sorted(of.items())) for arch, of in sorted(table.items())}, indent=1)
            options.out.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
