"""Times the first Triton kernels beside torch on a real GPU, and the tile sizes of argmax_rows beside each other.

Method: each arm is one CUDA graph of many calls over inputs that together exceed the L2 cache, so neither launches from
Python nor a warm cache are in the figures. The arms of a group take turns, round after round; the figure is the median
of the rounds, per call, with the first and last decile. Outputs are compared before anything is timed.

    python benchmarks/triton_first_kernels.py --out benchmarks/results/triton_first_kernels_h200.json
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import triton

from dspark_ops import contracts
from dspark_ops_triton import accept, argmax, mhc
from dspark_ops_triton.blocks.arrival import ArrivalState
from dspark_ops_triton.blocks.row_argmax import RowArgmax, Tiles

VOCAB = 129280
HIDDEN = 5120
ROUNDS = 40
WORKING_SET = 192e6  # bytes; the L2 cache of an H200 holds 60 MB
SWEEP = (
    Tiles(1024, 4, 8), Tiles(2048, 4, 7), Tiles(2048, 8, 4), Tiles(2048, 8, 8), Tiles(4096, 4, 4), Tiles(4096, 8, 4),
    Tiles(4096, 16, 2), Tiles(8192, 16, 2),
)  # fmt: skip

Arm = Callable[..., Any]


def copies(size: int) -> int:
    """Return how many input sets of `size` bytes a graph should go round."""
    return int(min(384, max(32, WORKING_SET // size)))


def capture(arm: Arm, inputs: Sequence[tuple[Any, ...]]) -> torch.cuda.CUDAGraph:
    """Return a graph that calls `arm` once for each set of inputs."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        arm(*inputs[0])
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for arguments in inputs:
            arm(*arguments)
    graph.replay()
    torch.cuda.synchronize()
    return graph


def measure(arms: dict[str, Arm], inputs: Sequence[tuple[Any, ...]]) -> dict[str, dict[str, float]]:
    """Return microseconds per call of each arm: median, first and last decile over the rounds."""
    graphs = {name: capture(arm, inputs) for name, arm in arms.items()}
    samples: dict[str, list[float]] = {name: [] for name in arms}
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    for _ in range(ROUNDS):
        for name, graph in graphs.items():
            begin.record()
            graph.replay()
            end.record()
            end.synchronize()
            samples[name].append(begin.elapsed_time(end) * 1e3 / len(inputs))
    return {name: summary(values) for name, values in samples.items()}


def summary(values: Sequence[float]) -> dict[str, float]:
    deciles = statistics.quantiles(values, n=10)
    median = statistics.median(values)
    return {"median_us": round(median, 3), "p10_us": round(deciles[0], 3), "p90_us": round(deciles[-1], 3)}


def row_argmax(tiles: Tiles, rows: int, calls: int) -> RowArgmax:
    device = torch.device("cuda")
    units = torch.cuda.get_device_properties(device).multi_processor_count
    return RowArgmax(tiles, units, ArrivalState(rows, device, captures=calls + 1))


def argmax_group(rows: int, dtype: torch.dtype, tiles: Sequence[Tiles]) -> dict[str, Any]:
    size = rows * VOCAB * dtype.itemsize
    inputs = [(torch.randn(rows, VOCAB, device="cuda", dtype=dtype),) for _ in range(copies(size))]
    arms: dict[str, Arm] = {"torch.argmax": lambda x: torch.argmax(x, -1)}
    for choice in tiles:
        name = f"block {choice.block}, warps {choice.warps}, per unit {choice.programs_per_unit}"
        arms[name] = row_argmax(choice, rows, len(inputs))
        check(torch.equal(arms[name](inputs[0][0]), inputs[0][0].argmax(-1)), name)
    return group("argmax_rows", {"R": rows, "V": VOCAB, "dtype": str(dtype)}, size, measure(arms, inputs))


