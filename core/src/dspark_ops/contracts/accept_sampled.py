"""Sampled accept: rejection sampling that leaves the target's law untouched."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dspark_ops._lazy import torch
from dspark_ops.contracts._accept_sampled_cases import cases
from dspark_ops.contracts.contract import Argument, Contract, Option, Output, Site
from dspark_ops.contracts.draws import inverse_cdf
from dspark_ops.contracts.exactness import bitwise
from dspark_ops.contracts.values import between
from dspark_ops.errors import ContractError

if TYPE_CHECKING:
    from torch import Tensor

    from dspark_ops.contracts.model_shapes import ModelShapes

RESIDUAL_FLOOR = 1e-8
"""Residual mass at or under which the final token is drawn from the target law itself (C2.3.4)."""


def accept_sampled(
    candidates: Tensor,
    target_probs: Tensor,
    draft_probs: Tensor,
    accept_uniforms: Tensor,
    final_uniforms: Tensor,
    verify_lens: Tensor | None = None,
    variant: str = "token",
    trim: str = "fresh",
) -> tuple[Tensor, Tensor, Tensor]:
    """Return how many drafts each request keeps and the token after them, so that the target's law is kept.

    With p_i the target law of row i, q_i the law that draft i + 1 was drawn from, and n the drafts tested:

    - ``token``: draft i + 1 = x is kept while ``u_i * q_i(x) < p_i(x)``, the product rounded once to float32. The final
      token is drawn from max(p_c - q_c, 0) at the first draft c that is refused, from p_n if none is.
    - ``block``: with w_0 = 1 and w_(i+1) = min(1, w_i p_i(x) / q_i(x)), S_i = sum of max(w_i p_i - q_i, 0), draft i is
      the last kept for the largest i in 1..n with ``u_(i-1) <= h_i`` and h_i > 0, where h_i = S_i / (S_i + 1 - w_i) for
      i < n (0/0 counts as 1) and h_n = w_n. The final token is drawn from max(w_c p_c - q_c, 0), from p_n if c = n.
      It keeps more drafts than ``token``.

    A draw from a residual of mass 1e-8 or less is a draw from p. Draws follow C2.3.7 and use `final_uniforms`.

    n is ``verify_lens - 1``, cut before the first draft that cannot be tested: an id outside the vocabulary (-1: no
    draft) or a row in which p or q is not finite. If p is not finite where the final token is drawn, that token is the
    lowest index of the largest finite p. A greedy request is the special case of one-hot laws.

    If the schedule cut the block (n < G) and all n drafts are kept, then ``fresh`` draws the final token from p_n; it
    needs a schedule that does not look at draft n itself. ``boundary`` tests draft n + 1 against p_n and its own q:
    kept, it is the final token; refused, the final token comes from the residual. Its law is p_n too, and the schedule
    may look at draft n + 1 as well.

    Args:
        candidates: [B, W] int64, the anchor and the W - 1 = G drafts.
        target_probs: [B, W, V] float32, the processed target law after each candidate (temperature, top-k, top-p).
        draft_probs: [B, G, V] float32, the laws that the drafts were drawn from, as they were drawn from.
        accept_uniforms: [B, G] float32 in [0, 1).
        final_uniforms: [B] float32 in [0, 1).
        verify_lens: [B] int32 or int64, rows verified, the anchor included; 0 marks a padded request. None: W.
        variant: ``token`` or ``block``.
        trim: ``fresh`` or ``boundary`` (for ``token`` only).

    Returns:
        correct_len: [B] int32, drafts kept; -1 for a padded request.
        bonus: [B] int64, the final token; of a padded request, a draw from p_0.
        cap_trim: [B] int32, drafts that the token-wise test keeps beyond the cut; 0 in ``block``, where the whole
            block's decision does not extend that of the cut one.

    Raises:
        ContractError: unknown variant or trim, or ``boundary`` with ``block``.

    Source: C2.3, C2.4, O19.
    """
    if variant not in ("token", "block") or trim not in ("fresh", "boundary"):
        raise ContractError(
            f"accept_sampled: variant {variant!r}, trim {trim!r}: wanted token or block, and fresh or boundary"
        )
    if (variant, trim) == ("block", "boundary"):
        raise ContractError("accept_sampled: trim 'boundary' has no block form: use trim 'fresh', or variant 'token'")
    drafts = candidates[:, 1:]
    gamma, vocab = drafts.shape[1], target_probs.shape[-1]
    inside = (drafts >= 0) & (drafts < vocab)
    finite = target_probs[:, :-1].isfinite().all(-1) & draft_probs.isfinite().all(-1)
    testable = _leading(inside & finite)
    ids = drafts.clamp(0, max(vocab - 1, 0)).unsqueeze(-1)
    p = target_probs[:, :-1].gather(-1, ids).squeeze(-1)
    q = draft_probs.gather(-1, ids).squeeze(-1)
    kept = inside & finite & (accept_uniforms * q < p)
    run = _leading(kept)
    allowed = (
        torch.full_like(run, gamma) if verify_lens is None else verify_lens.to(torch.int32).clamp(0, gamma + 1) - 1
    )
    tested = torch.minimum(allowed.clamp(min=0), testable)

    if variant == "token":
        correct = torch.minimum(run, tested)
        reach = torch.ones_like(final_uniforms, dtype=torch.float64)
        trimmed = run - torch.minimum(run, allowed)
    else:
        correct, reach = _block(p, q, target_probs, draft_probs, accept_uniforms, tested)
        trimmed = torch.zeros_like(run)

    # the draft at the cut takes part if it was refused or, in the boundary form, if it can be tested at all
    refused = correct < tested
    bound = (trim == "boundary") & (correct == allowed) & (allowed < testable)
    row = _pick(target_probs, correct)
    law = torch.nn.functional.pad(draft_probs, (0, 0, 0, 1))  # row G has no draft
    residual = (reach.unsqueeze(-1) * row.double() - _pick(law, correct).double()).clamp(min=0).nan_to_num(0.0)
    from_residual = (refused | bound) & (residual.sum(-1) > RESIDUAL_FLOOR)
    weights = torch.where(from_residual.unsqueeze(-1), residual, row.double())
    bonus = inverse_cdf(weights, final_uniforms)
    largest = torch.where(row.isfinite(), row, -torch.inf).argmax(-1)
    bonus = torch.where(row.isfinite().all(-1), bonus, largest)
    if trim == "boundary":
        bonus = torch.where(bound & (run > correct), _pick(torch.nn.functional.pad(drafts, (0, 1)), correct), bonus)
    padded = allowed < 0
    return torch.where(padded, -1, correct), bonus, trimmed


def _leading(flags: Tensor) -> Tensor:
    return flags.int().cumprod(-1).sum(-1, dtype=torch.int32)


def _pick(rows: Tensor, index: Tensor) -> Tensor:
    return rows[torch.arange(len(rows), device=rows.device), index.long()]


def _block(
    p: Tensor, q: Tensor, target_probs: Tensor, draft_probs: Tensor, uniforms: Tensor, tested: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the length kept by block verification and the weight w of the target law there."""
    gamma = p.shape[1]
    weight = torch.ones(len(p), dtype=torch.float64, device=p.device)
    correct, reach = torch.zeros_like(tested), weight
    for length in range(1, gamma + 1):
        x, y = p[:, length - 1].double(), q[:, length - 1].double()
        ratio = torch.where(y > 0, x / y, torch.where(x > 0, torch.inf, 0.0))
        weight = torch.where(weight > 0, (weight * ratio).clamp(max=1), weight)
        chance = weight
        if length < gamma:
            surplus = (weight.view(-1, 1) * target_probs[:, length].double() - draft_probs[:, length].double()).clamp(
                min=0
            )
            mass = surplus.sum(-1)
            rest = mass + 1 - weight
            inner = torch.where(rest > 0, mass / rest, 1.0)
            chance = torch.where(tested == length, weight, inner)
        keep = (length <= tested) & (chance > 0) & (uniforms[:, length - 1].double() <= chance)
        correct = torch.where(keep, length, correct)
        reach = torch.where(keep, weight, reach)
    return correct, reach


