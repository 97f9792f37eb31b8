"""Decoding with DSpark: a drafter proposes, the target verifies, and the output is what the target alone would give.

Nothing is imported until it is asked for, so that reading a policy or a configuration needs no torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dspark_ops.decode.batch import OnResult, OnTokens
    from dspark_ops.decode.drafting import Drafter, DraftRequests, Proposal
    from dspark_ops.decode.loop import generate
    from dspark_ops.decode.metrics import DecodeMetrics
    from dspark_ops.decode.model import Model, load_model
    from dspark_ops.decode.options import DecodeOptions
    from dspark_ops.decode.plain import decode_plain
    from dspark_ops.decode.policy import PrefixPolicy, StaticPolicy, ThresholdPolicy, VerifyPolicy
    from dspark_ops.decode.request import Finish, Generation, Request, Result
    from dspark_ops.decode.sampling import SamplingParams
    from dspark_ops.decode.serving import Service, Update
    from dspark_ops.decode.uniform_policy import UniformPolicy

__all__ = [
    "DecodeMetrics",
    "DecodeOptions",
    "DraftRequests",
    "Drafter",
    "Finish",
    "Generation",
    "Model",
    "OnResult",
    "OnTokens",
    "PrefixPolicy",
    "Proposal",
    "Request",
    "Result",
    "SamplingParams",
    "Service",
    "StaticPolicy",
    "ThresholdPolicy",
    "UniformPolicy",
    "Update",
    "VerifyPolicy",
    "decode_plain",
    "generate",
    "load_model",
]

_HOMES = {
    "batch": ("OnResult", "OnTokens"),
    "drafting": ("DraftRequests", "Drafter", "Proposal"),
    "loop": ("generate",),
    "metrics": ("DecodeMetrics",),
    "model": ("Model", "load_model"),
    "options": ("DecodeOptions",),
    "plain": ("decode_plain",),
    "policy": ("PrefixPolicy", "StaticPolicy", "ThresholdPolicy", "VerifyPolicy"),
    "request": ("Finish", "Generation", "Request", "Result"),
    "sampling": ("SamplingParams",),
    "serving": ("Service", "Update"),
    "uniform_policy": ("UniformPolicy",),
}


def __getattr__(name: str) -> Any:
    for module, names in _HOMES.items():
        if name in names:
            value = globals()[name] = getattr(import_module(f"{__name__}.{module}"), name)
            return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
