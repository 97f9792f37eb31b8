"""Expert ids around the router gate: packing, padding, and routing by token id."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dspark_ops._lazy import torch
from dspark_ops.contracts import _moe_ids_cases as cases
from dspark_ops.contracts.contract import Argument, Contract, Decomposition, Option, Output, Site
from dspark_ops.contracts.exactness import bitwise, bitwise_given, ulp
from dspark_ops.contracts.moe import MOE_GATE_TOPK, moe_gate_topk
from dspark_ops.contracts.values import between, index_into
from dspark_ops.errors import ContractError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from dspark_ops.contracts.model_shapes import ModelShapes

_LEAST_ID, _MOST_ID = -(2**15), 2**15 - 1
_NAN_BITS = 0x7FC0


def pack_topk_ids(ids: Tensor, weights: Tensor) -> Tensor:
    """Return each expert id and its weight in one word: the id in the high 16 bits, the bfloat16 weight in the low.

    In memory (little endian) a word is the weight's two bytes, then the id's. The weight is rounded to nearest, ties to
    even; -0.0 keeps its sign; a NaN of any sign and payload packs as 0x7FC0.

    Args:
        ids: [M, K] int32 or int64, -32768 to 32767; a consumer skips negative ones. Values are checked on the CPU; on
            an accelerator reading them back would stop it, and an id that does not fit loses its high bits.
        weights: [M, K] float32, final: renormalised and scaled.

    Returns:
        [M, K] int32.

    Raises:
        ContractError: on the CPU, an id does not fit 16 bits.

    Source: N2; O06.
    """
    if ids.device.type == "cpu":
        wrong = ((ids < _LEAST_ID) | (ids > _MOST_ID)).nonzero()
        if len(wrong):
            row, column = wrong[0].tolist()
            raise ContractError(
                f"pack_topk_ids: ids[{row}, {column}] is {int(ids[row, column])}: "
                f"wanted {_LEAST_ID} to {_MOST_ID}, what 16 bits hold"
            )
    bits = weights.bfloat16().view(torch.int16).int() & 0xFFFF
    return (ids.int() << 16) | torch.where(weights.isnan(), _NAN_BITS, bits)


def unpack_topk_ids(packed: Tensor) -> tuple[Tensor, Tensor]:
    """Return the ids (int32) and weights (bfloat16) of words that `pack_topk_ids` made; shapes are kept.

    Args:
        packed: int32 of any shape.

    Source: N2; O06.
    """
    low = ((packed << 16) >> 16).to(torch.int16)
    return packed >> 16, low.view(torch.bfloat16)


def fill_padded_topk(ids: Tensor, weights: Tensor, num_valid: Tensor, pad_id: int = -1) -> None:
    """Overwrite padded rows: every id becomes `pad_id`, every weight 0, whatever the row held (NaN too).

    Args:
        ids: [M, K] int32 or int64, any row stride; written.
        weights: [M, K] float32, any row stride; written.
        num_valid: [1] int32 or int64; rows from it on are padding. 0 or less: all rows; M or more: none.
        pad_id: -1, or 0 for consumers that cannot skip an entry.

    Source: A6; choice 3 of the index; O07.
    """
    padded = (torch.arange(len(ids), device=ids.device) >= num_valid).unsqueeze(1)
    ids.masked_fill_(padded, pad_id)
    weights.masked_fill_(padded, 0.0)


def moe_gate_hash(
    logits: Tensor,
    input_ids: Tensor,
    table: Tensor,
    renorm_eps: float = 1e-20,
    pad_id: int = -1,
    num_valid: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Return the experts that a table holds for each token, weighted by the router's scores.

    An expert's score is the square root of ``max(x, 0) + log1p(exp(-|x|))``, in float32. Weights are the scores of the
    chosen experts divided by their sum plus `renorm_eps`; the model's routed scaling is not applied here. A row of -inf
    has weights 0; a NaN or +inf among the chosen logits makes weights of its row NaN, as in `moe_gate_topk`.

    Args:
        logits: [M, E] float32, bfloat16 or float16, any strides.
        input_ids: [M] int64 or int32. A token outside the table is padding; the table is not read for it.
        table: [V, K] int32, the experts (0 to E - 1) of each token.
        renorm_eps: added to the sum.
        pad_id: id given to padded rows; their weights are 0, even if the row holds NaN.
        num_valid: [1] int32; rows from it on are padding, too.

    Returns:
        weights: [M, K] float32.
        ids: [M, K] int32, in the order of the table.

    Source: N2 (hash router; the first layers of V4, none of V4.1), C5.4; O05.
    """
    live = (input_ids >= 0) & (input_ids < len(table))
    if num_valid is not None:
        live = live & (torch.arange(len(input_ids), device=input_ids.device) < num_valid)
    live = live.unsqueeze(1)
    ids = table[input_ids.long().clamp(0, len(table) - 1)]
    # looking at the chosen experts only; a row whose token is unknown looks at expert 0
    x = logits.gather(1, torch.where(live, ids, 0).long()).float()
    # float32 steps, each rounded correctly by way of float64, as in `moe_gate_topk`
    tail = (-x.abs()).double().exp().float().double().log1p().float()
    # clamp would drop a NaN on some devices
    score = (torch.where(x < 0, 0.0, x) + tail).double().sqrt().float()
    weights = score / (score.double().sum(-1, keepdim=True).float() + renorm_eps)
    return torch.where(live, weights, 0.0), torch.where(live, ids, pad_id).int()