def _sites(shapes: ModelShapes) -> tuple[Site, ...]:
    axes = {"W": shapes.rows_per_request, "G": shapes.gamma, "V": shapes.vocab}
    return (Site("verify", axes=axes, options={"variant": "token", "trim": "fresh"}),)


ACCEPT_SAMPLED = Contract(
    name="accept_sampled",
    summary="Accepted draft count and final token of each request, by rejection sampling.",
    source="C2.3, C2.4",
    phases=("verify",),
    parameters=(
        Argument("candidates", ("B", "W"), ("int64",), strides="unit_last", doc="anchor and drafts; -1 = no draft"),
        Argument("target_probs", ("B", "W", "V"), ("float32",), strides="unit_last", doc="processed target laws"),
        Argument("draft_probs", ("B", "G", "V"), ("float32",), strides="unit_last", doc="laws of the drafts"),
        Argument("accept_uniforms", ("B", "G"), ("float32",), doc="one per draft, in [0, 1)"),
        Argument("final_uniforms", ("B",), ("float32",), doc="one per request, in [0, 1)"),
        Argument(
            "verify_lens",
            ("B",),
            ("int32", "int64"),
            optional=True,
            doc="rows verified; 0 = padded request",
            values=between(0, "W"),
        ),
        Option("variant", "str", "token", ("token", "block"), "test of one draft after the other, or of the block"),
        Option("trim", "str", "fresh", ("fresh", "boundary"), "final token of a block that the schedule cut"),
    ),
    outputs=(
        Output("correct_len", ("B",), "int32", bitwise(), "drafts kept; -1 = padded request"),
        Output("bonus", ("B",), "int64", bitwise(), "the final token"),
        Output("cap_trim", ("B",), "int32", bitwise(), "drafts kept beyond the cut"),
    ),
    rows="B",
    reference=accept_sampled,
    cases=cases,
    sites=_sites,
)

CONTRACTS = (ACCEPT_SAMPLED,)
