"""What no implementation can beat: bytes over bandwidth, and the launch of a kernel with its chain of loads."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from dspark_ops._lazy import torch
from dspark_ops.contracts.layouts import page_layout

if TYPE_CHECKING:
    from dspark_ops.contracts.contract import Contract

__all__ = ["MachineFloor", "bytes_moved", "measure_floor"]

#: Loads that must wait for each other before the last store, where more than one: an id, then what it points to.
_CHAIN: Final[Mapping[str, int]] = {
    "q_rope_store": 2, "k_norm_rope_store": 2, "compress_c1": 2, "compress_c2": 2, "index_k_store": 2,
    "rope_tail_copy": 2, "rope_tail_fp4_fake_quant": 2, "index_q_rope_fp4_pack": 2, "rope_wo_a": 2,
    "rope_wo_a_mxfp8": 2, "sparse_mla_decode": 2, "engram_gather": 2, "confidence_survival": 2, "markov_block": 10,
    "filter_topk_pages": 2, "finish_topk_pages": 2, "index_scores": 2, "paged_mqa_logits_fp4": 2, "moe_gate_hash": 2,
    "moe_local_reduce": 2, "accept_greedy": 2, "accept_sampled": 2,
}  # fmt: skip

_Inputs = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class MachineFloor:
    """What a machine can do at best, measured on it.

    Attributes:
        bandwidth: bytes per second of a large device-to-device copy, read and written bytes together.
        launch_us: microseconds per kernel of a graph of kernels that load one element and store it, in a row.
        load_us: microseconds that one more load, which must wait for the first, adds to such a kernel.
        empty_us: microseconds per kernel of a graph of kernels that do nothing.
    """

    bandwidth: float
    launch_us: float
    load_us: float
    empty_us: float = 0.0

    def of(self, operator: str, moved: int) -> float:
        """Return the microseconds that one call of an operator takes at least.

        It is the larger of the time of its bytes, and of the smallest launch with its chain of dependent loads. Kernels
        that begin before the one in front of them has ended (PDL) can stay below the latter.
        """
        chain = self.launch_us + (_CHAIN.get(operator, 1) - 1) * self.load_us
        return max(moved / self.bandwidth * 1e6, chain)

    def to_json(self) -> dict[str, float]:
        """Return the figures with their units in the names."""
        return {
            "copy_bytes_per_second": round(self.bandwidth),
            "empty_launch_us": round(self.empty_us, 3),
            "one_load_launch_us": round(self.launch_us, 3),
            "dependent_load_us": round(self.load_us, 3),
        }

    @classmethod
    def from_json(cls, found: Mapping[str, float]) -> MachineFloor:
        """Return the floor that `to_json` wrote."""
        return cls(
            found["copy_bytes_per_second"],
            found["one_load_launch_us"],
            found["dependent_load_us"],
            found["empty_launch_us"],
        )


def measure_floor() -> MachineFloor:
    """Return the floor of the current GPU.

    In graphs: a kernel that does nothing, one that adds to the one element it loads, and one that loads an element at a
    place that it loads first; the last two differ by one dependent load. The copy, of 2 GiB, is timed outside a graph,
    in which it would be left to a copy engine that is slower than the kernel.
    """
    from dspark_ops.bench.timing import CallGraph, alternate, spread

    single = torch.zeros(1, device="cuda")
    place = torch.zeros(1, dtype=torch.int64, device="cuda")
    graphs = {
        "empty": CallGraph([lambda: torch.cuda._sleep(0)] * 64),
        "one": CallGraph([lambda: single.add_(1)] * 64),
        "two": CallGraph([lambda: single.take(place)] * 64),
    }
    found = {name: spread(values.values()).median for name, values in alternate(graphs, 15).items()}
    return MachineFloor(_copy_bandwidth(), found["one"], max(found["two"] - found["one"], 0.0), found["empty"])


def _copy_bandwidth() -> float:
    """Return the bytes per second of a large device-to-device copy, read and written ones together."""
    source = torch.empty(1 << 29, dtype=torch.float32, device="cuda").normal_()
    target = torch.empty_like(source)
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    times = []
    for _ in range(12):
        begin.record()
        target.copy_(source)
        end.record()
        end.synchronize()
        times.append(float(begin.elapsed_time(end)) * 1e-3)
    return 2 * source.numel() * source.element_size() / statistics.median(times[2:])


def bytes_moved(contract: Contract, inputs: _Inputs, outputs: _Inputs) -> int:
    """Return the fewest bytes that one call moves: each input read once, each output written once.

    Of pages, tables and other indexed arguments only what the call's own indices name counts.

    Args:
        contract: the operator.
        inputs: parameters by name.
        outputs: what the call returned, by name; written arguments are taken from `inputs`.
    """
    special = _TOUCHED.get(contract.name, {})
    written = {argument.name for argument in contract.arguments if argument.written}
    total = 0
    for argument in contract.arguments:
        value = inputs.get(argument.name)
        if value is None:
            continue
        if argument.name in special:
            total += int(special[argument.name](inputs, outputs))
        elif argument.name == "freqs":
            total += _rows(contract, inputs) * value.shape[1] * 4
        else:
            total += _size(value)
    for output in contract.outputs:
        value = outputs.get(output.name)
        if output.name in written or value is None:
            continue
        total += int(special[output.name](inputs, outputs)) if output.name in special else _size(value)
    return total


def _size(value: Any) -> int:
    return int(value.numel() * value.element_size())


def _rows(contract: Contract, inputs: _Inputs) -> int:
    index, dimension = contract.rows_from
    return int(inputs[contract.parameters[index].name].shape[dimension])


def _slot_bytes(layout: str) -> int:
    pages = page_layout(layout)
    return pages.data_bytes + pages.scales


def _stored(rows: str) -> Callable[[_Inputs, _Inputs], int]:
    """Count one slot per row of the argument `rows`."""
    return lambda inputs, _: inputs[rows].shape[0] * _slot_bytes(inputs["layout"])


def _attended(cache: str, layout: str) -> Callable[[_Inputs, _Inputs], int]:
    """Count each slot that some row reads once."""
    indices = cache.replace("cache", "indices")
    return lambda inputs, _: inputs[indices].unique().numel() * _slot_bytes(inputs[layout] or inputs["layout"])


def _pair_state(inputs: _Inputs, _: _Inputs) -> int:
    """Count the ring row that each request's first pair reads, and the even rows that are kept."""
    even = int((inputs["positions"] % 2 == 0).sum())
    return (even + int(inputs["requests"].unique().numel())) * inputs["kv_score"].shape[1] * 4


