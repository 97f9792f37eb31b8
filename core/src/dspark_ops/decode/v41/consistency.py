"""Contradictions between the values of a config.json whose keys are each fine by themselves."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any


def contradictions(values: Mapping[str, Any]) -> list[str]:
    """Return one line per contradiction, each naming the keys involved; empty if the values agree.

    Source: C5.3.5, C5.6 (loader traps), N0.1.
    """
    return [*_layers(values), *_sources(values), *_taps(values), *_tokens(values), *_sizes(values)]


def _layers(values: Mapping[str, Any]) -> Iterator[str]:
    layers, stages = values["num_hidden_layers"], values["num_nextn_predict_layers"]
    ratios = values["compress_ratios"]
    if len(ratios) != layers + stages:
        yield (
            f"compress_ratios: wanted {layers + stages} entries (num_hidden_layers {layers} + num_nextn_predict_layers "
            f"{stages}), got {len(ratios)}"
        )
        return
    draft = ratios[layers:]
    if any(draft):
        yield (
            f"compress_ratios: wanted 0 in the last {stages} entries, the draft stages (num_nextn_predict_layers), "
            f"got {draft}"
        )


def _ascending(values: Mapping[str, Any], key: str, below: int) -> list[str]:
    ids = values[key]
    faults = []
    if any(left >= right for left, right in pairwise(ids)):
        faults.append(f"{key}: wanted strictly ascending layer ids, got {ids}")
    outside = [layer for layer in ids if not 0 <= layer < below]
    if outside:
        faults.append(f"{key}: wanted layer ids from 0 to {below - 1} (num_hidden_layers {below}), got {outside}")
    return faults


def _sources(values: Mapping[str, Any]) -> Iterator[str]:
    layers = values["num_hidden_layers"]
    ratios = values["compress_ratios"][:layers]
    sources = values["kv_source_layer_ids"]
    faults = _ascending(values, "kv_source_layer_ids", layers) + _ascending(values, "index_source_layer_ids", layers)
    yield from faults
    if faults or len(ratios) < layers:
        return
    for source in sources:
        if not ratios[source]:
            yield f"kv_source_layer_ids: layer {source} is a source, but compress_ratios[{source}] is 0"
    yield from _readers(ratios, sources)
    for source in sources:
        if source not in values["index_source_layer_ids"]:
            yield f"index_source_layer_ids: wanted every kv source, layer {source} of kv_source_layer_ids is not in it"
    for index in values["index_source_layer_ids"]:
        if not ratios[index]:
            yield f"index_source_layer_ids: layer {index} selects entries, but compress_ratios[{index}] is 0"
    most_entries = max((values["max_position_embeddings"] // ratio for ratio in ratios if ratio), default=0)
    if values["index_topk"] < most_entries:
        yield (
            f"index_topk: {values['index_topk']} entries are fewer than the {most_entries} that "
            f"max_position_embeddings {values['max_position_embeddings']} can make visible, and this loader reads no "
            "indexer weights to choose by"
        )


def _readers(ratios: Sequence[int], sources: Sequence[int]) -> Iterator[str]:
    for layer, ratio in enumerate(ratios):
        if not ratio:
            continue
        earlier = [source for source in sources if source <= layer]
        if not earlier:
            yield f"kv_source_layer_ids: layer {layer} has compress ratio {ratio} and no source at or before it"
        elif ratios[earlier[-1]] not in (0, ratio):
            yield (
                f"kv_source_layer_ids: layer {layer} has compress ratio {ratio}, its source, layer {earlier[-1]}, has "
                f"{ratios[earlier[-1]]}"
            )


def _taps(values: Mapping[str, Any]) -> Iterator[str]:
    yield from _ascending(values, "dspark_target_layer_ids", values["num_hidden_layers"])


def _tokens(values: Mapping[str, Any]) -> Iterator[str]:
    vocab = values["vocab_size"]
    for key in ("dspark_noise_token_id", "bos_token_id", "eos_token_id", "pad_token_id"):
        if values[key] >= vocab:
            yield f"{key}: wanted an id below vocab_size {vocab}, got {values[key]}"


def _sizes(values: Mapping[str, Any]) -> Iterator[str]:
    heads, groups = values["num_attention_heads"], values["o_groups"]
    if heads % groups:
        yield f"o_groups: num_attention_heads {heads} is not divisible by {groups}"
    if values["num_experts_per_tok"] > values["n_routed_experts"]:
        yield f"num_experts_per_tok: {values['num_experts_per_tok']} exceeds n_routed_experts"
    draft_experts = values["dspark_n_routed_experts"] or values["n_routed_experts"]
    draft_top_k = values["dspark_num_experts_per_tok"] or values["num_experts_per_tok"]
    if draft_top_k > draft_experts:
        yield f"dspark_num_experts_per_tok: {draft_top_k} exceeds the {draft_experts} experts of a draft stage"
    if values["dspark_block_size"] > values["sliding_window"]:
        yield f"dspark_block_size: {values['dspark_block_size']} exceeds sliding_window {values['sliding_window']}"
    yarn = values["rope_scaling"]
    if yarn["beta_fast"] <= yarn["beta_slow"]:
        yield f"rope_scaling: beta_fast {yarn['beta_fast']} must exceed beta_slow {yarn['beta_slow']}"