def torch_combine_norm(x: torch.Tensor, pre: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Combine and normalise with torch operations, rounding where the contract rounds."""
    total = (x.view(x.shape[0], 4, -1).float() * pre[:, :, None]).sum(1).bfloat16().float()
    return (total * (total.square().mean(-1, keepdim=True) + 1e-20).rsqrt() * weight.float()).bfloat16()


def combine_norm_with(warps: int) -> Arm:
    """Return the kernel with another number of warps than the plugin's."""

    def run(x: torch.Tensor, pre: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        out = torch.empty(x.shape[0], HIDDEN, dtype=torch.bfloat16, device=x.device)
        options = mhc.launch_options(False) | {"num_warps": warps}
        mhc.combine_norm_kernel[(x.shape[0],)](
            x, pre, weight, out, x.stride(0) // 8, pre.stride(0), 1e-20, **mhc.launch_constants(4, HIDDEN, 8), **options
        )  # fmt: skip
        return out

    return run


def combine_group(tokens: int) -> dict[str, Any]:
    size = tokens * (4 * HIDDEN * 2 + HIDDEN * 2) + HIDDEN * 2
    inputs = [
        (
            torch.randn(tokens, 4 * HIDDEN, device="cuda").bfloat16(),
            torch.rand(tokens, 4, device="cuda"),
            torch.randn(HIDDEN, device="cuda").bfloat16(),
        )
        for _ in range(copies(size))
    ]
    steps = (
        mhc.mhc_combine_norm(*inputs[0]).view(torch.int16).int()
        - torch_combine_norm(*inputs[0]).view(torch.int16).int()
    )
    # torch's multiply and add round twice where the contract's chain rounds once, so a few results are a step away.
    check((steps.abs() > 0).float().mean().item() < 1e-3, "mhc_combine_norm")
    arms: dict[str, Arm] = {"torch operations": torch_combine_norm, "triton": mhc.mhc_combine_norm}
    arms |= {f"triton, {warps} warps": combine_norm_with(warps) for warps in (4, 8)}
    return group("mhc_combine_norm", {"T": tokens, "N": 4, "H": HIDDEN}, size, measure(arms, inputs))


def finalize_group(requests: int) -> dict[str, Any]:
    gamma = 5
    inputs = [
        (
            torch.randint(gamma + 1, (requests,), dtype=torch.int32, device="cuda"),
            torch.randint(VOCAB, (requests,), device="cuda"),
            torch.zeros(requests, dtype=torch.int32, device="cuda"),
            torch.randint(VOCAB, (requests, gamma), device="cuda"),
            torch.randint(4096, (requests,), device="cuda"),
        )
        for _ in range(64)
    ]
    reference = contracts.get("accept_finalize").reference
    for got, wanted in zip(accept.accept_finalize(*inputs[0]), reference(*inputs[0]), strict=True):
        check(torch.equal(got, wanted), "accept_finalize")
    arms: dict[str, Arm] = {"torch operations": reference, "triton": accept.accept_finalize}
    size = requests * (4 + 8 + 8 * gamma + 8 + 4 + 8 + 8 * (gamma + 1))
    return group("accept_finalize", {"B": requests, "G": gamma}, size, measure(arms, inputs))


def group(op: str, axes: dict[str, Any], size: int, arms: dict[str, Any]) -> dict[str, Any]:
    for name, figures in arms.items():
        spread = f"{figures['p10_us']:.2f} to {figures['p90_us']:.2f}"
        print(f"{op:18} {axes!s:52} {name:36} {figures['median_us']:8.2f} us  ({spread})", flush=True)
    return {"op": op, "axes": axes, "bytes": size, "arms": arms}


def check(right: bool, what: str) -> None:
    if not right:
        sys.exit(f"{what}: wrong output, nothing timed")


def machine() -> dict[str, Any]:
    properties = torch.cuda.get_device_properties(0)
    return {
        "device": properties.name,
        "arch": f"sm_{properties.major}{properties.minor}",
        "units": properties.multi_processor_count,
        "l2_bytes": properties.L2_cache_size,
        "memory_bytes": properties.total_memory,
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "triton": triton.__version__,
        "python": platform.python_version(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="file that receives the figures as JSON")
    out = parser.parse_args().out
    torch.manual_seed(0)
    groups = [argmax_group(rows, torch.float32, SWEEP) for rows in (1, 6, 64)]
    chosen = (argmax.TILES,)
    groups += [argmax_group(rows, torch.float32, chosen) for rows in (12, 24, 192)]
    groups += [argmax_group(6, torch.bfloat16, chosen)]
    groups += [combine_group(tokens) for tokens in (1, 6, 48)]
    groups += [finalize_group(requests) for requests in (1, 8, 64)]
    report = {
        "what": "microseconds per call inside CUDA graphs over rotating inputs; arms take turns",
        "machine": machine(),
        "rounds": ROUNDS,
        "working_set_bytes": int(WORKING_SET),
        "chosen_tiles": {"block": argmax.TILES.block, "warps": argmax.TILES.warps},
        "groups": groups,
    }
    out.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
