"""Tile sizes as data, and how launches are bound."""

from __future__ import annotations

import inspect
from dataclasses import fields, replace

import pytest

from dspark_ops import contracts
from dspark_ops.api import Arch
from dspark_ops.selection.device import Device
from dspark_ops.selection.problem import Problem
from dspark_ops_triton import (
    attention,
    index_scores,
    main_projection,
    mhc,
    mhc_mix,
    mhc_post,
    mhc_post_combine,
    mhc_post_grid,
    moe_gate,
    paged_logits,
    rope_wo_a,
)
from dspark_ops_triton.blocks.launching import RowTiles, bind_launch
from dspark_ops_triton.blocks.row_argmax import Tiles
from dspark_ops_triton.blocks.row_blocks import programs_of, row_blocks
from dspark_ops_triton.blocks.row_sums import SLOTS, slot_index
from dspark_ops_triton.blocks.tile_table import entry, read_table, tiles_for

#: Operators with an entry of their own, and what their tiles are by default.
DEFAULTS = {
    "argmax_rows": Tiles(2048, 8, 4),
    "compress_c1": RowTiles(4),
    "compress_c2": RowTiles(4),
    "k_norm_rope_store": RowTiles(4),
    "mhc_combine": mhc.PLAIN_TILES,
    "mhc_combine_norm": mhc.TILES,
    "mhc_combine_norm_mxfp8": mhc.TILES,
    "mhc_mix_sinkhorn": mhc_mix.TILES,
    "mhc_post": mhc_post.TILES,
    "mhc_post_combine": mhc_post_combine.TILES,
    "mhc_post_combine_norm": mhc_post_combine.NORM_TILES,
    "mhc_post_combine_norm_fp8_grid": mhc_post_grid.TILES,
    "moe_gate_topk": moe_gate.TILES,
    "sparse_mla_decode": attention.TILES,
    "rope_wo_a": rope_wo_a.TILES[0],
    "rope_wo_a_mxfp8": rope_wo_a.TILES[0],
    "index_scores": index_scores.TILES,
    "paged_mqa_logits_fp4": paged_logits.TILES,
    "main_projection": main_projection.TILES[0],
}


def _site(operator: str) -> Problem:
    contract = contracts.get(operator)
    return Problem.at(contract, contract.sites(contracts.model_shapes("deepseek-v4.1-flash/tp4"))[0])


def test_every_entry_of_the_table_names_an_architecture_and_fields_that_its_kernel_has() -> None:
    table = read_table()
    for arch, operators in table.items():
        assert Arch.parse(arch).name == arch
        for operator, entries in operators.items():
            names = {field.name for field in fields(DEFAULTS[operator])} - {"pdl"}
            for item in entries:
                assert set(item["tiles"]) <= names
                assert set(item["axes"]) <= set(_site(operator).axes)


def test_an_entry_is_taken_for_its_architecture_and_sizes_alone() -> None:
    table = {"sm_90": {"op": [{"axes": {"H": 5120}, "tiles": {"warps": 8}}, {"axes": {}, "tiles": {"warps": 2}}]}}
    assert entry(table, "sm_90", "op", {"H": 5120, "N": 4}) == {"warps": 8}
    assert entry(table, "sm_90", "op", {"H": 4096}) == {"warps": 2}
    assert entry(table, "sm_100", "op", {"H": 5120}) == {}
    assert entry(table, "sm_90", "other", {"H": 5120}) == {}


@pytest.mark.parametrize(("product", "pdl"), [("H200", True), ("B200", True), ("MI355X", False), ("cpu", False)])
def test_kernels_are_launched_early_where_the_device_can(product: str, pdl: bool) -> None:
    tiles = tiles_for("mhc_post", Device.simulate(product), _site("mhc_post"), mhc_post.TILES)
    assert tiles.pdl is pdl
    if product != "H200":
        assert (tiles.block, tiles.threads) == (mhc_post.TILES.block, mhc_post.TILES.threads)


