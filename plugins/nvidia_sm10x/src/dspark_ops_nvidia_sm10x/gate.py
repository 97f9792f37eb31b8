"""``moe_gate_topk`` and its packed form for SM100 and SM103: launched early, but where that was found to cost."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from dspark_ops_triton.blocks import expert_gate
from dspark_ops_triton.blocks.dependent import has_pdl
from dspark_ops_triton.blocks.launching import RowTiles, bind_launch

#: 384 experts are 12 to each lane of a warp; four warps then hold 3 to a lane, and each chooses from 96 without the
#: others. Reasoned, not measured.
TILES = RowTiles(warps=4)


@dataclass(frozen=True, slots=True)
class LateRouter:
    """A router whose early launch crowds the work beside it, as the source of N2 measured on GB300.

    Attributes:
        arch: architecture.
        experts: experts of the router.
        top_k: experts per token.
        rows: up to how many rows.
    """

    arch: str
    experts: int
    top_k: int
    rows: int


#: The target's router overlaps with the mix of the hyper-connections and the shared expert; the drafter's does not.
LATE_ROUTERS = (LateRouter("sm_103", 384, 6, 8),)


class Gate:
    """A gate whose launch is chosen by the number of tokens: `late_rows` or fewer are not launched early."""

    __slots__ = ("_early", "_late", "_late_rows")

    def __init__(self, body: Callable[..., Any], public: Callable[..., Any], early: RowTiles, late_rows: int) -> None:
        self._early = bind_launch(body, early, public)
        self._late = bind_launch(body, replace(early, pdl=False), public)
        self._late_rows = late_rows

    def __call__(
        self, logits: Tensor, bias: Tensor, top_k: int, routed_scaling: float = 1.5, renorm_eps: float = 1e-20,
        pad_id: int = -1, num_valid: Tensor | None = None, bias_alt: Tensor | None = None,
        input_ids: Tensor | None = None, alt_token_id: int = -1, numerics: str = "log1p",
    ) -> Any:  # fmt: skip
        """Return what the operator returns; arguments are those of its contract.

        Bytes moved: the logits once, 8 per choice, 12 with packed words. Launches: 1, none for no rows.

        Source: N2.
        """
        gate = self._late if logits.shape[0] <= self._late_rows else self._early
        return gate(
            logits, bias, top_k, routed_scaling, renorm_eps, pad_id, num_valid, bias_alt, input_ids, alt_token_id
        )

    def each(self) -> tuple[Callable[..., Any], ...]:
        """Return both launches where both are used, else the one."""
        return (self._early, self._late) if self._late_rows else (self._early,)


def moe_gate_topk(
    logits: Tensor, bias: Tensor, top_k: int, routed_scaling: float = 1.5, renorm_eps: float = 1e-20, pad_id: int = -1,
    num_valid: Tensor | None = None, bias_alt: Tensor | None = None, input_ids: Tensor | None = None,
    alt_token_id: int = -1, numerics: str = "log1p",
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Return the weights and ids of the experts chosen for each token; arguments are those of the contract.

    Source: N2, O04.
    """
    return expert_gate.moe_gate_topk(
        TILES, logits, bias, top_k, routed_scaling, renorm_eps, pad_id, num_valid, bias_alt, input_ids, alt_token_id
    )


def moe_gate_topk_packed(
    logits: Tensor, bias: Tensor, top_k: int, routed_scaling: float = 1.5, renorm_eps: float = 1e-20, pad_id: int = -1,
    num_valid: Tensor | None = None, bias_alt: Tensor | None = None, input_ids: Tensor | None = None,
    alt_token_id: int = -1, numerics: str = "log1p",
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Return what `moe_gate_topk` returns, and the same choice as packed words, written by the same launch.

    Source: N2.
    """
    return expert_gate.moe_gate_topk_packed(
        TILES, logits, bias, top_k, routed_scaling, renorm_eps, pad_id, num_valid, bias_alt, input_ids, alt_token_id
    )


def prepare_moe_gate_topk(device: Any, site: Any, rows: Sequence[int]) -> Callable[..., Any]:
    """Return `moe_gate_topk`, compiled for the site's sizes and dtypes, launched early where that pays."""
    return _prepare(expert_gate.moe_gate_topk, moe_gate_topk, device, site, rows)


def prepare_moe_gate_topk_packed(device: Any, site: Any, rows: Sequence[int]) -> Callable[..., Any]:
    """Return `moe_gate_topk_packed`, prepared as `prepare_moe_gate_topk` does."""
    return _prepare(expert_gate.moe_gate_topk_packed, moe_gate_topk_packed, device, site, rows)


def late_rows(arch: str, experts: int, top_k: int) -> int:
    """Return up to how many rows a router is not to be launched early: 0 for most."""
    found = (late.rows for late in LATE_ROUTERS if (late.arch, late.experts, late.top_k) == (arch, experts, top_k))
    return next(found, 0)


def _prepare(
    body: Callable[..., Any], public: Callable[..., Any], device: Any, site: Any, rows: Sequence[int]
) -> Callable[..., Any]:
    if device.arch.vendor == "cpu":
        return public
    late = late_rows(device.arch.name, site.axes["E"], site.options["top_k"])
    gate = Gate(body, public, replace(TILES, pdl=has_pdl(device)), late)
    for launch in gate.each():
        expert_gate.compile_moe_gate_topk(launch, site, rows)
    return gate


__all__ = [
    "LATE_ROUTERS", "TILES", "Gate", "LateRouter", "late_rows", "moe_gate_topk", "moe_gate_topk_packed",
    "prepare_moe_gate_topk", "prepare_moe_gate_topk_packed",
]  # fmt: skip