def _pair_entries(inputs: _Inputs, _: _Inputs) -> int:
    return int((inputs["positions"] % 2 == 1).sum()) * _slot_bytes(inputs["layout"])


def _gathered(ids: str, table: str) -> Callable[[_Inputs, _Inputs], int]:
    """Count one row of `table` for each of the ids."""
    return lambda inputs, _: inputs[ids].numel() * inputs[table].shape[-1] * inputs[table].element_size()


def _local_routes(inputs: _Inputs, _: _Inputs) -> int:
    routes = inputs["route_out"]
    local = int(inputs["expert_mask"][inputs["topk_ids"].long()].ne(0).sum())
    return int(local * routes.shape[-1] * routes.element_size())


def _padded(name: str) -> Callable[[_Inputs, _Inputs], int]:
    def count(inputs: _Inputs, _: _Inputs) -> int:
        value = inputs[name]
        rows = value.shape[0] - int(inputs["num_valid"])
        return max(rows, 0) * int(value.shape[1]) * int(value.element_size())

    return count


def _sorted(per_entry: float) -> Callable[[_Inputs, _Inputs], int]:
    """Count the defined entries of a sort's output."""
    return lambda _, outputs: int(int(outputs["num_valid_ids"][0]) * per_entry)


_TOUCHED: Final[Mapping[str, Mapping[str, Callable[[_Inputs, _Inputs], int]]]] = {
    "q_rope_store": {"out": lambda inputs, _: _size(inputs["q"])},
    "k_norm_rope_store": {"cache": _stored("kv")},
    "compress_c1": {"cache": _stored("kv")},
    "compress_c2": {"cache": _pair_entries, "state": _pair_state},
    "index_k_store": {"cache": _stored("k")},
    "sparse_mla_decode": {
        "cache": _attended("cache", "layout"),
        "extra_cache": _attended("extra_cache", "extra_layout"),
    },
    "engram_gather": {"table": _gathered("ids", "table"), "scales": _gathered("ids", "scales")},
    "markov_block": {"embed": lambda inputs, out: out["drafts"].numel() * inputs["embed"].shape[1] * 2},
    "confidence_survival": {"embed": _gathered("previous", "embed")},
    "moe_gate_hash": {"table": _gathered("input_ids", "table")},
    "filter_topk_pages": {"scores": lambda inputs, _: inputs["indices"].numel() * 4},
    "finish_topk_pages": {"scores": lambda inputs, _: inputs["indices"].numel() * 4},
    "moe_local_reduce": {"route_out": _local_routes},
    "fill_padded_topk": {"ids": _padded("ids"), "weights": _padded("weights")},
    "moe_sort": {
        "sorted_ids": _sorted(4),
        "sorted_weights": _sorted(4),
        "sorted_expert_ids": lambda inputs, out: int(out["num_valid_ids"][0]) // inputs["block_size"] * 4,
    },
    # One column of each draft's row, and one whole row of either distribution per request.
    "accept_sampled": {
        "target_probs": lambda inputs, _: inputs["candidates"].shape[0] * inputs["target_probs"].shape[2] * 4,
        "draft_probs": lambda inputs, _: inputs["candidates"].shape[0] * inputs["draft_probs"].shape[2] * 4,
    },
}
