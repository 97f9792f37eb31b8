"""Bytes and floors, worked out by hand."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from dspark_ops import contracts  # noqa: E402
from dspark_ops.bench.floors import MachineFloor, bytes_moved  # noqa: E402
from dspark_ops.bench.inputs import Place, bench_inputs  # noqa: E402
from dspark_ops.conformance.numbers import reference_outputs  # noqa: E402

SHAPES = contracts.model_shapes("deepseek-v4.1-flash/tp4")


def moved(name: str, rows: int) -> int:
    contract = contracts.get(name)
    made = bench_inputs(Place(contract, contract.sites(SHAPES)[0], rows, torch.Generator().manual_seed(0)))
    return bytes_moved(contract, made, reference_outputs(contract, made))


@pytest.mark.parametrize(
    ("name", "rows", "bytes_"),
    [
        ("argmax_rows", 6, 6 * (129280 * 4 + 8)),
        ("mhc_post", 6, 6 * (5120 * 2 + 2 * 4 * 5120 * 2 + 4 * 4 + 16 * 4)),
        ("mhc_combine_norm", 48, 48 * (4 * 5120 * 2 + 4 * 4 + 5120 * 2) + 5120 * 2),
        # queries in and out, a position and its row of the table each; not the 48 padded heads
        ("q_rope_store", 6, 6 * (2 * 16 * 512 * 2 + 8 + 64 * 4)),
        # 448 codes, 64 lanes in bfloat16 and 7 scales a slot, of the latent the 512 columns of a wider buffer
        ("k_norm_rope_store", 6, 6 * (512 * 2 + 8 + 4 + 64 * 4 + 448 + 128 + 7) + 512 * 2),
        # six rows from an odd position: three entries, three ring rows kept, one ring row read
        ("compress_c2", 6, 6 * (1024 * 4 + 3 * 8 + 64 * 4 + 512 * 2) + 512 * 2 + 3 * (448 + 128 + 7) + 4 * 4096),
        ("filter_topk_pages", 1, 512 * (4 + 4 + 4) + 128 * 4),
        ("fill_padded_topk", 8, 2 * 6 * (4 + 4) + 4),
    ],
)
def test_bytes_count_each_input_and_output_once_and_only_what_indices_name(name, rows, bytes_):
    assert moved(name, rows) == bytes_


def test_rows_that_attend_to_the_same_entries_read_them_once():
    contract = contracts.get("sparse_mla_decode")
    made = bench_inputs(Place(contract, contract.sites(SHAPES)[0], 6, torch.Generator().manual_seed(0)))
    shared = {
        **made,
        "indices": made["indices"][:1].expand(6, -1),
        "extra_indices": made["extra_indices"][:1].expand(6, -1),
    }
    outputs = reference_outputs(contract, made)
    slots = made["indices"].unique().numel() + made["extra_indices"].unique().numel()
    saved = (slots - 128 - 512) * (448 + 128 + 7)
    assert bytes_moved(contract, made, outputs) - bytes_moved(contract, shared, outputs) == saved > 0


def test_the_floor_is_the_bytes_of_a_large_call_and_the_launch_of_a_small_one():
    floor = MachineFloor(bandwidth=4e12, launch_us=1.0, load_us=0.25)
    assert floor.of("mhc_post", 8_000_000) == pytest.approx(2.0)
    assert floor.of("mhc_post", 1000) == 1.0
    assert floor.of("q_rope_store", 1000) == 1.25


def test_a_floor_survives_being_written():
    floor = MachineFloor(bandwidth=4e12, launch_us=1.0, load_us=0.25, empty_us=0.5)
    assert MachineFloor.from_json(floor.to_json()) == floor
