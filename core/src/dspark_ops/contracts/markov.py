"""Markov head: the drafts of a block, each conditioned on the one before it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dspark_ops._lazy import torch
from dspark_ops.contracts._markov_cases import cases
from dspark_ops.contracts.argmax import argmax_rows
from dspark_ops.contracts.contract import Argument, Contract, Option, Output, Semantic, Site
from dspark_ops.contracts.draws import inverse_cdf
from dspark_ops.contracts.exactness import bitwise, relative
from dspark_ops.errors import ContractError

if TYPE_CHECKING:
    from torch import Tensor

    from dspark_ops.contracts.model_shapes import ModelShapes

GREEDY_BELOW = 1e-5
"""Temperature under which a row drafts greedily (C1.7.3)."""

_STEP_DTYPES = ("float32", "bfloat16", "float16")
_KINDS = ("vanilla", "gated", "rnn")


def markov_block(
    base: Tensor,
    anchor: Tensor,
    embed: Tensor,
    head: Tensor,
    hidden: Tensor | None = None,
    gate_weight: Tensor | None = None,
    gate_bias: Tensor | None = None,
    uniforms: Tensor | None = None,
    temperature: Tensor | None = None,
    kind: str = "vanilla",
    step_dtype: str = "float32",
) -> tuple[Tensor, Tensor | None]:
    """Return the drafts of a block and, if a temperature is given, the laws they were drawn from.

    Slot by slot, with e the embedding of the token before (the anchor for the first slot) and h the slot's state:

    - ``vanilla``: z = e;
    - ``gated``: z = sigmoid(gate_weight [h ; e] + gate_bias) * e;
    - ``rnn``: gate_weight [s ; e ; h] + gate_bias splits into (gate, candidate, output); z = tanh(output); the state,
      zero at the start of the block, becomes u * s + (1 - u) * tanh(candidate) with u = sigmoid(gate). The output does
      not read the new state.

    The bias of the slot is ``head z``, rounded to the dtype of `head`; the slot's logits are base + bias, added in
    float32 and rounded to `step_dtype`. What comes before that rounding is float32 or better.

    A row drafts greedily if there is no temperature or its own is below 1e-5: its draft follows the rule of
    `argmax_rows`. Else the draft is the inverse-CDF draw (C2.3.7) from softmax(logits / temperature), which is the law
    returned. Logits without a softmax (a NaN, +inf, or nothing above -inf) are drafted greedily, so that the law
    returned is always the one drawn from.

    Args:
        base: [R, G, V] float32, draft logits before the bias.
        anchor: [R] int64, last token of each request. Ids outside the table (padded rows) read its nearest row.
        embed: [V, M] bfloat16 or float32.
        head: [V, M] bfloat16 or float32.
        hidden: [R, G, D] bfloat16; required for gated and rnn.
        gate_weight: [M, D + M] for gated (hidden first), [3M, 2M + D] for rnn; bfloat16 or float32.
        gate_bias: [M] or [3M], of the same dtypes.
        uniforms: [R, G] float32 in [0, 1), one draw per draft; required with a temperature.
        temperature: [R] float32, or None: every row is greedy.
        kind: ``vanilla``, ``gated`` or ``rnn``.
        step_dtype: dtype to which the sum is rounded: ``float32``, ``bfloat16`` or ``float16``.

    Returns:
        drafts: [R, G] int64.
        probs: [R, G, V] float32, the law of each draft, one-hot where it was greedy; None without a temperature.

    Raises:
        ContractError: unknown kind or step dtype, or an argument that the kind or the temperature needs is missing.

    Source: C1.6, C1.7.
    """
    if kind not in _KINDS:
        raise ContractError(f"markov_block: kind is {kind!r}: wanted one of {', '.join(_KINDS)}")
    if step_dtype not in _STEP_DTYPES:
        raise ContractError(f"markov_block: step_dtype is {step_dtype!r}: wanted one of {', '.join(_STEP_DTYPES)}")
    gate: tuple[Tensor, ...] = ()
    sampling: tuple[Tensor, ...] = ()
    if kind != "vanilla":
        gate = _needed(f"kind {kind!r}", hidden=hidden, gate_weight=gate_weight, gate_bias=gate_bias)
    if temperature is not None:
        sampling = _needed("a temperature", temperature=temperature, uniforms=uniforms)

    rows, gamma, _ = base.shape
    exact_head = head.double()
    state = torch.zeros(rows, embed.shape[1], dtype=torch.float64, device=base.device)
    previous = anchor.clamp(0, embed.shape[0] - 1)
    drafts = torch.empty(rows, gamma, dtype=torch.int64, device=base.device)
    laws: list[Tensor] = []
    for slot in range(gamma):
        feature = embed[previous].double()
        if gate:
            feature, state = _gate(kind, feature, state, gate[0][:, slot], gate[1], gate[2])
        bias = (feature @ exact_head.T).to(head.dtype)
        logits = (base[:, slot].float() + bias.float()).to(getattr(torch, step_dtype)).float()
        previous = argmax_rows(logits)
        if sampling:
            law, previous = draft_law(logits, previous, sampling[0], sampling[1][:, slot])
            laws.append(law)
        drafts[:, slot] = previous
    return drafts, torch.stack(laws, 1) if laws else None


def _gate(
    kind: str, feature: Tensor, state: Tensor, hidden: Tensor, weight: Tensor, bias: Tensor
) -> tuple[Tensor, Tensor]:
    parts = (hidden.double(), feature) if kind == "gated" else (state, feature, hidden.double())
    joined = torch.cat(parts, -1) @ weight.double().T + bias.double()
    if kind == "gated":
        return joined.sigmoid() * feature, state
    gate, candidate, output = joined.chunk(3, -1)
    keep = gate.sigmoid()
    return output.tanh(), keep * state + (1 - keep) * candidate.tanh()


def draft_law(logits: Tensor, greedy: Tensor, temperature: Tensor, uniforms: Tensor) -> tuple[Tensor, Tensor]:
    """Return the law of one slot of each row, [R, V] float32, and the draft from it, [R] int64; see `markov_block`.

    Args:
        logits: [R, V] float32, of the slot.
        greedy: [R] int64, the draft of a row that is drafted greedily.
        temperature: [R] float32.
        uniforms: [R] float32 in [0, 1).
    """
    cold = temperature < GREEDY_BELOW
    scaled = logits.double() / torch.where(cold, 1.0, temperature).double().unsqueeze(1)
    law = scaled.softmax(-1).float()
    pointed = cold | ~law.isfinite().all(-1)
    one_hot = torch.nn.functional.one_hot(greedy, logits.shape[1]).to(law.dtype)
    law = torch.where(pointed.unsqueeze(1), one_hot, law)
    return law, torch.where(pointed, greedy, inverse_cdf(law, uniforms))


def _needed(who: str, **arguments: Tensor | None) -> tuple[Tensor, ...]:
    missing = [name for name, value in arguments.items() if value is None]
    if missing:
        raise ContractError(f"markov_block: {who} needs {' and '.join(missing)}, which is None")
    return tuple(value for value in arguments.values() if value is not None)


def _sites(shapes: ModelShapes) -> tuple[Site, ...]:
    axes = {"G": shapes.gamma, "D": shapes.hidden, "M": shapes.markov_rank, "V": shapes.vocab}
    return (Site("draft", axes=axes, options={"kind": "vanilla", "step_dtype": "float32"}),)


_WEIGHT_DTYPES = ("bfloat16", "float32")

MARKOV_BLOCK = Contract(
    name="markov_block",
    summary="Drafts of a block, each from its logits and a bias that the token before it decides.",
    source="C1.6, C1.7, N11.8",
    phases=("draft",),
    parameters=(
        Argument("base", ("R", "G", "V"), ("float32",), strides="unit_last", doc="draft logits before the bias"),
        Argument("anchor", ("R",), ("int64",), doc="last token of each request"),
        Argument("embed", ("V", "M"), _WEIGHT_DTYPES, doc="embedding of the token before"),
        Argument("head", ("V", "M"), _WEIGHT_DTYPES, doc="from embedding space to vocabulary"),
        Argument("hidden", ("R", "G", "D"), ("bfloat16",), strides="unit_last", optional=True, doc="for gated and rnn"),
        Argument("gate_weight", ("Y", "Z"), _WEIGHT_DTYPES, optional=True, doc="[M, D+M] gated, [3M, 2M+D] rnn"),
        Argument("gate_bias", ("Y",), _WEIGHT_DTYPES, optional=True, doc="[M] gated, [3M] rnn"),
        Argument("uniforms", ("R", "G"), ("float32",), optional=True, doc="one draw of [0, 1) per draft"),
        Argument("temperature", ("R",), ("float32",), optional=True, doc="below 1e-5: greedy; None: all greedy"),
        Option("kind", "str", "vanilla", _KINDS, "head variant"),
        Option("step_dtype", "str", "float32", _STEP_DTYPES, "dtype to which base + bias is rounded"),
    ),
    outputs=(
        Output("drafts", ("R", "G"), "int64", bitwise(), "drafted tokens"),
        Output(
            "probs",
            ("R", "G", "V"),
            "float32",
            relative(1e-5),
            "law of each draft",
            none_without="temperature",
        ),
    ),
    rows="R",
    reference=markov_block,
    cases=cases,
    sites=_sites,
    semantics=(
        Semantic("nan", "first", ("first", "ignored"), "which id a greedy step with a NaN gives"),
        Semantic("ties", "lowest", ("lowest", "any"), "which of several equal maxima"),
    ),
)

CONTRACTS = (MARKOV_BLOCK,)
