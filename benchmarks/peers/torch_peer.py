"""The contract's reference, run by torch one operation after the other: what one has before writing a kernel."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from dspark_ops.bench.peers import Adapter, Peer
from dspark_ops.contracts.contract import Contract


def peer() -> Peer:
    """Return torch's eager mode."""
    return Peer("torch", f"torch {torch.__version__} eager", _adapter)


def _adapter(contract: Contract) -> Adapter:
    def prepare(inputs: Mapping[str, Any]) -> Callable[[], Any]:
        arguments = [inputs[parameter.name] for parameter in contract.parameters]
        return lambda: contract.reference(*arguments)

    return Adapter(prepare)
