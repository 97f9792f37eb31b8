"""Settings: the part of the configuration that decides a plan, as plain frozen values with the origin of each leaf."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from dspark_ops.api.kernel import Evidence, RankClass

BUILT_IN = "built-in"


@dataclass(frozen=True, slots=True)
class OperatorSettings:
    """What the configuration says of one operator.

    Attributes:
        pin: kernel id that must serve it; an ineligible pin is an error.
        deny: globs over kernel ids that may not serve it.
        order: globs over kernel ids in order of preference; kernels that match none are not used. Empty: no order.
        require_class: the weakest class that may serve it; None takes the policy's.
    """

    pin: str | None = None
    deny: tuple[str, ...] = ()
    order: tuple[str, ...] = ()
    require_class: RankClass | None = None


@dataclass(frozen=True, slots=True)
class Policy:
    """How strict planning is. None means: the default for the device (see design, section 5).

    Attributes:
        fallback: ``fail``, ``warn`` or ``allow``: what happens when an operator gets a class weaker than required.
        require_class: the weakest class that may serve an operator.
        plugin_error: ``fail`` or ``warn``: what a plugin that does not load means.
        lock: ``off``, ``prefer`` or ``require``: what a lock file means. None: ``prefer`` if one is named, or ``off``.
        evidence: the weakest recorded evidence on which a plugin's kernel may serve; None asks for none.
        smoke: ``on`` or ``off``: whether binding runs every chosen kernel once in another process first.
        smoke_seconds: how long one kernel may take there, its compilation included.
        graphs: ``on`` or ``off``: whether kernels on a GPU must promise that they may be captured in a graph.
        rank_mismatch: ``fail`` or ``leader``: whether ranks whose plans differ stop, or run the plan of rank 0.
    """

    fallback: str | None = None
    require_class: RankClass | None = None
    plugin_error: str = "warn"
    lock: str | None = None
    evidence: Evidence | None = None
    smoke: str = "off"
    smoke_seconds: int = 120
    graphs: str = "off"
    rank_mismatch: str = "fail"


@dataclass(frozen=True, slots=True)
class Files:
    """Files that planning reads beside the configuration. Their contents decide, their places do not.

    Attributes:
        lock: the lock file; None: ``dspark-ops.lock`` in the working directory, where the policy asks for one.
        evidence: records that ``check``, the compile test and ``tune`` wrote.
        known_bad: faults of kernels, beside those that core knows of.
        measured: the table that ``tune`` wrote; read where a lock is written, never at a start.
    """

    lock: str | None = None
    evidence: tuple[str, ...] = ()
    known_bad: tuple[str, ...] = ()
    measured: str | None = None


@dataclass(frozen=True, slots=True)
class Settings:
    """All settings that planning reads.

    Attributes:
        policy: strictness.
        operators: settings by operator name.
        allow: names of plugins that may load; None allows all.
        deny: names of plugins that may not.
        simulate: catalogue name of the device to plan for when none is named; None plans for the probed one.
        files: what else is read.
        layouts: for a shared layout, such as ``kv_page``, the ones that the caller can make; the plan picks one for all
            operators that share it. One that is not named here is what the model's sites say.
        origins: dotted leaf name, such as ``ops.argmax_rows.pin``, to where its value came from (``dspark-ops.toml:4``,
            ``environment DSPARK_OPS_PLUGINS``, ``argument``). A leaf that is absent here has its built-in value.
    """

    policy: Policy = field(default_factory=Policy)
    operators: Mapping[str, OperatorSettings] = field(default_factory=dict)
    allow: tuple[str, ...] | None = None
    deny: tuple[str, ...] = ()
    simulate: str | None = None
    files: Files = field(default_factory=Files)
    layouts: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    origins: Mapping[str, str] = field(default_factory=dict)

    def of(self, operator: str) -> OperatorSettings:
        """Return the settings of an operator."""
        return self.operators.get(operator, OperatorSettings())

    def origin(self, leaf: str) -> str:
        """Return where a leaf's value came from."""
        return self.origins.get(leaf, BUILT_IN)

    def to_json(self) -> dict[str, Any]:
        """Return the settings that a plan records; origins are left out, since they do not change what is chosen."""
        return {
            "policy": {
                "fallback": self.policy.fallback,
                "require_class": self.policy.require_class.value if self.policy.require_class else None,
            },
            "ops": {
                name: {
                    "pin": entry.pin,
                    "deny": list(entry.deny),
                    "order": list(entry.order),
                    "require_class": entry.require_class.value if entry.require_class else None,
                }
                for name, entry in sorted(self.operators.items())
            },
        }
