"""Confidence head: how likely the target is to accept each draft, and each prefix of drafts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from dspark_ops._lazy import torch
from dspark_ops.contracts.contract import Argument, Case, Contract, Output, Site
from dspark_ops.contracts.exactness import absolute, bitwise_given
from dspark_ops.errors import ContractError

if TYPE_CHECKING:
    from torch import Tensor

    from dspark_ops.contracts.model_shapes import ModelShapes


def confidence_survival(
    hidden: Tensor,
    previous: Tensor,
    embed: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    temperatures: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Return the confidence of each draft and the survival probability of each prefix.

    Confidence k is ``sigmoid((weight . [hidden_k ; embed[previous_k]] + bias) / temperature_k)``. It sees the token
    before draft k, never draft k itself: that is what makes a cut by it lossless.

    Args:
        hidden: [R, G, D] bfloat16, reduced draft state at each slot, before the final norm (DeepSeek-V4 and V4.1).
        previous: [R, G] int64, token before each draft: the anchor, then drafts 1 to G - 1. Ids outside the table
            (padded rows) read its nearest row.
        embed: [V, M] bfloat16 or float32, the Markov head's embedding.
        weight: [1, D + M] float32, or [1, D] for a head without the Markov half.
        bias: [1] float32 or None.
        temperatures: [G] float32, sequential temperature scaling by position (C1.9), positive; None stands for 1.

    Returns:
        confidence: [R, G] float32.
        survival: [R, G] float32, running product of the confidences, one float32 product after the other.

    Raises:
        ContractError: `weight` has neither width.

    Source: C1.8.
    """
    width, markov = hidden.shape[-1], embed.shape[-1]
    if weight.shape not in ((1, width), (1, width + markov)):
        raise ContractError(
            f"confidence_survival: weight is {list(weight.shape)}: wanted [1, {width}] or [1, {width + markov}] "
            f"(hidden {width}, Markov rank {markov})"
        )
    # float64 products are exact and row by row, so that a row does not depend on how many rows there are
    exact = weight.double()[0]
    score = (hidden.double() * exact[:width]).sum(-1)
    if weight.shape[1] > width:
        rows = embed[previous.clamp(0, embed.shape[0] - 1)].double()
        score = score + (rows * exact[width:]).sum(-1)
    if bias is not None:
        score = score + bias.double()
    if temperatures is not None:
        score = score / temperatures.double()
    confidence = score.sigmoid().float()
    return confidence, _running_product(confidence)


def _running_product(confidence: Tensor) -> Tensor:
    product = confidence.clone()
    for position in range(1, product.shape[1]):
        # not cumprod: on the CPU it carries more than float32 from one product to the next
        product[:, position] = product[:, position - 1] * confidence[:, position]
    return product


def _cases(scale: str, seed: int) -> Iterator[Case]:
    generator = torch.Generator().manual_seed(seed)
    sizes = ((96, 16, 64), (192, 48, 512)) if scale == "small" else ((5120, 256, 129280),)
    for width, markov, vocab in sizes:
        for rows, gamma in ((1, 5), (4, 7), (9, 1)):
            inputs = {
                "hidden": torch.randn(rows, gamma, width, generator=generator).bfloat16(),
                "previous": torch.randint(vocab, (rows, gamma), generator=generator),
                "embed": torch.randn(vocab, markov, generator=generator).bfloat16(),
                "weight": torch.randn(1, width + markov, generator=generator) * width**-0.5,
            }
            name = f"{rows}x{gamma}, hidden {width}, rank {markov}"
            yield Case(name, inputs)
            yield Case(f"{name}, without the Markov half", {**inputs, "weight": inputs["weight"][:, :width].clone()})
            temperatures = 0.5 + torch.rand(gamma, generator=generator)
            extras = {"bias": torch.tensor([-0.75]), "temperatures": temperatures}
            yield Case(f"{name}, bias and temperatures", {**inputs, **extras})
            yield Case(f"{name}, float32 embedding", {**inputs, "embed": inputs["embed"].float()})
            padded = inputs["previous"].clone()
            padded[-1] = -1
            padded[-1, 0] = vocab + 7
            yield Case(f"{name}, last row padded", {**inputs, "previous": padded})
            yield Case(f"{name}, saturated", {**inputs, "weight": inputs["weight"] * 1000})
    yield from _golden_cases()
    yield Case("no requests", {
        "hidden": torch.empty(0, 5, 8, dtype=torch.bfloat16), "previous": torch.empty(0, 5, dtype=torch.int64),
        "embed": torch.zeros(4, 2), "weight": torch.zeros(1, 10),
    })  # fmt: skip


def _golden_cases() -> Iterator[Case]:
    # the score is the embedding row of the previous token, so that any score can be written down
    confidence = torch.tensor([[0.9, 0.8, 0.5], [0.6, 0.5, 0.4]], dtype=torch.float64)
    scores = torch.cat((confidence.logit().reshape(-1), torch.tensor([2.0, -1.0]).double())).float()
    inputs = {"embed": scores.unsqueeze(1), "weight": torch.tensor([[0.0, 1.0]])}
    yield Case(
        "C9.1 vector 1",
        {"hidden": torch.ones(2, 3, 1).bfloat16(), "previous": torch.arange(6).view(2, 3), **inputs},
        {"confidence": confidence.float()},
    )
    scaled = torch.tensor([[0.880797, 0.777300, 0.348645]])
    yield Case(
        "C9.1 vector 6, temperatures 1 and 1.6",
        {
            "hidden": torch.ones(1, 3, 1).bfloat16(), "previous": torch.tensor([[6, 6, 7]]), **inputs,
            "temperatures": torch.tensor([1.0, 1.6, 1.6]),
        },
        {"confidence": scaled},
    )  # fmt: skip


def _sites(shapes: ModelShapes) -> tuple[Site, ...]:
    axes = {"G": shapes.gamma, "D": shapes.hidden, "M": shapes.markov_rank, "V": shapes.vocab}
    return (Site("draft", axes=axes),)


CONFIDENCE_SURVIVAL = Contract(
    name="confidence_survival",
    summary="Acceptance probability of each draft and of each prefix of drafts.",
    source="C1.8, C1.9",
    phases=("draft",),
    parameters=(
        Argument("hidden", ("R", "G", "D"), ("bfloat16",), strides="unit_last", doc="reduced state before the norm"),
        Argument("previous", ("R", "G"), ("int64",), doc="token before each draft"),
        Argument("embed", ("V", "M"), ("bfloat16", "float32"), doc="Markov embedding"),
        Argument("weight", (1, "*"), ("float32",), doc="head weight of D+M columns, or of D without the Markov half"),
        Argument("bias", (1,), ("float32",), optional=True, doc="head bias"),
        Argument("temperatures", ("G",), ("float32",), optional=True, doc="temperature by position"),
    ),
    outputs=(
        Output("confidence", ("R", "G"), "float32", absolute(2e-6), "probability of draft k, given those before it"),
        Output("survival", ("R", "G"), "float32", bitwise_given("confidence"), "probability of drafts 1 to k"),
    ),
    rows="R",
    reference=confidence_survival,
    cases=_cases,
    sites=_sites,
    rules={"survival": lambda inputs, outputs: _running_product(outputs["confidence"])},
)

CONTRACTS = (CONFIDENCE_SURVIVAL,)