def moe_gate_topk_packed(
    logits: Tensor,
    bias: Tensor,
    top_k: int,
    routed_scaling: float = 1.5,
    renorm_eps: float = 1e-20,
    pad_id: int = -1,
    num_valid: Tensor | None = None,
    bias_alt: Tensor | None = None,
    input_ids: Tensor | None = None,
    alt_token_id: int = -1,
    numerics: str = "log1p",
) -> tuple[Tensor, Tensor, Tensor]:
    """Return what `moe_gate_topk` returns, and the same choice as packed words.

    Arguments are those of `moe_gate_topk`, the vision bias and the padding mask included.

    Returns:
        weights: [M, top_k] float32.
        ids: [M, top_k] int32.
        packed: [M, top_k] int32, `pack_topk_ids` of the two, bit for bit; 0xFFFF0000 in rows padded with -1.

    Raises:
        ContractError: as `moe_gate_topk`, or the number of experts or `pad_id` does not fit 16 bits.

    Source: N2; S0's gate emits it in the launch that chooses.
    """
    if logits.shape[1] > _MOST_ID or not _LEAST_ID <= pad_id <= _MOST_ID:
        raise ContractError(
            f"moe_gate_topk_packed: {logits.shape[1]} experts, pad_id {pad_id}: wanted at most {_MOST_ID} experts and "
            f"a pad_id of {_LEAST_ID} to {_MOST_ID}, what 16 bits hold"
        )
    weights, ids = moe_gate_topk(
        logits, bias, top_k, routed_scaling, renorm_eps, pad_id, num_valid, bias_alt, input_ids, alt_token_id, numerics
    )
    return weights, ids, pack_topk_ids(ids, weights)


def _compose_packed(
    ops: Any,
    logits: Tensor,
    bias: Tensor,
    top_k: int,
    routed_scaling: float = 1.5,
    renorm_eps: float = 1e-20,
    pad_id: int = -1,
    num_valid: Tensor | None = None,
    bias_alt: Tensor | None = None,
    input_ids: Tensor | None = None,
    alt_token_id: int = -1,
    numerics: str = "log1p",
) -> tuple[Tensor, Tensor, Tensor]:
    weights, ids = ops.moe_gate_topk(
        logits, bias, top_k, routed_scaling, renorm_eps, pad_id, num_valid, bias_alt, input_ids, alt_token_id, numerics
    )
    return weights, ids, ops.pack_topk_ids(ids, weights)


def _packed_rule(inputs: Mapping[str, Any], outputs: Mapping[str, Any]) -> Tensor:
    return pack_topk_ids(outputs["ids"], outputs["weights"])


def _sites(shapes: ModelShapes) -> tuple[Site, ...]:
    return Site("verify", axes={"K": shapes.top_k}), Site("draft", axes={"K": shapes.draft_top_k})


