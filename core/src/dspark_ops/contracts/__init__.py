"""The operators: what each one means. Reading a contract needs no torch; calling its reference does.

A new operator goes into the module of its family (or a new module, named in `_FAMILIES`), as a reference function and a
`Contract` that the module lists in ``CONTRACTS``.
"""

from __future__ import annotations

import importlib
from functools import cache
from typing import Final

from dspark_ops.contracts.contract import Argument, Case, Contract, Decomposition, Option, Output, Semantic, Site
from dspark_ops.contracts.model_shapes import ModelShapes, model_shapes
from dspark_ops.errors import UnknownOperatorError
from dspark_ops.suggest import did_you_mean

__all__ = [
    "Argument",
    "Case",
    "Contract",
    "Decomposition",
    "ModelShapes",
    "Option",
    "Output",
    "Semantic",
    "Site",
    "all_contracts",
    "family_of",
    "get",
    "model_shapes",
    "names",
]

_FAMILIES: Final = (
    "argmax",
    "vocab_parallel",
    "markov",
    "confidence",
    "schedule",
    "inputs",
    "accept",
    "forced",
    "mhc",
    "accept_sampled",
    "rope",
    "moe",
    "moe_ids",
    "moe_sort",
    "moe_reduce",
    "activation",
    "kv_store",
    "attention",
    "compress",
    "engram",
    "quantize",
    "index_store",
    "rope_tail",
    "mhc_fused",
    "projection",
    "mla_schedule",
    "varctx",
    "candidates",
    "index_select",
    "index_scores",
    "paged_logits",
)


@cache
def all_contracts() -> dict[str, Contract]:
    """Return every contract by name, in the order of the families."""
    contracts: dict[str, Contract] = {}
    for family in _FAMILIES:
        for contract in importlib.import_module(f"{__name__}.{family}").CONTRACTS:
            if contract.name in contracts:
                raise ValueError(f"two contracts are named {contract.name!r}")
            contracts[contract.name] = contract
    return contracts


def family_of(name: str) -> str:
    """Return the module of this package that holds an operator's contract.

    Raises:
        UnknownOperatorError: no operator has this name.
    """
    contract = get(name)
    return next(item for item in _FAMILIES if contract in importlib.import_module(f"{__name__}.{item}").CONTRACTS)


def names() -> tuple[str, ...]:
    """Return the names of all operators."""
    return tuple(all_contracts())


def get(name: str) -> Contract:
    """Return the contract of an operator.

    Raises:
        UnknownOperatorError: no operator has this name.
    """
    try:
        return all_contracts()[name]
    except KeyError:
        raise UnknownOperatorError(f"unknown operator {name!r}{did_you_mean(name, names())}") from None
