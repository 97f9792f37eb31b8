"""Layouts that several operators share: one writes the bytes that another reads, so all of them must agree.

A group names the operators and which of their arguments and options say the layout. What a model's sites say holds
unless the configuration opens a group by naming the layouts that the caller can make; the plan then picks one for all.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from dspark_ops.contracts.contract import Contract
from dspark_ops.contracts.index_layouts import INDEX_LAYOUTS
from dspark_ops.contracts.layouts import KV_LAYOUTS
from dspark_ops.contracts.scale_layouts import SCALE_LAYOUTS

__all__ = ["SHARED_LAYOUTS", "SharedLayout", "Sharer"]


@dataclass(frozen=True, slots=True)
class Sharer:
    """One operator that writes or reads a shared layout.

    Attributes:
        operator: its name.
        writes: it makes the bytes. Every writer must take the chosen layout; of the readers one that takes it is
            enough, since an engine calls the reader that fits.
        arguments: the arguments that are in the layout.
        option: the option that names the layout, or empty.
        fixed: the only layout that the operator knows, where no argument and no option says it.
    """

    operator: str
    writes: bool = False
    arguments: tuple[str, ...] = ()
    option: str = ""
    fixed: str = ""

    def admits(self, contract: Contract, token: str) -> bool:
        """Whether the operator's contract knows the layout."""
        if self.fixed:
            return token == self.fixed
        layouts = [argument.layouts for argument in contract.arguments if argument.name in self.arguments]
        choices = [option.choices for option in contract.options if option.name == self.option]
        return all(token in names for names in (*layouts, *choices))


@dataclass(frozen=True, slots=True)
class SharedLayout:
    """A layout that operators share.

    Attributes:
        name: how the configuration and the plan call it.
        what: what is laid out, for people.
        tokens: every layout that there is.
        sharers: the operators.
        source: the section that states who shares it.
    """

    name: str
    what: str
    tokens: tuple[str, ...]
    sharers: tuple[Sharer, ...]
    source: str


SHARED_LAYOUTS: Final[Mapping[str, SharedLayout]] = {
    group.name: group
    for group in (
        SharedLayout(
            "kv_page",
            "pages of latent KV: both stores write what the attention reads",
            KV_LAYOUTS,
            (
                Sharer("k_norm_rope_store", True, ("cache",), "layout"),
                Sharer("compress_c1", True, ("cache",), "layout"),
                Sharer("compress_c2", True, ("cache",), "layout"),
                Sharer("sparse_mla_decode", False, ("cache", "extra_cache"), "layout"),
            ),
            "N7.1, N8, N appendix A",
        ),
        SharedLayout(
            "index_k_page",
            "pages of index keys: the store writes what one of two logits operators reads",
            INDEX_LAYOUTS,
            (
                Sharer("index_k_store", True, ("cache",), "layout"),
                Sharer("index_scores", False, ("cache",), "layout"),
                Sharer("paged_mqa_logits_fp4", False, ("kv", "kv_scale")),
            ),
            "N8.4, A1, A17b",
        ),
        # The readers are matrix products, which are the engine's own. That of silu_mul_clamp_mxfp8 reads other scales.
        SharedLayout(
            "mxfp8_scales",
            "scale bytes of activations: every producer writes what the matrix products read",
            tuple(SCALE_LAYOUTS),
            (
                Sharer("mxfp8_quantize", True, (), "layout"),
                Sharer("mhc_combine_norm_mxfp8", True, fixed="sf_128x4"),
                Sharer("rope_wo_a_mxfp8", True, fixed="sf_128x4"),
            ),
            "N12, N3.4, N5",
        ),
    )
}
