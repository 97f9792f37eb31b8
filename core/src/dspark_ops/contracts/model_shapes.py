"""The sizes of a model that decide operator shapes, and the models known by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from dspark_ops.errors import ModelError
from dspark_ops.suggest import did_you_mean

#: What `ModelShapes.from_config` reads; keys with a default are not among them.
_KEYS: Final = (
    "hidden_size", "hc_mult", "num_attention_heads", "head_dim", "qk_rope_head_dim", "q_lora_rank", "o_groups",
    "o_lora_rank", "sliding_window", "vocab_size", "n_routed_experts", "num_experts_per_tok", "moe_intermediate_size",
    "dspark_n_routed_experts", "dspark_num_experts_per_tok", "n_shared_experts", "index_n_heads", "index_head_dim",
    "index_topk", "dspark_block_size", "dspark_markov_rank", "dspark_target_layer_ids",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class ModelShapes:
    """Sizes of one rank of a DeepSeek-V4.1-shaped model. Counts are elements; names follow the model's config.json."""

    name: str
    hidden: int
    hc_mult: int
    heads: int
    head_dim: int
    rope_dim: int
    q_lora_rank: int
    o_groups: int
    o_lora_rank: int
    window: int
    vocab: int
    experts: int
    top_k: int
    moe_intermediate: int
    draft_experts: int
    draft_top_k: int
    shared_intermediate: int
    index_heads: int
    index_head_dim: int
    index_topk: int
    gamma: int
    markov_rank: int
    taps: int
    page_size: int = 64
    ranks: int = 1
    engram_ids: int = 24
    engram_dim: int = 256
    candidate_topk_blocks: int = 2048
    candidate_block_size: int = 8

    @property
    def rows_per_request(self) -> int:
        """Rows that one request has in a verify step: the anchor and its drafts."""
        return self.gamma + 1

    @property
    def vocab_shard(self) -> int:
        """Columns of logits that one rank has; the last rank may use fewer of them."""
        return -(-self.vocab // self.ranks)

    @classmethod
    def from_config(cls, config: Mapping[str, Any], name: str = "") -> ModelShapes:
        """Return the sizes that a config.json of DeepSeek-V4.1 states (one rank, tensor parallel size 1).

        Raises:
            ModelError: keys are missing.
        """
        missing = [key for key in _KEYS if key not in config]
        if missing:
            raise ModelError(
                f"{name or 'config'}: a DeepSeek-V4.1 config.json has the keys {', '.join(missing)}, this one has not; "
                f"give ModelShapes(...) the sizes of a model that is configured otherwise"
            )
        return cls(
            name=name or str(config.get("model_type", "model")),
            hidden=config["hidden_size"],
            hc_mult=config["hc_mult"],
            heads=config["num_attention_heads"],
            head_dim=config["head_dim"],
            rope_dim=config["qk_rope_head_dim"],
            q_lora_rank=config["q_lora_rank"],
            o_groups=config["o_groups"],
            o_lora_rank=config["o_lora_rank"],
            window=config["sliding_window"],
            vocab=config["vocab_size"],
            experts=config["n_routed_experts"],
            top_k=config["num_experts_per_tok"],
            moe_intermediate=config["moe_intermediate_size"],
            draft_experts=config["dspark_n_routed_experts"] or config["n_routed_experts"],
            draft_top_k=config["dspark_num_experts_per_tok"] or config["num_experts_per_tok"],
            shared_intermediate=config["moe_intermediate_size"] * config["n_shared_experts"],
            index_heads=config["index_n_heads"],
            index_head_dim=config["index_head_dim"],
            index_topk=config["index_topk"],
            gamma=config["dspark_block_size"],
            markov_rank=config["dspark_markov_rank"],
            taps=len(config["dspark_target_layer_ids"]),
            candidate_topk_blocks=config.get("candidate_topk_blocks", 2048),
            candidate_block_size=config.get("candidate_block_size", 8),
        )

    def sharded(self, ranks: int) -> ModelShapes:
        """Return the sizes of one of `ranks` tensor-parallel ranks: heads, output groups and shared expert are split.

        Raises:
            ModelError: a split size is not divisible by `ranks`.
        """
        split = {"heads": self.heads, "o_groups": self.o_groups, "shared_intermediate": self.shared_intermediate}
        for what, size in split.items():
            if size % ranks:
                raise ModelError(f"{self.name}: {what} = {size} cannot be split over {ranks} ranks")
        sizes = {what: size // ranks for what, size in split.items()}
        return replace(self, name=f"{self.name}/tp{ranks}", ranks=self.ranks * ranks, **sizes)


# Sizes of the released checkpoints as the contract notes state them: shapes only, no weights of them are shipped.
_FLASH_V41 = ModelShapes(
    name="deepseek-v4.1-flash", hidden=5120, hc_mult=4, heads=64, head_dim=512, rope_dim=64, q_lora_rank=1280,
    o_groups=8, o_lora_rank=1024, window=128, vocab=129280, experts=384, top_k=6, moe_intermediate=2304,
    draft_experts=128, draft_top_k=3, shared_intermediate=2304, index_heads=32, index_head_dim=128, index_topk=512,
    gamma=5, markov_rank=256, taps=3, page_size=256,
)  # fmt: skip
_MODELS: dict[str, ModelShapes] = {_FLASH_V41.name: _FLASH_V41}


def model_shapes(name: str) -> ModelShapes:
    """Return the sizes of a model known by name, such as ``deepseek-v4.1-flash/tp4``.

    Raises:
        ModelError: the name is unknown, or ``/tpN`` cannot split it.
    """
    base, _, parallel = name.partition("/")
    if base not in _MODELS:
        raise ModelError(
            f"unknown model {name!r}: wanted one of {', '.join(_MODELS)} (/tpN behind it: one of N ranks), a directory "
            f"with a config.json, or ModelShapes(...){did_you_mean(base, _MODELS)}"
        )
    if not parallel:
        return _MODELS[base]
    if not (parallel.startswith("tp") and parallel[2:].isdigit() and int(parallel[2:]) >= 1):
        raise ModelError(f"cannot read {parallel!r} in model {name!r}: wanted 'tp' and a number, such as {base}/tp4")
    return _MODELS[base].sharded(int(parallel[2:]))
