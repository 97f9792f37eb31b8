"""The router gate with AITER's numerics: another score near zero, another rank of NaN, another order of equal keys."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from dspark_ops._lazy import torch
from dspark_ops.contracts.contract import Case
from dspark_ops.errors import ContractError

if TYPE_CHECKING:
    from torch import Tensor

EXPERTS: Final = 384
MOST_CHOICES: Final = 16
_LANES: Final = 64
_SLOTS: Final = EXPERTS // _LANES
#: Comparators of the sorting network of a lane's six slots, in order.
NETWORK: Final = (
    (0, 1), (2, 3), (4, 5), (0, 2), (1, 4), (3, 5), (0, 1), (2, 3), (4, 5), (1, 2), (3, 4), (2, 3),
)  # fmt: skip
_LARGEST: Final = (2 - 2.0**-23) * 2.0**127
# log2(e) and ln(2) as float32
_LOG2_E: Final = 12102203 * 2.0**-23
_LN_2: Final = 11629080 * 2.0**-24


def gate_aiter(
    logits: Tensor, bias: Tensor, top_k: int, routed_scaling: float, renorm_eps: float
) -> tuple[Tensor, Tensor]:
    """Return the weights and ids that `moe_gate_topk` gives with ``numerics = "aiter"``, before padding is masked.

    The score is ``sqrt(log2(1 + exp2(x * log2(e))) * ln(2))``, float32 in every step, and ``sqrt(x)`` above 20. All
    logits up to about -16.6355 score exactly 0, since 1 + exp2 is 1 there; +inf counts as the largest float32.

    The key is score + bias, a NaN ranks as -inf, and a NaN score weighs 0. Equal keys are ordered as 64 lanes of six
    slots order them: lane l has the experts l, l + 64, ..., l + 320, sorted by a fixed network that exchanges two only
    if the left one is smaller; then in each round the largest head of all lanes is chosen, of equal ones that of the
    lowest lane. A lane whose experts have all been chosen goes on offering expert 0 with key -inf and weight 0.

    Weights are scores times ``routed_scaling / max(sum, renorm_eps)``, the sum taken in the order of choice.

    Args:
        logits: [M, 384] float32, bfloat16 or float16.
        bias: [384] or [M, 384].
        top_k: experts per token, 1 to 16.
        routed_scaling: factor of the weights.
        renorm_eps: least divisor.

    Returns:
        weights [M, top_k] float32, ids [M, top_k] int64.

    Raises:
        ContractError: another number of experts, or more than 16 choices.

    Source: A7; choice 7 of the index.
    """
    if logits.shape[1] != EXPERTS or not 1 <= top_k <= MOST_CHOICES:
        raise ContractError(
            f"moe_gate_topk: numerics 'aiter' is defined for {EXPERTS} experts and up to {MOST_CHOICES} choices: "
            f"got {logits.shape[1]} and {top_k}"
        )
    score = _score(logits.float())
    key = score + bias.float()
    key = torch.where(key.isnan(), -torch.inf, key)
    key, ids = _sorted_lanes(key)
    score = torch.where(score.isnan(), 0.0, score)
    chosen = _rounds(key, ids, top_k)
    live = chosen >= 0
    ids = torch.where(live, chosen, 0)
    weights = torch.where(live, score.gather(1, ids), 0.0)
    total = weights[:, :1]
    for column in range(1, top_k):
        total = total + weights[:, column : column + 1]
    divisor = torch.where(total > 0, total, 1.0).clamp(min=renorm_eps)
    return weights * (torch.full_like(divisor, routed_scaling) / divisor), ids


def _score(x: Tensor) -> Tensor:
    # every step is rounded correctly to float32 by way of float64
    x = torch.where(x > _LARGEST, _LARGEST, x)
    power = (x * _LOG2_E).double().exp2().float()
    softplus = torch.where(x > 20, x, (1 + power).double().log2().float() * _LN_2)
    return softplus.double().sqrt().float()


def _sorted_lanes(key: Tensor) -> tuple[Tensor, Tensor]:
    """Return the keys [M, 64, 6] of each lane in falling order, and their experts."""
    ids = torch.arange(EXPERTS, device=key.device).view(_SLOTS, _LANES).t().expand(key.shape[0], _LANES, _SLOTS)
    keys = list(key.view(-1, _SLOTS, _LANES).unbind(1))
    experts = list(ids.unbind(-1))
    for left, right in NETWORK:
        swap = keys[left] < keys[right]
        for items in (keys, experts):
            first, second = items[left], items[right]
            items[left], items[right] = torch.where(swap, second, first), torch.where(swap, first, second)
    return torch.stack(keys, -1), torch.stack(experts, -1)


def _rounds(keys: Tensor, experts: Tensor, top_k: int) -> Tensor:
    """Return the experts [M, top_k] that the rounds choose, -1 where a lane had none left to offer."""
    lanes = torch.arange(_LANES, device=keys.device)
    keys = torch.nn.functional.pad(keys, (0, 1), value=-torch.inf)
    experts = torch.nn.functional.pad(experts, (0, 1), value=-1)
    place = torch.zeros_like(experts[..., 0])
    chosen = []
    for _ in range(top_k):
        head = keys.gather(2, place[..., None])[..., 0]
        best = torch.where(head == head.amax(1, keepdim=True), lanes, _LANES).amin(1, keepdim=True)
        chosen.append(experts.gather(2, place[..., None])[..., 0].gather(1, best))
        place = (place + (lanes == best)).clamp(max=_SLOTS)
    return torch.cat(chosen, 1)


def aiter_cases(scale: str, seed: int) -> Iterator[Case]:
    """Yield inputs of `moe_gate_topk` with these numerics."""
    generator = torch.Generator().manual_seed(seed + 7)
    for rows, top_k in ((1, 6), (5, 16)) if scale == "small" else ((1, 6), (24, 6), (64, 16)):
        name = f"aiter numerics, {rows}x{EXPERTS}, {top_k} chosen"
        logits = torch.randn(rows, EXPERTS, generator=generator) * 3
        bias = torch.randn(EXPERTS, generator=generator) * 0.1
        plain: dict[str, Any] = {"logits": logits, "bias": bias, "top_k": top_k, "numerics": "aiter"}
        flat = {**plain, "bias": torch.zeros(EXPERTS)}
        yield Case(name, plain)
        yield Case(f"{name}, bfloat16", {**plain, "logits": logits.bfloat16(), "bias": bias.bfloat16()})
        yield Case(f"{name}, many ties", {**flat, "logits": logits.round().clamp(-1, 1)})
        yield Case(f"{name}, all equal", {**flat, "logits": torch.zeros(rows, EXPERTS)})
        yield Case(f"{name}, scores of exactly zero", {**flat, "logits": logits - 20})
        special = logits.clone()
        special[:, ::5], special[:, 3::7], special[:, 1::90] = torch.nan, -torch.inf, torch.inf
        yield Case(f"{name}, NaN and infinities", {**plain, "logits": special})
        poisoned = logits.clone()
        poisoned[rows // 2 :] = torch.nan
        padding = {"logits": poisoned, "num_valid": torch.tensor([rows // 2], dtype=torch.int32), "pad_id": 0}
        yield Case(f"{name}, {rows // 2} valid rows", {**plain, **padding})
        yield Case(f"{name}, a large epsilon", {**plain, "renorm_eps": 30.0, "routed_scaling": 1.0})
    yield from _known()


def _known() -> Iterator[Case]:
    nowhere, none = torch.full((1, EXPERTS), -torch.inf), torch.full((1, EXPERTS), torch.nan)
    zeros = torch.zeros(1, 16)
    for what, logits, bias in (("a bias of -inf", nowhere, nowhere[0]), ("all NaN", none, torch.zeros(EXPERTS))):
        inputs = {"logits": logits, "bias": bias, "top_k": 16, "numerics": "aiter"}
        ids = torch.tensor([[0, 64, 128, 192, 256, 320, *[0] * 10]], dtype=torch.int32)
        yield Case(f"aiter numerics, no key above -inf: {what}", inputs, {"ids": ids, "weights": zeros})
    # one large key in the last slot of lane 0: the network brings the five equal ones out of order
    bias = torch.full((EXPERTS,), -1.0)
    bias[::64] = 0.0
    bias[320] = 1.0
    inputs = {"logits": nowhere, "bias": bias, "top_k": 6, "numerics": "aiter"}
    ids = torch.tensor([[320, 0, 128, 192, 64, 256]], dtype=torch.int32)
    yield Case("aiter numerics, equal keys of one lane", inputs, {"ids": ids, "weights": zeros[:, :6]})
