"""The registry: an immutable snapshot of what the loaded plugins offer and of what failed to load."""

from __future__ import annotations

from dataclasses import dataclass

from dspark_ops.api.kernel import Kernel


@dataclass(frozen=True, slots=True)
class PluginRecord:
    """One plugin that was loaded.

    Attributes:
        name: name in its manifest.
        distribution: distribution that provides it, and its `version`.
        entry_point: ``module`` that was imported.
        api: the range of interface versions it declares.
        kernels: how many kernels it registered.
        docs: address of its documentation.
        modules: top-level modules of its code: of its entry point and of its kernels' targets.
    """

    name: str
    distribution: str
    version: str
    entry_point: str
    api: str
    kernels: int
    docs: str = ""
    modules: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PluginFailure:
    """One plugin that was found and not loaded, with its full cause.

    Attributes:
        name: entry-point name (or manifest name where that is known).
        distribution: distribution that provides it, and its `version`.
        entry_point: the entry point's value.
        stage: where it failed: ``identity``, ``api``, ``import``, ``hook``, ``manifest``, ``blocked`` or ``duplicate``.
        cause: one line: what went wrong.
        detail: the chained traceback, or empty.
    """

    name: str
    distribution: str
    version: str
    entry_point: str
    stage: str
    cause: str
    detail: str = ""

    def __str__(self) -> str:
        source = f"{self.distribution} {self.version}, {self.entry_point}"
        return f"plugin {self.name} ({source}) not loaded at {self.stage}: {self.cause}"


@dataclass(frozen=True, slots=True)
class RegisteredKernel:
    """A kernel with its full id ``plugin/operator/variant``."""

    id: str
    plugin: str
    distribution: str
    kernel: Kernel


@dataclass(frozen=True, slots=True)
class Registry:
    """Everything that planning may choose from.

    Attributes:
        kernels: by operator name, sorted by id: the order of registration is not kept anywhere.
        plugins: loaded plugins, sorted by name.
        failures: plugins that failed, sorted by name and distribution.
    """

    kernels: dict[str, tuple[RegisteredKernel, ...]]
    plugins: tuple[PluginRecord, ...] = ()
    failures: tuple[PluginFailure, ...] = ()

    def of(self, operator: str) -> tuple[RegisteredKernel, ...]:
        """Return the kernels registered for an operator."""
        return self.kernels.get(operator, ())
