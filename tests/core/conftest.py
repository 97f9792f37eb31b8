"""Made-up operators, kernels and devices, so that planning and binding are tested without torch and without plugins."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from dspark_ops._lazy import torch
from dspark_ops.api import Kernel
from dspark_ops.contracts import Argument, Contract, Decomposition, Option, Output, Semantic, Site, model_shapes
from dspark_ops.contracts.exactness import bitwise
from dspark_ops.errors import MissingDependencyError
from dspark_ops.selection.device import Device
from dspark_ops.selection.knowledge import NOTHING, Knowledge
from dspark_ops.selection.plan import Plan
from dspark_ops.selection.planner import make_plan
from dspark_ops.selection.registry import PluginFailure, PluginRecord, RegisteredKernel, Registry
from dspark_ops.selection.settings import OperatorSettings, Policy, Settings

MODULE = "fake_kernels"


def tensor(*shape: int) -> Any:
    """A tensor without storage; where torch is not installed, a value that has all that a bound call looks at."""
    try:
        return torch.empty(shape, device="meta")
    except MissingDependencyError:
        return SimpleNamespace(shape=shape)


def pick(x: Any, top: Any = 1) -> Any:
    return ("core pick", x, top)


def tidy(y: Any) -> Any:
    return ("core tidy", y)


def pick_and_tidy(y: Any) -> Any:
    return ("core pick_and_tidy", y)


def _compose(ops: Any, y: Any) -> Any:
    return (ops.pick(y, 3), ops.tidy(y))


def _contract(name: str, reference: Callable[..., Any], parameters: tuple[Any, ...], **fields: Any) -> Contract:
    values: dict[str, Any] = {
        "summary": f"What {name} gives.",
        "source": "made up",
        "phases": ("verify",),
        "outputs": (Output("output", ("R",), "int64", bitwise()),),
        "rows": "R",
        "cases": lambda scale, seed: iter(()),
        "sites": lambda shapes: (Site("verify", axes={"V": 4096}),),
    }
    return Contract(name=name, reference=reference, parameters=parameters, **{**values, **fields})


PICK = _contract(
    "pick",
    pick,
    (Argument("x", ("R", "V"), ("float32", "bfloat16"), strides="unit_last"), Option("top", "int", 1)),
    sites=lambda shapes: (Site("verify", axes={"V": 4096}), Site("draft", axes={"V": 64}, dtypes={"x": "bfloat16"})),
    semantics=(Semantic("nan", "first", ("first", "ignored")), Semantic("ties", "lowest", ("lowest", "any"))),
)
TIDY = _contract("tidy", tidy, (Argument("y", ("R", "V"), ("float32",)),), small=True)
PICK_AND_TIDY = _contract(
    "pick_and_tidy",
    pick_and_tidy,
    (Argument("y", ("B", "V"), ("float32",)),),
    rows="B",
    sites=lambda shapes: (Site("verify", axes={"V": 4096, "W": 6}),),
    decomposition=Decomposition(("pick", "tidy"), _compose, rows={"pick": "B*W"}),
)


class Fakes:
    """Builders for a world of three operators: `pick` (two sites), the small `tidy`, and `pick_and_tidy` of both."""

    contracts: Mapping[str, Contract] = {item.name: item for item in (PICK, TIDY, PICK_AND_TIDY)}
    cpu = Device.simulate("cpu")
    b300 = Device.simulate("sm_103")
    h200 = Device.simulate("H200")
    mi355x = Device.simulate("MI355X")
    failure = PluginFailure(
        "broken", "dspark-broken", "0.3", "broken.plugin", "import", "OSError: libfoo.so.2", "traceback"
    )
    tensor = staticmethod(tensor)

    def __init__(self, module: ModuleType) -> None:
        self._module = module

    def real(self, device: Device) -> Device:
        """The same device as if it had been probed."""
        return Device(device.arch, device.name, device.features, simulated=False, origins={"arch": "nvml"})

    def function(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Put a function where a kernel's target ``fake_kernels:<name>`` finds it."""
        setattr(self._module, name, function)
        return function

    def kernel(self, op: str = "pick", variant: str = "one", plugin: str = "plug", **fields: Any) -> RegisteredKernel:
        fields.setdefault("target", f"{MODULE}:{variant}")
        return RegisteredKernel(f"{plugin}/{op}/{variant}", plugin, f"dspark-{plugin}", Kernel(op, variant, **fields))

    def registry(self, kernels: Iterable[RegisteredKernel], failures: tuple[PluginFailure, ...] = ()) -> Registry:
        by_operator: dict[str, list[RegisteredKernel]] = {}
        for item in sorted(kernels, key=lambda item: item.id):
            by_operator.setdefault(item.kernel.op, []).append(item)
        records = tuple(
            PluginRecord(
                name, f"dspark-{name}", "1.0", f"{name}.plugin", ">=1,<2", sum(k.plugin == name for k in kernels)
            )
            for name in sorted({item.plugin for item in kernels})
        )
        return Registry({name: tuple(items) for name, items in by_operator.items()}, records, failures)

    def settings(
        self, policy: Policy | None = None, origins: Mapping[str, str] | None = None, **ops: OperatorSettings
    ) -> Settings:
        return Settings(policy or Policy(), ops, origins=dict(origins or {}))

    def plan(
        self,
        *kernels: RegisteredKernel,
        device: Device | None = None,
        rows: Iterable[int] = range(1, 65),
        settings: Settings | None = None,
        operators: tuple[str, ...] | None = ("pick",),
        failures: tuple[PluginFailure, ...] = (),
        packages: Callable[[Any], Any] = lambda package: None,
        registry: Registry | None = None,
        contracts: Mapping[str, Contract] | None = None,
        knowledge: Knowledge = NOTHING,
    ) -> Plan:
        return make_plan(
            device=device or self.b300,
            shapes=model_shapes("deepseek-v4.1-flash/tp4"),
            rows=tuple(rows),
            settings=settings or Settings(),
            registry=registry or self.registry(kernels, failures),
            contracts=contracts or self.contracts,
            operators=operators,
            packages=packages,
            knowledge=knowledge,
        )

    def bind(self, plan: Plan, contracts: Mapping[str, Contract] | None = None) -> Any:
        return plan.bind(contracts=(contracts or self.contracts).__getitem__)


@pytest.fixture
def fakes(monkeypatch: pytest.MonkeyPatch) -> Fakes:
    module = ModuleType(MODULE)
    monkeypatch.setitem(sys.modules, MODULE, module)
    return Fakes(module)