@pytest.mark.parametrize("product", ["H100", "H200", "B200", "MI355X"])
def test_kernels_whose_norms_have_the_same_bits_are_cut_alike(product: str) -> None:
    device = Device.simulate(product)
    for plain, fused, default in (
        ("mhc_combine_norm", "mhc_combine_norm_mxfp8", mhc.TILES),
        ("mhc_post_combine_norm", "mhc_post_combine_norm_fp8_grid", mhc_post_combine.NORM_TILES),
    ):
        assert tiles_for(plain, device, _site(plain), default) == tiles_for(fused, device, _site(fused), default)


@pytest.mark.parametrize(
    ("lanes", "threads", "programs", "blocks"),
    [(5120, 512, 1, (4096, 1, 1024)), (5120, 256, 1, (2048, 2, 1024)), (5120, 128, 4, (1024, 1, 256)),
     (8192, 512, 1, (4096, 2, 0)), (8191, 512, 1, (4096, 2, 0)), (24, 512, 1, (1024, 1, 0)), (33, 32, 1, (128, 1, 0)),
     (640, 64, 1, (512, 1, 128))],
)  # fmt: skip
def test_the_lanes_of_a_row_lie_in_blocks_of_one_length_and_one_shorter_block(
    lanes: int, threads: int, programs: int, blocks: tuple[int, ...]
) -> None:
    found = row_blocks(lanes, threads, programs)
    assert tuple(found.values()) == blocks
    assert found["BLOCK"] * found["BLOCKS"] + found["MORE"] >= lanes // programs
    assert min(size for size in (found["BLOCK"], found["MORE"]) if size) >= 2 * threads, "a thread has two lanes"


def test_programs_share_a_row_where_blocks_fill_their_shares_and_accesses_are_wide() -> None:
    assert programs_of(4, 5120, 128, True) == 4
    assert programs_of(4, 5120, 128, False) == 1
    assert programs_of(4, 5119, 128, True) == 1, "no four equal shares"
    assert programs_of(4, 7168, 128, True) == 1, "1792 lanes are no block and a shorter one"
    assert programs_of(1, 24, 512, True) == 1


def test_sums_are_left_in_shared_memory_where_there_is_ptx_and_room_for_the_warps() -> None:
    assert [slot_index(warps, 1, True) for warps in SLOTS] == [0, 1, 2, 3]
    assert slot_index(4, 4, True) == SLOTS.index(16)
    assert slot_index(2, 1, True) == slot_index(16, 1, False) == -1
    with pytest.raises(ValueError, match="4 programs of 4 warps cannot share a row: wanted PTX"):
        slot_index(4, 4, False)


def test_a_bound_launch_has_the_signature_of_the_public_function() -> None:
    bound = bind_launch(mhc_post._post, mhc_post.TILES, mhc_post.mhc_post)
    assert inspect.signature(bound) == inspect.signature(mhc_post.mhc_post)


def test_few_tokens_of_the_update_get_the_smaller_programs() -> None:
    tiles = mhc_post.Tiles(block=128, threads=32, doubled_from=24)
    assert (tiles.at(23).block, tiles.at(24).block, tiles.at(24).threads) == (128, 256, 64)
    assert replace(tiles, same_threads=True).at(24).threads == 32
    assert mhc_post.TILES.at(4096) == mhc_post.TILES


def test_rows_of_several_tiles_to_a_program_are_not_launched_early() -> None:
    tiles = Tiles(block=2048, warps=8, programs_per_unit=4, pdl=True)
    assert tiles.at(64, 129280).pdl
    assert not tiles.at(8, 129280).pdl


def test_a_launch_of_few_programs_with_few_tiles_each_is_early_again() -> None:
    tiles = Tiles(block=2048, warps=8, programs_per_unit=4, pdl=True, early_per_unit=2)
    cuts = [tiles.cut(rows, 129280, 132) for rows in (1, 6, 24, 32, 48)]
    assert [(cut.pdl, splits) for cut, splits in cuts] == [(True, 64), (True, 44), (True, 11), (True, 8), (False, 11)]
    late = Tiles(block=2048, warps=8, programs_per_unit=4, early_per_unit=2)
    assert late.cut(6, 129280, 132) == (late, 64)
