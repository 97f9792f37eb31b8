"""``dspark-ops bench micro``: single operators on this machine's GPU, beside their parts and their peers."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from dspark_ops.cli._options import DEFAULT_MODEL, ConfigOption, JsonOption, ModelOption, chosen_rows, configured
from dspark_ops.cli._show import console, print_json, table
from dspark_ops.errors import ConfigError

OpOption = Annotated[
    list[str] | None, typer.Option("--op", metavar="NAME", help="Only this operator. Repeatable; default: all kernels.")
]
VsOption = Annotated[str, typer.Option("--vs", metavar="NAMES", help="Peers, with commas between; empty for none.")]
PeersOption = Annotated[Path, typer.Option("--peers", metavar="DIR", help="Folder of the peers' adapters.")]
RowsOption = Annotated[str, typer.Option("--rows", metavar="COUNTS", help="Row counts: 6, 1-8 or 1,6,48.")]
RoundsOption = Annotated[int, typer.Option("--rounds", help="Rounds in which all arms take a turn; at least 5.")]
WriteOption = Annotated[Path | None, typer.Option("--write", metavar="FILE", help="Save the figures as JSON.")]

_LEAST_ROUNDS = 5


def micro(
    op: OpOption = None,
    vs: VsOption = "",
    rows: RowsOption = "6",
    model: ModelOption = DEFAULT_MODEL,
    peers: PeersOption = Path("benchmarks/peers"),
    rounds: RoundsOption = 25,
    config: ConfigOption = None,
    write: WriteOption = None,
    as_json: JsonOption = False,
) -> None:
    """Time single operators on a GPU: the planned kernel, a fused one's parts, and peers.

    Calls are replayed from CUDA graphs over input sets that together exceed the cache; arms take turns. A ratio is
    shown only where the rounds tell the arms apart. Exit code 1: an operator failed.
    """
    from dspark_ops.bench.floors import measure_floor
    from dspark_ops.bench.machine import add_floor, machine_facts, require_gpu
    from dspark_ops.bench.micro import Bench
    from dspark_ops.bench.peers import load_peer

    if rounds < _LEAST_ROUNDS:
        raise ConfigError(f"--rounds {rounds}: wanted {_LEAST_ROUNDS} or more, else there are no deciles")
    counts = chosen_rows(rows)
    loaded = [load_peer(name.strip(), peers) for name in vs.split(",") if name.strip()]
    bench = Bench(require_gpu(), model, configured(config).settings, loaded)
    floor = measure_floor()
    groups = []
    for name in op or bench.operators():
        for count in counts:
            groups.append(add_floor(bench.group(name, count).timed(rounds), floor))
    report = {
        "model": model,
        "machine": machine_facts(bench.device),
        "floor": floor.to_json(),
        "rounds": rounds,
        "groups": groups,
    }
    if write is not None:
        _save(write, report)
    if as_json:
        print_json(report)
    else:
        _print(report)
    if any("failed" in group for group in groups):
        raise typer.Exit(1)


def _save(path: Path, report: dict[str, Any]) -> None:
    try:
        path.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"--write {path}: the figures cannot be saved: {error.strerror}") from error


def _print(report: dict[str, Any]) -> None:
    out = console()
    machine, floor = report["machine"], report["floor"]
    out.print(
        f"{report['model']} on {machine['device']} ({machine['arch']}), torch {machine['torch']}, "
        f"Triton {machine['triton']}; copy {floor['copy_bytes_per_second'] / 1e12:.2f} TB/s, "
        f"launch with one load {floor['one_load_launch_us']:.2f} us, one more {floor['dependent_load_us']:.2f} us",
        markup=False,
    )
    columns = ("operator", "#rows", "arm", "#us", "#p10", "#p90", "#launches", "#floor us", "own is faster", "what")
    out.print(table("", columns, _rows(report["groups"]), whole=("operator", "arm")))
    for group in report["groups"]:
        name = f"{group['op']} {group['rows']}"
        if "failed" in group:
            out.print(f"{name}: failed: {group['failed']}", markup=False, soft_wrap=True)
        for arm, reason in group["unfit"].items():
            out.print(f"{name}: {arm} left out: {reason}", markup=False, soft_wrap=True)


def _rows(groups: Sequence[dict[str, Any]]) -> Iterator[tuple[str, ...]]:
    for group in groups:
        floor = f"{group['floor_us']:.2f}" if "floor_us" in group else "-"
        for name, arm in group["arms"].items():
            if "median_us" not in arm:
                continue
            times = tuple(f"{arm[key]:.2f}" for key in ("median_us", "p10_us", "p90_us"))
            launches = "-" if arm["launches"] is None else f"{arm['launches']:g}"
            yield (group["op"], str(group["rows"]), name, *times, launches, floor, _ratio(arm), arm["what"])


def _ratio(arm: dict[str, Any]) -> str:
    found = arm.get("own_is_faster")
    if found is None:
        return ""
    if found["ratio"] is None:
        return f"not told apart ({found['p10']:.2f} to {found['p90']:.2f})"
    return f"{found['ratio']:.2f}x"
