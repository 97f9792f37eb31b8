"""config.json of a V4.1-shaped model: what is accepted, and that every fault is named by its key."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dspark_ops.contracts import ModelShapes
from dspark_ops.decode.v41.config import V41Config, config_from_mapping, read_config
from dspark_ops.decode.v41.synthetic import small_config
from dspark_ops.errors import ModelError

TINY = Path(__file__).parents[2] / "examples" / "tiny_v41"


def changed(**changes: Any) -> dict[str, Any]:
    return {**small_config().raw, **changes}


def refused(values: dict[str, Any]) -> str:
    with pytest.raises(ModelError) as caught:
        config_from_mapping(values, origin="model/config.json")
    return str(caught.value)


def test_the_shipped_model_is_read_with_its_own_key_names() -> None:
    config = read_config(TINY)
    assert (config.hidden, config.layers, config.stages, config.gamma, config.vocab) == (192, 4, 2, 5, 4096)
    assert config.ratios == (0, 2, 2, 1)
    assert config.taps == (1, 2, 3)
    assert config.yarn.factor == 16.0
    shapes = ModelShapes.from_config(config.raw)
    assert (shapes.vocab, shapes.rows_per_request, shapes.taps) == (4096, 6, 3)


def test_a_layer_reads_the_latest_source_at_or_before_it() -> None:
    config = small_config()
    assert [config.kv_source(layer) for layer in (1, 2, 3)] == [1, 1, 3]
    with pytest.raises(ValueError, match="ratio 0"):
        config.kv_source(0)


def test_zero_draft_experts_stand_for_the_counts_of_the_target() -> None:
    config = small_config(dspark_n_routed_experts=0, dspark_num_experts_per_tok=0)
    assert (config.draft_experts, config.draft_top_k) == (4, 2)


def test_all_faults_are_listed_at_once_each_with_its_key() -> None:
    values = changed(hidden_size="64", head_dim=128, hc_eps=-1.0, tie_word_embeddings=False)
    del values["vocab_size"]
    text = refused(values)
    assert text.startswith("model/config.json: 5 faults")
    for part in ("hidden_size: ", "got '64'", "head_dim: ", "got 128", "hc_eps: ", "vocab_size: missing"):
        assert part in text
    assert "tie_word_embeddings: " in text


def test_an_unknown_key_is_refused_with_the_nearest_known_one() -> None:
    assert "hidden_sizes: unknown key; did you mean 'hidden_size'?" in refused(changed(hidden_sizes=64))
    scaling = {**small_config().raw["rope_scaling"], "beta": 1}
    assert "rope_scaling.beta: unknown key" in refused(changed(rope_scaling=scaling))


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"compress_ratios": [0, 2, 2, 1]}, "compress_ratios: wanted 6 entries"),
        ({"compress_ratios": [0, 2, 2, 1, 0, 1]}, "compress_ratios: wanted 0 in the last 2 entries"),
        ({"num_nextn_predict_layers": 3}, "compress_ratios: wanted 7 entries"),
        ({"compress_ratios": [0, 2, 4, 1, 0, 0]}, "compress_ratios.2: "),
        ({"head_dim": 256}, "head_dim: "),
        ({"qk_rope_head_dim": 32}, "qk_rope_head_dim: "),
        ({"kv_source_layer_ids": [1]}, "layer 3 has compress ratio 1, its source, layer 1, has 2"),
        ({"kv_source_layer_ids": [3]}, "layer 1 has compress ratio 2 and no source at or before it"),
        ({"kv_source_layer_ids": [0, 1, 3], "index_source_layer_ids": [0, 1, 3]}, "compress_ratios[0] is 0"),
        ({"kv_source_layer_ids": [3, 1]}, "kv_source_layer_ids: wanted strictly ascending"),
        ({"kv_source_layer_ids": [1, 9]}, "kv_source_layer_ids: wanted layer ids from 0 to 3"),
        ({"index_source_layer_ids": [1]}, "index_source_layer_ids: wanted every kv source"),
        ({"o_groups": 3}, "o_groups: num_attention_heads 4 is not divisible by 3"),
        ({"index_topk": 100}, "index_topk: 100 entries are fewer than the 224"),
        ({"dspark_target_layer_ids": [2, 2]}, "dspark_target_layer_ids: wanted strictly ascending"),
        ({"dspark_target_layer_ids": [1, 4]}, "dspark_target_layer_ids: wanted layer ids from 0 to 3"),
        ({"dspark_noise_token_id": 97}, "dspark_noise_token_id: wanted an id below vocab_size 97"),
        ({"num_experts_per_tok": 5}, "num_experts_per_tok: 5 exceeds n_routed_experts"),
        ({"dspark_num_experts_per_tok": 5}, "dspark_num_experts_per_tok: 5 exceeds the 4 experts of a draft stage"),
        ({"dspark_block_size": 9}, "dspark_block_size: "),
        ({"sliding_window": 4}, "dspark_block_size: 5 exceeds sliding_window 4"),
        ({"dspark_markov_head_type": "gated"}, "dspark_markov_head_type: "),
        ({"sample_from_anchor": False}, "sample_from_anchor: "),
        ({"rms_norm_eps": float("nan")}, "rms_norm_eps: "),
    ],
)
def test_a_value_that_contradicts_the_others_is_refused_by_name(changes: dict[str, Any], expected: str) -> None:
    assert expected in refused(changed(**changes))


def test_ratio_two_alone_needs_only_half_the_entries() -> None:
    config = small_config(
        compress_ratios=[0, 2, 2, 2, 0, 0], kv_source_layer_ids=[1], index_source_layer_ids=[1], index_topk=112
    )
    assert config.ratios == (0, 2, 2, 2)


def write(folder: Path, text: str | bytes) -> Path:
    (folder / "config.json").write_bytes(text if isinstance(text, bytes) else text.encode())
    return folder


def test_a_directory_that_is_none_and_one_without_a_configuration_are_told_apart(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="wanted a model directory"):
        read_config(tmp_path / "nowhere")
    with pytest.raises(ModelError, match=r"config\.json: missing"):
        read_config(tmp_path)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{", "not valid JSON"),
        ("[1]", "wanted one JSON object, got list"),
        ('{"hidden_size": 1, "hidden_size": 2}', "'hidden_size' stands twice"),
        (b"\xff\xfe", "cannot be read as UTF-8"),
    ],
)
def test_a_file_that_is_no_configuration_is_refused(tmp_path: Path, text: str | bytes, expected: str) -> None:
    with pytest.raises(ModelError, match=expected):
        read_config(write(tmp_path, text))


def test_a_written_configuration_is_read_back(tmp_path: Path) -> None:
    config: V41Config = small_config()
    assert read_config(write(tmp_path, json.dumps(config.raw))) == config
