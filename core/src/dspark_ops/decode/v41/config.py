"""The configuration of a DeepSeek-V4.1-shaped model, read from its config.json and checked before anything else is."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from dspark_ops.contracts.rope import YarnScaling
from dspark_ops.decode.v41.consistency import contradictions
from dspark_ops.errors import ModelError
from dspark_ops.suggest import did_you_mean

__all__ = ["MAX_GAMMA", "V41Config", "config_from_mapping", "read_config"]

MAX_GAMMA = 8
"""Longest draft block that this implementation lays out scratch slots for."""

Count = Field(ge=1)
Identifier = Field(ge=0)
Positive = Field(gt=0.0)


class _Edge(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, allow_inf_nan=False)


class _YarnEdge(_Edge):
    type: Literal["yarn"]
    factor: float = Positive
    original_max_position_embeddings: int = Count
    beta_fast: float = Positive
    beta_slow: float = Positive


class _ConfigEdge(_Edge):
    """The keys of config.json, every one required: a default here would be a guess about someone's weights."""

    model_type: Literal["deepseek_v41"]
    architectures: list[Literal["DeepseekV41ForCausalLM"]] = Field(min_length=1, max_length=1)
    hidden_size: int = Count
    num_hidden_layers: int = Count
    num_attention_heads: int = Count
    num_key_value_heads: Literal[1]
    head_dim: Literal[512]
    qk_rope_head_dim: Literal[64]
    q_lora_rank: int = Count
    o_groups: int = Count
    o_lora_rank: int = Count
    sliding_window: int = Count
    vocab_size: int = Field(ge=2)
    max_position_embeddings: int = Field(ge=2)
    rms_norm_eps: float = Field(ge=0.0)
    hc_mult: int = Count
    hc_sinkhorn_iters: int = Count
    hc_eps: float = Positive
    swiglu_limit: float = Positive
    n_routed_experts: int = Count
    n_shared_experts: Literal[1]
    num_experts_per_tok: int = Count
    moe_intermediate_size: int = Count
    scoring_func: Literal["sqrtsoftplus"]
    topk_method: Literal["noaux_tc"]
    norm_topk_prob: Literal[True]
    routed_scaling_factor: float = Positive
    compress_ratios: list[Literal[0, 1, 2]]
    kv_source_layer_ids: list[int]
    index_source_layer_ids: list[int]
    index_n_heads: int = Count
    index_head_dim: int = Count
    index_topk: int = Count
    rope_theta: float = Positive
    compress_rope_theta: float = Positive
    rope_scaling: _YarnEdge
    num_nextn_predict_layers: int = Count
    dspark_block_size: int = Field(ge=1, le=MAX_GAMMA)
    dspark_target_layer_ids: list[int] = Field(min_length=1)
    dspark_markov_rank: int = Count
    dspark_markov_head_type: Literal["vanilla"]
    dspark_noise_token_id: int = Identifier
    dspark_n_routed_experts: int = Identifier
    dspark_num_experts_per_tok: int = Identifier
    enable_confidence_head: Literal[True]
    confidence_head_with_markov: bool
    sample_from_anchor: Literal[True]
    tie_word_embeddings: Literal[True]
    bos_token_id: int = Identifier
    eos_token_id: int = Identifier
    pad_token_id: int = Identifier
    torch_dtype: Literal["bfloat16"]


@dataclass(frozen=True, slots=True)
class V41Config:
    """Sizes and constants of a model whose configuration has been checked.

    Attributes:
        raw: the checked keys as config.json spells them; all other fields are read from it.
        layers, stages: number of target layers and of draft stages.
        ratios: compression ratio per target layer: 0 (window only), 1 or 2.
        kv_sources: target layers that own a compressor; a later layer reads the latest one at or before it.
        taps: target layers at whose entry the draft features are taken.
        draft_experts, draft_top_k: size of the draft stages' routing; equal to the target's where the file says 0.
    """

    raw: dict[str, Any]
    hidden: int
    layers: int
    heads: int
    head_dim: int
    rope_dim: int
    q_lora_rank: int
    o_groups: int
    o_lora_rank: int
    window: int
    vocab: int
    max_positions: int
    rms_eps: float
    hc_mult: int
    hc_iterations: int
    hc_eps: float
    swiglu_limit: float
    experts: int
    top_k: int
    intermediate: int
    routed_scaling: float
    ratios: tuple[int, ...]
    kv_sources: tuple[int, ...]
    index_topk: int
    rope_theta: float
    compress_rope_theta: float
    yarn: YarnScaling
    stages: int
    gamma: int
    taps: tuple[int, ...]
    markov_rank: int
    noise_token: int
    draft_experts: int
    draft_top_k: int
    confidence_with_markov: bool
    bos: int
    eos: int
    pad: int

    def kv_source(self, layer: int) -> int:
        """Return the layer whose compressed entries `layer` reads.

        Raises:
            ValueError: the layer's ratio is 0, so it reads none.
        """
        if not self.ratios[layer]:
            raise ValueError(f"layer {layer} has compress ratio 0: it reads no compressed entries")
        return max(source for source in self.kv_sources if source <= layer)