def _hash_sites(shapes: ModelShapes) -> tuple[Site, ...]:
    # V4.1 has no hash layers: a model that has them gives them the sizes of its other gates
    return (
        Site(
            "verify",
            axes={"E": shapes.experts, "V": shapes.vocab, "K": shapes.top_k},
            strides={"logits": "any"},
        ),
    )


_WEIGHTS = Argument("weights", ("M", "K"), ("float32",), doc="weight of each choice")

PACK_TOPK_IDS = Contract(
    name="pack_topk_ids",
    summary="Expert ids and bfloat16 weights, one 32-bit word per choice.",
    source="N2, O06",
    phases=("draft", "verify"),
    parameters=(
        Argument("ids", ("M", "K"), ("int32", "int64"), doc="expert ids", values=between(_LEAST_ID, _MOST_ID)),
        _WEIGHTS,
    ),
    outputs=(Output("output", ("M", "K"), "int32", bitwise(), "(id << 16) | bfloat16 bits"),),
    rows="M",
    reference=pack_topk_ids,
    cases=cases.pack_cases,
    sites=_sites,
)

FILL_PADDED_TOPK = Contract(
    name="fill_padded_topk",
    summary="Ids and weights of padded rows overwritten by the pad id and 0.",
    source="A6",
    phases=("draft", "verify"),
    parameters=(
        Argument("ids", ("M", "K"), ("int32", "int64"), strides="unit_last", written=True, doc="expert ids"),
        Argument("weights", ("M", "K"), ("float32",), strides="unit_last", written=True, doc="their weights"),
        Argument("num_valid", (1,), ("int32", "int64"), doc="rows from it on are padding"),
        Option("pad_id", "int", -1, doc="id of padded rows"),
    ),
    outputs=(
        Output("ids", ("M", "K"), "like ids", bitwise(), "pad_id in padded rows, else as before"),
        Output("weights", ("M", "K"), "float32", bitwise(), "0 in padded rows, else as before"),
    ),
    rows="M",
    reference=fill_padded_topk,
    cases=cases.fill_cases,
    sites=_sites,
    empty="writes nothing and launches nothing",
)

MOE_GATE_HASH = Contract(
    name="moe_gate_hash",
    summary="Experts of each token from a table, weighted by router scores.",
    source="N2, C5.4, O05",
    phases=("verify",),
    parameters=(
        Argument("logits", ("M", "E"), ("float32", "bfloat16", "float16"), strides="any", doc="router logits"),
        Argument("input_ids", ("M",), ("int64", "int32"), doc="tokens; outside the table = padding"),
        Argument("table", ("V", "K"), ("int32",), doc="experts of each token", values=index_into("E")),
        Option("renorm_eps", "float", 1e-20, doc="added to the sum of the scores"),
        Option("pad_id", "int", -1, doc="id of padded rows"),
        Argument("num_valid", (1,), ("int32",), optional=True, doc="rows from it on are padding"),
    ),
    outputs=(
        Output("weights", ("M", "K"), "float32", ulp(8), "weight of each choice"),
        Output("ids", ("M", "K"), "int32", bitwise(), "expert of each choice"),
    ),
    rows="M",
    reference=moe_gate_hash,
    cases=cases.hash_cases,
    sites=_hash_sites,
    small=True,
)

MOE_GATE_TOPK_PACKED = Contract(
    name="moe_gate_topk_packed",
    summary="Experts of each token and their weights, also as packed words.",
    source="N2",
    phases=("draft", "verify"),
    parameters=MOE_GATE_TOPK.parameters,
    outputs=(
        *MOE_GATE_TOPK.outputs,
        Output("packed", ("M", "K"), "int32", bitwise_given("weights"), "pack_topk_ids of the other two"),
    ),
    rows="M",
    reference=moe_gate_topk_packed,
    cases=MOE_GATE_TOPK.cases,
    sites=MOE_GATE_TOPK.sites,
    sizes=MOE_GATE_TOPK.sizes,
    semantics=MOE_GATE_TOPK.semantics,
    decomposition=Decomposition(("moe_gate_topk", "pack_topk_ids"), _compose_packed),
    rules={"packed": _packed_rule},
)

CONTRACTS = (PACK_TOPK_IDS, FILL_PADDED_TOPK, MOE_GATE_HASH, MOE_GATE_TOPK_PACKED)
