"""``dspark-ops devices``: what this machine has, where each fact came from, and what can be simulated."""

from __future__ import annotations

from typing import Any

import typer

from dspark_ops.cli._options import JsonOption
from dspark_ops.cli._show import console, memory_text, print_json, table
from dspark_ops.errors import DeviceError
from dspark_ops.selection.catalogue import catalogue
from dspark_ops.selection.device import Device
from dspark_ops.selection.probe import probe_all

_FACTS = ("arch", "name", "features", "units", "memory", "driver", "toolkit", "torch")


def devices(as_json: JsonOption = False) -> None:
    """Show this machine's devices and those to simulate.

    Every fact of a device comes with its origin. Exit code 1 means that a driver answered with an error.
    """
    found: tuple[Device, ...] = ()
    problem = ""
    try:
        found = probe_all()
    except DeviceError as error:
        problem = str(error)
    simulated = [Device.simulate(product.name) for product in catalogue()]
    if as_json:
        print_json(
            {
                "found": [device.to_json() for device in found],
                "problem": problem,
                "catalogue": [
                    {**device.to_json(), "product": product.name, "source": product.source}
                    for product, device in zip(catalogue(), simulated, strict=True)
                ],
            }
        )
    else:
        _print(found, problem, simulated)
    if problem:
        raise typer.Exit(1)


def _print(found: tuple[Device, ...], problem: str, simulated: list[Device]) -> None:
    out = console()
    if problem:
        out.print(f"This machine: {problem}", markup=False)
    for index, device in enumerate(found):
        rows = [(fact, _shown(device, fact), device.origins.get(fact, "")) for fact in _FACTS]
        out.print(table(f"device {index}", ("fact", "value", "from"), rows))
        out.print()
    listed = []
    for product, device in zip(catalogue(), simulated, strict=True):
        facts = [_shown(device, fact) for fact in ("features", "units", "memory")]
        listed.append([product.name, device.arch.name, *facts, product.source])
    out.print(table("can be simulated", ("product", "arch", "features", "#units", "#memory", "source"), listed))


def _shown(device: Device, fact: str) -> str:
    value: Any = getattr(device, fact)
    if fact == "memory":
        return memory_text(value)
    if fact == "arch":
        flags = "".join(f":{name}{sign}" for name, sign in device.arch.flags)
        return f"{device.arch.name}{flags} ({device.arch.vendor}, {device.arch.family})"
    return ", ".join(sorted(value)) or "-" if fact == "features" else str(value) if value else "-"
