"""The public functions: they fill in what the caller left out and hand over to the layers below."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from dspark_ops import contracts
from dspark_ops.config import load_settings
from dspark_ops.config.environment import triton_interprets
from dspark_ops.contracts import ModelShapes
from dspark_ops.errors import ModelError, SelectionError, SelectionWarning
from dspark_ops.selection.device import Device
from dspark_ops.selection.explain import below_required
from dspark_ops.selection.named_model import named_shapes
from dspark_ops.selection.plan import Plan
from dspark_ops.selection.registry import Registry
from dspark_ops.selection.rows import row_counts
from dspark_ops.selection.settings import Settings
from dspark_ops.selection.start import Purpose, Started, start


def plan(
    *,
    device: Device | None = None,
    model: str | ModelShapes = "deepseek-v4.1-flash",
    rows: Iterable[int] = range(1, 65),
    config: str | os.PathLike[str] | Mapping[str, Any] | Settings | None = None,
    registry: Registry | None = None,
    operators: Sequence[str] | None = None,
    quarantined: Mapping[str, str] | None = None,
    graph: bool = False,
) -> Plan:
    """Return the frozen plan: one kernel per operator, site and bucket of row counts, with the reasons.

    Args:
        device: what to plan for; by default the configured simulated device, or else the one of this machine.
        model: name of a known model, such as ``deepseek-v4.1-flash/tp4``, or a directory that holds a config.json, with
            ``/tpN`` behind either for one of N ranks; or the sizes themselves.
        rows: every row count that an operator will be called with.
        config: a file, or tables as in the file, merged with the environment and the default files; or complete
            `Settings`, taken as they are.
        registry: what may be chosen from; by default what the installed plugins offer.
        operators: names to plan; by default every operator that the model calls.
        quarantined: kernels that failed a trial run, by id with what happened: what ``plan.bind(replan=...)`` is given.
        graph: calls will be captured in CUDA or HIP graphs: as ``policy.graphs = "on"``.

    Raises:
        SelectionError: a pinned kernel does not exist or may not serve, or nothing may serve an operator.
        ConfigError: the configuration is wrong.
        ModelError: the model is unknown, or its config.json states too little.
        UnknownOperatorError: `operators` names one that does not exist.
        DeviceError: this machine's device cannot be probed.
        LockError: the lock file is damaged, of another environment, or does not describe the plan and is required.

    Warns:
        SelectionWarning: an operator is served by a weaker class than required, and ``policy.fallback = "warn"``.
        LockWarning: the lock file does not describe the plan in every point, and ``policy.lock = "prefer"``.
    """
    return started(
        device=device,
        model=model,
        rows=rows,
        config=config,
        registry=registry,
        operators=operators,
        purpose=Purpose(quarantined=dict(quarantined)) if quarantined else None,
        graph=graph,
    ).plan


def started(
    *,
    device: Device | None = None,
    model: str | ModelShapes = "deepseek-v4.1-flash",
    rows: Iterable[int] = range(1, 65),
    config: str | os.PathLike[str] | Mapping[str, Any] | Settings | None = None,
    registry: Registry | None = None,
    operators: Sequence[str] | None = None,
    purpose: Purpose | None = None,
    graph: bool = False,
) -> Started:
    """Return what `plan` returns, with the lock that it was held against.

    Args:
        device: as for `plan`, like the others here.
        model: see there.
        rows: see there.
        config: see there.
        registry: see there.
        operators: see there.
        purpose: what the plan is made for, where that is not to run.
        graph: see there.
    """
    settings = load_settings(config)
    if graph and settings.policy.graphs != "on":
        origins = {**settings.origins, "policy.graphs": "argument graph"}
        settings = replace(settings, policy=replace(settings.policy, graphs="on"), origins=origins)
    if not isinstance(model, (str, ModelShapes)):
        raise ModelError(
            f"model: wanted a name, a directory with a config.json, or ModelShapes, got {type(model).__name__}; "
            f"ModelShapes.from_config makes them of a config.json's values"
        )
    shapes = model if isinstance(model, ModelShapes) else named_shapes(model)
    if registry is None:
        from dspark_ops.selection.discovery import discover

        registry = discover(settings)
    if device is None:
        device = Device.simulate(settings.simulate) if settings.simulate else probe()
    for name in operators or ():
        if not contracts.get(name).sites(shapes):
            raise SelectionError(f"operator {name} has no place in model {shapes.name}: leave it out of operators")
    made = start(
        device=device,
        shapes=shapes,
        rows=row_counts(rows),
        settings=settings,
        registry=registry,
        operators=operators,
        purpose=purpose,
    )
    if settings.policy.fallback == "warn":
        for line in below_required(made.plan):
            warnings.warn(line, SelectionWarning, stacklevel=3)
    return made


def probe(which: int | None = None) -> Device:
    """Return what is known of this machine's device, without creating a device context.

    A CPU has the feature ``triton_interpreter`` where Triton's own variable ``TRITON_INTERPRET`` is set: kernels that
    need it are for tests, a thousand times slower than torch.

    Args:
        which: index of the device; needed only where several differ.

    Raises:
        DeviceError: it cannot be probed, or several differ and none is named.
    """
    from dspark_ops.selection.probe import probe as probe_device

    device = probe_device(which)
    if device.is_accelerator or not triton_interprets(os.environ):
        return device
    features = device.features | {"triton_interpreter"}
    origin = f"{device.origins.get('features', 'probe')}, and environment TRITON_INTERPRET"
    return replace(device, features=features, origins={**device.origins, "features": origin})
