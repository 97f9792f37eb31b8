"""``torch.compile`` of the contract's reference, with the sizes of the call: what one has without writing a kernel."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from dspark_ops.bench.peers import Adapter, Peer
from dspark_ops.contracts.contract import Contract


def peer() -> Peer:
    """Return torch's compiler."""
    return Peer("compile", f"torch {torch.__version__} compile", _adapter)


def _adapter(contract: Contract) -> Adapter:
    compiled: list[Callable[..., Any]] = []

    def prepare(inputs: Mapping[str, Any]) -> Callable[[], Any]:
        arguments = [inputs[parameter.name] for parameter in contract.parameters]
        if not compiled:
            # Graphs of an operator's earlier row counts would make the next ones dynamic.
            torch._dynamo.reset()
            compiled.append(torch.compile(contract.reference, dynamic=False))
        call = compiled[0]
        return lambda: call(*arguments)

    return Adapter(prepare)
