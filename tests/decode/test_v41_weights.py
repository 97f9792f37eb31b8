"""Weights of a V4.1-shaped model: accepted only if they are exactly the tensors that the configuration asks for."""

from __future__ import annotations

from pathlib import Path

import pytest
import safetensors.torch as safetensors_torch
import torch

from dspark_ops.decode.v41.synthetic import random_weights, small_config
from dspark_ops.decode.v41.tensors import tensor_specs
from dspark_ops.decode.v41.weights import check_weights, read_weights
from dspark_ops.errors import ModelError

CONFIG = small_config()


def saved(folder: Path, **changes: object) -> Path:
    weights = random_weights(CONFIG, seed=0)
    for name, tensor in changes.items():
        if tensor is None:
            del weights[name]
        else:
            weights[name] = tensor
    safetensors_torch.save_file(weights, folder / "model.safetensors")
    return folder


def refused(folder: Path) -> str:
    with pytest.raises(ModelError) as caught:
        read_weights(folder, CONFIG)
    return str(caught.value)


def test_the_names_are_those_of_the_checkpoint_format() -> None:
    specs = tensor_specs(CONFIG)
    assert specs["embed.weight"].shape == (97, 64)
    assert specs["layers.1.attn.compressor.wgate.weight"].shape == (512, 64)
    assert "layers.3.attn.compressor.wgate.weight" not in specs
    assert "layers.2.attn.compressor.wkv.weight" not in specs
    assert specs["layers.0.attn.wo_a.weight"].shape == (2, 16, 1024)
    assert specs["layers.0.hc_attn_fn"].shape == (24, 256)
    assert str(specs["mtp.0.ffn.gate.bias"]) == "float32[4]"
    assert specs["mtp.0.main_proj.weight"].shape == (64, 192)
    assert specs["mtp.1.confidence_head.weight"].shape == (1, 72)
    assert "mtp.0.confidence_head.weight" not in specs


def test_saved_weights_are_read_back_bit_for_bit(tmp_path: Path) -> None:
    found = read_weights(saved(tmp_path), CONFIG)
    wanted = random_weights(CONFIG, seed=0)
    assert found.keys() == wanted.keys()
    assert all(torch.equal(found[name], wanted[name]) for name in wanted)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    assert "model.safetensors: missing" in refused(tmp_path)


@pytest.mark.parametrize("kept", [0, 7, 5000, -1])
def test_a_truncated_file_is_refused_with_its_size(tmp_path: Path, kept: int) -> None:
    path = saved(tmp_path) / "model.safetensors"
    data = path.read_bytes()[:kept]
    path.write_bytes(data)
    assert f"got {len(data)} bytes" in refused(tmp_path)


def test_every_wrong_tensor_is_named_with_what_was_wanted(tmp_path: Path) -> None:
    folder = saved(
        tmp_path,
        **{
            "norm.weight": None,
            "norm.weights": torch.ones(64, dtype=torch.bfloat16),
            "embed.weight": torch.zeros(96, 64, dtype=torch.bfloat16),
            "layers.0.attn.attn_sink": torch.zeros(4, dtype=torch.bfloat16),
            "mtp.1.norm.weight": torch.full((64,), float("nan"), dtype=torch.bfloat16),
        },
    )
    text = refused(folder)
    assert "(5 faults)" in text
    assert "norm.weight: missing, wanted bfloat16[64]" in text
    assert "norm.weights: unexpected; did you mean 'norm.weight'?" in text
    assert "embed.weight: wanted bfloat16[97, 64], got bfloat16[96, 64]" in text
    assert "layers.0.attn.attn_sink: wanted float32[4], got bfloat16[4]" in text
    assert "mtp.1.norm.weight: holds 64 values that are not finite" in text


def test_a_stage_too_many_in_the_file_is_refused() -> None:
    weights = random_weights(small_config(num_nextn_predict_layers=3, compress_ratios=[0, 2, 2, 1, 0, 0, 0]), seed=0)
    with pytest.raises(ModelError, match=r"mtp\.2\.attn_norm\.weight: unexpected"):
        check_weights(weights, CONFIG)