def read_config(directory: str | Path) -> V41Config:
    """Return the checked configuration of a model directory.

    Raises:
        ModelError: the directory or its config.json is missing or unreadable, or a key is unknown, missing, of the
            wrong type, out of range or in contradiction with another one. The text lists every fault by key.
    """
    folder = Path(directory)
    if not folder.is_dir():
        raise ModelError(
            f"{folder}: wanted a model directory (config.json, tokenizer.json, model.safetensors), found none"
        )
    path = folder / "config.json"
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ModelError(
            f"{path}: missing; a model directory holds config.json, tokenizer.json, model.safetensors"
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise ModelError(f"{path}: cannot be read as UTF-8 text: {error}") from error
    try:
        values = json.loads(text, object_pairs_hook=_no_duplicates)
    except ValueError as error:
        raise ModelError(f"{path}: not valid JSON: {error}") from error
    if not isinstance(values, dict):
        raise ModelError(f"{path}: wanted one JSON object, got {type(values).__name__}")
    return config_from_mapping(values, origin=str(path))


def config_from_mapping(values: dict[str, Any], origin: str = "config") -> V41Config:
    """Return the checked configuration from the keys of a config.json.

    Raises:
        ModelError: as `read_config`; every line names `origin`, the key, and what was wanted and got.
    """
    try:
        edge = _ConfigEdge.model_validate(values)
    except ValidationError as error:
        faults = [_fault(entry) for entry in error.errors(include_url=False)]
        raise ModelError(_report(origin, faults)) from None
    faults = contradictions(edge.model_dump())
    if faults:
        raise ModelError(_report(origin, faults))
    return _inner(edge)


def _inner(edge: _ConfigEdge) -> V41Config:
    return V41Config(
        raw=edge.model_dump(),
        hidden=edge.hidden_size,
        layers=edge.num_hidden_layers,
        heads=edge.num_attention_heads,
        head_dim=edge.head_dim,
        rope_dim=edge.qk_rope_head_dim,
        q_lora_rank=edge.q_lora_rank,
        o_groups=edge.o_groups,
        o_lora_rank=edge.o_lora_rank,
        window=edge.sliding_window,
        vocab=edge.vocab_size,
        max_positions=edge.max_position_embeddings,
        rms_eps=edge.rms_norm_eps,
        hc_mult=edge.hc_mult,
        hc_iterations=edge.hc_sinkhorn_iters,
        hc_eps=edge.hc_eps,
        swiglu_limit=edge.swiglu_limit,
        experts=edge.n_routed_experts,
        top_k=edge.num_experts_per_tok,
        intermediate=edge.moe_intermediate_size,
        routed_scaling=edge.routed_scaling_factor,
        ratios=tuple(edge.compress_ratios[: edge.num_hidden_layers]),
        kv_sources=tuple(edge.kv_source_layer_ids),
        index_topk=edge.index_topk,
        rope_theta=edge.rope_theta,
        compress_rope_theta=edge.compress_rope_theta,
        yarn=YarnScaling.from_config(edge.rope_scaling.model_dump()),
        stages=edge.num_nextn_predict_layers,
        gamma=edge.dspark_block_size,
        taps=tuple(edge.dspark_target_layer_ids),
        markov_rank=edge.dspark_markov_rank,
        noise_token=edge.dspark_noise_token_id,
        draft_experts=edge.dspark_n_routed_experts or edge.n_routed_experts,
        draft_top_k=edge.dspark_num_experts_per_tok or edge.num_experts_per_tok,
        confidence_with_markov=edge.confidence_head_with_markov,
        bos=edge.bos_token_id,
        eos=edge.eos_token_id,
        pad=edge.pad_token_id,
    )


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for key, value in pairs:
        if key in values:
            raise ValueError(f"key {key!r} stands twice")
        values[key] = value
    return values


def _fault(entry: Any) -> str:
    """Return one line for one pydantic error: the key, then what was wanted and got."""
    key = ".".join(str(part) for part in entry["loc"])
    if entry["type"] == "missing":
        return f"{key}: missing"
    if entry["type"] == "extra_forbidden":
        known = _YarnEdge.model_fields if len(entry["loc"]) > 1 else _ConfigEdge.model_fields
        return f"{key}: unknown key{did_you_mean(str(entry['loc'][-1]), known)}"
    return f"{key}: {entry['msg']}, got {entry['input']!r}"


def _report(origin: str, faults: list[str]) -> str:
    lines = "".join(f"\n  {fault}" for fault in faults)
    return f"{origin}: {len(faults)} fault{'s' if len(faults) > 1 else ''} in the model configuration:{lines}"
