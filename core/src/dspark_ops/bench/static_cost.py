"""What a call costs on a device that need not be present: its launches, and the bytes that it has to move."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from dspark_ops._lazy import torch
from dspark_ops.bench.floors import bytes_moved
from dspark_ops.bench.inputs import Place, bench_inputs
from dspark_ops.conformance.numbers import reference_outputs
from dspark_ops.conformance.prepared import launches_of_call
from dspark_ops.contracts.contract import Contract, Site
from dspark_ops.selection.device import Device

__all__ = ["StaticCall"]


@dataclass(frozen=True)
class StaticCall:
    """One call of an operator at a model's sizes, which is looked at and not run.

    Args:
        contract: the operator.
        site: the place of the model.
        rows: size of the contract's rows axis.
    """

    contract: Contract
    site: Site
    rows: int

    @cached_property
    def inputs(self) -> dict[str, Any]:
        """Parameters by name, those of a measured call, in host memory."""
        return bench_inputs(Place(self.contract, self.site, self.rows, torch.Generator().manual_seed(0)))

    @cached_property
    def bytes(self) -> int:
        """The fewest bytes that it moves, as the floors of measured calls count them; runs the reference once."""
        return bytes_moved(self.contract, self.inputs, reference_outputs(self.contract, self.inputs))

    def cost(self, function: Callable[..., Any], device: Device) -> dict[str, int]:
        """Return the launches of a kernel's call, the programs of the largest one, and the bytes.

        Args:
            function: the kernel, or what its preparation returned.
            device: the planned device.
        """
        launches = launches_of_call(function, device, self.inputs)
        programs = 0
        for launch in launches:
            count = 1
            for size in launch.grid:
                count *= size
            programs = max(programs, count)
        return {"launches": len(launches), "programs": programs, "bytes": self.bytes}
