"""Router gate: which experts serve a token, and with what weight."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from dspark_ops._lazy import torch
from dspark_ops.contracts.contract import Argument, Case, Contract, Option, Output, Semantic, Site
from dspark_ops.contracts.exactness import bitwise, ulp
from dspark_ops.contracts.moe_gate_aiter import aiter_cases, gate_aiter
from dspark_ops.errors import ContractError

if TYPE_CHECKING:
    from torch import Tensor

    from dspark_ops.contracts.model_shapes import ModelShapes

NUMERICS = ("log1p", "aiter")


def moe_gate_topk(
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
) -> tuple[Tensor, Tensor]:
    """Return the weights and ids of the experts chosen for each token.

    An expert's score is ``sqrt(softplus(logit))``, in float32, with softplus(x) = x above 20 and log1p(exp(x)) else.
    Experts are chosen by score + bias, largest first, the lowest id of equal ones; a NaN ranks as +inf, so that it ties
    with a true one. The bias only ranks: weights are scores, divided by their sum plus `renorm_eps`, then multiplied by
    `routed_scaling`. No expert is chosen twice, whatever the row holds.

    A row of -inf (or logits so low that every score is 0) has weights 0, not NaN. A NaN that is chosen makes all
    weights of its row NaN, and an infinite logit makes its own weight NaN: the row's state is broken, and says so.
    Engines that rank a NaN last instead follow another rule (``nan = "lowest"``).

    Args:
        logits: [M, E] float32, bfloat16 or float16, any strides.
        bias: [E] float32 or bfloat16.
        top_k: experts per token, at most E.
        routed_scaling: factor applied after the division.
        renorm_eps: added to the sum; 0: the sum itself divides, or 1 where it is 0.
        pad_id: id given to padded rows.
        num_valid: [1] int32; rows from it on are padding: ids `pad_id` and weights 0, even if the row holds NaN.
        bias_alt: [E] of `bias`' dtypes, used instead of `bias` by rows whose token is `alt_token_id` (image tokens).
        input_ids: [M] int64, needed with `bias_alt`.
        alt_token_id: the token that asks for `bias_alt`.
        numerics: ``log1p``, which is what all of this says, or ``aiter``: another score, rank of NaN and order of equal
            keys, and `renorm_eps` as the least divisor (`gate_aiter`).

    Returns:
        weights: [M, top_k] float32.
        ids: [M, top_k] int32, in the order of choice.

    Raises:
        ContractError: `top_k` is not in 1..E, unknown numerics, sizes for which they are not defined, or one of
            `bias_alt` and `input_ids` is missing.

    Source: N2, A7; choices 1, 2, 3 and 7 of the index; O04.
    """
    experts = logits.shape[1]
    if not 1 <= top_k <= experts:
        raise ContractError(f"moe_gate_topk: top_k is {top_k}: wanted 1 to {experts}, the number of experts")
    if numerics not in NUMERICS:
        raise ContractError(f"moe_gate_topk: numerics is {numerics!r}: wanted {' or '.join(NUMERICS)}")
    own = _row_bias(bias, bias_alt, input_ids, alt_token_id)
    gate = gate_aiter if numerics == "aiter" else _gate_log1p
    weights, ids = gate(logits, own, top_k, routed_scaling, renorm_eps)
    if num_valid is None:
        return weights, ids.int()
    live = (torch.arange(len(logits), device=logits.device) < num_valid).unsqueeze(1)
    return torch.where(live, weights, 0.0), torch.where(live, ids, pad_id).int()


def _gate_log1p(
    logits: Tensor, bias: Tensor, top_k: int, routed_scaling: float, renorm_eps: float
) -> tuple[Tensor, Tensor]:
    score = _sqrt_softplus(logits.float())
    key = score + bias.float()
    key = torch.where(key.isnan(), torch.inf, key)
    # a stable sort: torch.topk chooses freely among equal keys, and differently on the CPU and on a GPU
    ids = key.argsort(dim=-1, descending=True, stable=True)[:, :top_k]
    chosen = score.gather(1, ids)
    total = chosen.double().sum(-1, keepdim=True).float()
    divisor = total + renorm_eps if renorm_eps > 0 else torch.where(total > 0, total, 1.0)
    return chosen / divisor * routed_scaling, ids


def _sqrt_softplus(x: Tensor) -> Tensor:
    # every step is float32, rounded correctly by way of float64: a row's bits do not depend on how a library vectorises
    power = x.double().exp().float()
    softplus = torch.where(x > 20, x, power.double().log1p().float())
    return softplus.double().sqrt().float()


def _row_bias(bias: Tensor, bias_alt: Tensor | None, input_ids: Tensor | None, alt_token_id: int) -> Tensor:
    if bias_alt is None and input_ids is None:
        return bias
    if bias_alt is None or input_ids is None:
        missing = "bias_alt" if bias_alt is None else "input_ids"
        raise ContractError(
            f"moe_gate_topk: {missing} is None: bias_alt and input_ids are given together or not at all"
        )
    return torch.where((input_ids == alt_token_id).unsqueeze(1), bias_alt, bias)


def _cases(scale: str, seed: int) -> Iterator[Case]:
    generator = torch.Generator().manual_seed(seed)
    sizes = ((1, 8, 2), (6, 128, 3), (9, 384, 6)) if scale == "small" else ((1, 384, 6), (64, 384, 6), (300, 384, 6))
    for rows, experts, top_k in sizes:
        name = f"{rows}x{experts}, {top_k} chosen"
        for spread in (0.5, 2.0, 8.0):
            logits = torch.randn(rows, experts, generator=generator) * spread
            bias = torch.randn(experts, generator=generator) * 0.1
            plain = {"logits": logits, "bias": bias, "top_k": top_k}
            yield Case(f"{name}, spread {spread:g}", plain)
        half = {**plain, "logits": logits.bfloat16(), "bias": bias.bfloat16()}
        yield Case(f"{name}, bfloat16", half)
        yield Case(f"{name}, float16 logits", {**plain, "logits": logits.half()})
        yield Case(f"{name}, many ties", {**plain, "logits": logits.round().clamp(-1, 1), "bias": torch.zeros(experts)})
        yield Case(f"{name}, all equal", {**plain, "logits": torch.zeros(rows, experts), "bias": torch.zeros(experts)})
        yield Case(f"{name}, transposed logits", {**plain, "logits": logits.T.contiguous().T})
        wide = torch.full((rows, experts + 8), 1e30)
        wide[:, :experts] = logits
        yield Case(f"{name}, columns of a wider buffer", {**plain, "logits": wide[:, :experts]})
        yield Case(f"{name}, no epsilon, no scaling", {**plain, "renorm_eps": 0.0, "routed_scaling": 1.0})
        low = {**plain, "logits": logits * 0.1 - 9, "renorm_eps": 0.0}
        yield Case(f"{name}, no epsilon, scores that sum to less than one", low)
        yield Case(f"{name}, a single choice", {**plain, "top_k": 1})
        yield Case(f"{name}, a large epsilon", {**plain, "renorm_eps": 0.5})
        for valid in sorted({0, rows // 2, rows}):
            poisoned = logits.clone()
            poisoned[valid:] = float("nan")
            count = torch.tensor([valid], dtype=torch.int32)
            for pad_id in (-1, 0):
                padding = {"logits": poisoned, "num_valid": count, "pad_id": pad_id}
                yield Case(f"{name}, {valid} valid rows, pad id {pad_id}", {**plain, **padding})
        for what, ids in (("text only", 5), ("images only", 129264), ("mixed", None)):
            tokens = torch.full((rows,), ids or 5)
            tokens[::2] = ids or 129264
            vision = {"bias_alt": bias.flip(0), "input_ids": tokens, "alt_token_id": 129264}
            yield Case(f"{name}, vision bias, {what}", {**plain, **vision})
    yield from _known()
    yield from aiter_cases(scale, seed)
    empty = {"logits": torch.empty(0, 8), "bias": torch.zeros(8), "top_k": 2}
    nothing = {"weights": torch.empty(0, 2), "ids": torch.empty(0, 2, dtype=torch.int32)}
    yield Case("no rows", empty, nothing)


def _known() -> Iterator[Case]:
    nan, inf = float("nan"), float("inf")
    yield _row(
        "the gate vector of N-B, ids", [0, 1, 1, -5, 25, 0.5], [0.5, 0, 0, 3, 0, 0], 4, [4, 3, 0, 1], scaling=1.5
    )
    yield _row("O04 a: all NaN", [nan] * 8, [0.0] * 8, 2, [0, 1], [nan, nan])
    yield _row("O04 b: all -inf", [-inf] * 8, [0.0] * 8, 2, [0, 1], [0, 0])
    yield _row("O04 c: far below zero", [-200] * 8, [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8], 2, [7, 6], [0, 0])
    yield _row("O04 d: a negative bias everywhere", [2, 1, 0, 0, 0, 0, -1, -1], [-2.0] * 8, 2, [0, 1])
    yield _row("O04 e: a NaN ranks first", [nan, 1, 2, 0, 0, 0, 0, 0], [0.0] * 8, 2, [0, 2], [nan, nan])
    lowest = _row("all -inf without an epsilon", [-inf] * 8, [0.0] * 8, 2, [0, 1], [0, 0])
    yield Case(lowest.name, {**lowest.inputs, "renorm_eps": 0.0}, lowest.expected)
    yield _row("O04 f: one live expert", [-inf] * 7 + [1], [0.0] * 8, 2, [7, 0], [1, 0])
    spots = [0.0] * 64
    spots[20], spots[50] = inf, nan
    yield _row("a NaN ties with an infinity, the lower id first", spots, [0.0] * 64, 2, [20, 50], [nan, nan])
    yield _row("huge and -inf", [1e30, -inf, 1e30, -1e30], [0.0] * 4, 4, [0, 2, 1, 3], [0.5, 0.5, 0, 0])


def _row(
    name: str,
    logits: list[float],
    bias: list[float],
    top_k: int,
    ids: list[int],
    weights: list[float] | None = None,
    scaling: float = 1.0,
) -> Case:
    inputs = {
        "logits": torch.tensor([logits], dtype=torch.float32), "bias": torch.tensor(bias), "top_k": top_k,
        "routed_scaling": scaling,
    }  # fmt: skip
    expected: dict[str, Any] = {"ids": torch.tensor([ids], dtype=torch.int32)}
    if weights is not None:
        expected["weights"] = torch.tensor([weights], dtype=torch.float32)
    return Case(name, inputs, expected)


def _sites(shapes: ModelShapes) -> tuple[Site, ...]:
    return (
        Site("verify", axes={"E": shapes.experts}, strides={"logits": "any"}, options={"top_k": shapes.top_k}),
        Site(
            "draft", axes={"E": shapes.draft_experts}, strides={"logits": "any"}, options={"top_k": shapes.draft_top_k}
        ),
    )


MOE_GATE_TOPK = Contract(
    name="moe_gate_topk",
    summary="Experts of each token and their weights, from router logits.",
    source="N2, A7, O04",
    phases=("draft", "verify"),
    parameters=(
        Argument("logits", ("M", "E"), ("float32", "bfloat16", "float16"), strides="any", doc="router logits"),
        Argument("bias", ("E",), ("float32", "bfloat16"), doc="correction bias, for ranking only"),
        Option("top_k", "int", doc="experts per token"),
        Option("routed_scaling", "float", 1.5, doc="factor after the division"),
        Option("renorm_eps", "float", 1e-20, doc="added to the sum of the chosen scores"),
        Option("pad_id", "int", -1, doc="id of padded rows"),
        Argument("num_valid", (1,), ("int32",), optional=True, doc="rows from it on are padding"),
        Argument("bias_alt", ("E",), ("float32", "bfloat16"), optional=True, doc="bias of rows with alt_token_id"),
        Argument("input_ids", ("M",), ("int64",), optional=True, doc="tokens, needed with bias_alt"),
        Option("alt_token_id", "int", -1, doc="token whose rows use bias_alt"),
        Option("numerics", "str", "log1p", NUMERICS, "how scores are computed and equal keys ordered"),
    ),
    outputs=(
        Output("weights", ("M", "K"), "float32", ulp(8), "weight of each choice"),
        Output("ids", ("M", "K"), "int32", bitwise(), "expert of each choice"),
    ),
    rows="M",
    reference=moe_gate_topk,
    cases=_cases,
    sites=_sites,
    sizes={"K": "top_k"},
    semantics=(
        Semantic("nan", "highest", ("highest", "lowest"), "how an expert whose key is NaN ranks"),
        Semantic("ties", "lowest", ("lowest", "torch", "any"), "which of several equal keys is chosen first"),
    ),
)

CONTRACTS = (MOE_GATE_TOPK,)
