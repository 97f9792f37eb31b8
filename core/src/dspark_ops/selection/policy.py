"""The policy in force for one operator on one device: which class is required, and what a weaker one means."""

from __future__ import annotations

from dataclasses import dataclass

from dspark_ops.api.kernel import Evidence, RankClass
from dspark_ops.api.reason import Reason, ReasonCode
from dspark_ops.selection.candidate import Candidate
from dspark_ops.selection.device import Device
from dspark_ops.selection.settings import BUILT_IN, Settings


@dataclass(frozen=True, slots=True)
class OperatorPolicy:
    """What holds for one operator, with the origin of each value.

    Attributes:
        require: the weakest class that may serve it; None admits all.
        require_origin: leaf and origin of `require`.
        fallback: ``fail``, ``warn`` or ``allow``.
        fallback_origin: origin of `fallback`.
        pin: kernel id that must serve it, or None.
        pin_origin: origin of `pin`.
        own_require: `require` was set for this operator by name.
        small: the contract says that torch operations are good enough.
        evidence: the weakest recorded evidence on which a plugin's kernel may serve; None asks for none.
        evidence_origin: origin of `evidence`.
        graphs: only what may be captured in a graph may serve; core's references promise nothing.
        graphs_origin: origin of `graphs`.
    """

    require: RankClass | None
    require_origin: str
    fallback: str
    fallback_origin: str
    pin: str | None
    pin_origin: str
    own_require: bool
    small: bool
    evidence: Evidence | None = None
    evidence_origin: str = ""
    graphs: bool = False
    graphs_origin: str = ""

    def graph_reason(self, candidate: Candidate, graph_safe: bool) -> Reason | None:
        """Return why a candidate is barred where calls are captured in graphs, or None. Parts are judged one by one."""
        if not self.graphs or graph_safe or candidate.rank is RankClass.COMPOSED:
            return None
        hint = 'set policy.graphs = "off" and call it outside of graphs, or use a kernel that promises it'
        return Reason(
            ReasonCode.TRAIT, "graph_safe", "a promise that it may be captured in a graph", "none", hint,
            origin=f"policy.graphs, {self.graphs_origin}",
        )  # fmt: skip

    def unproven(self, candidate: Candidate) -> bool:
        """Whether a plugin's kernel has no record of the evidence that is asked for. Core's own candidates need none.

        What a manifest states without a record does not count: the floor is there because statements can be wrong.
        """
        if self.evidence is None or not candidate.target:
            return False
        recorded = candidate.evidence.order if candidate.origin else 0
        return recorded < self.evidence.order

    def evidence_reason(self, candidate: Candidate) -> Reason | None:
        """Return why a candidate's evidence bars it, or None. Only ``policy.fallback = "fail"`` bars, and no pin."""
        if self.evidence is None or self.fallback != "fail" or candidate.id == self.pin or not self.unproven(candidate):
            return None
        source = f" ({candidate.origin})" if candidate.origin else " by its manifest, without a record"
        got = candidate.evidence.value + source
        return Reason(
            ReasonCode.EVIDENCE, "evidence", f"a record of {self.evidence.value} or better", got,
            hint="run  dspark-ops check --write FILE  on this device and name FILE in files.evidence",
            origin=f"policy.evidence, {self.evidence_origin}; policy.fallback = fail, {self.fallback_origin}",
        )  # fmt: skip

    def is_weaker(self, candidate: Candidate) -> bool:
        """Whether a candidate is of a weaker class than required.

        A decomposition is judged by its parts, which are planned under their own policy; only ``fused`` refuses it as
        such. A small operator's reference is good enough unless the class was set for that operator.
        """
        if self.require is None or candidate.rank.order <= self.require.order:
            return False
        if candidate.rank is RankClass.COMPOSED and self.require is not RankClass.FUSED:
            return False
        return self.own_require or not (self.small and candidate.rank is RankClass.REFERENCE)

    def class_reason(self, operator: str, candidate: Candidate) -> Reason | None:
        """Return why a candidate's class bars it, or None.

        Only ``policy.fallback = "fail"`` bars any. A pin overrides the general requirement, not one that was set for
        the same operator.
        """
        pinned = candidate.id == self.pin and not self.own_require
        if self.require is None or self.fallback != "fail" or pinned or not self.is_weaker(candidate):
            return None
        return Reason(
            ReasonCode.CLASS, "class", f"{self.require.value} or better", candidate.rank.value,
            hint=f'set policy.fallback = "allow", or ops.{operator}.require_class = "{candidate.rank.value}"',
            origin=f"{self.require_origin}; policy.fallback = fail, {self.fallback_origin}",
        )  # fmt: skip


def operator_policy(settings: Settings, device: Device, operator: str, *, small: bool) -> OperatorPolicy:
    """Return the policy for an operator, with the device's defaults where nothing is set."""
    own, policy = settings.of(operator), settings.policy
    strict = device.is_accelerator and not device.simulated
    kind = "cpu" if not device.is_accelerator else "simulated accelerator" if device.simulated else "real accelerator"
    default_origin = f"{BUILT_IN} for a {kind}"
    require: RankClass | None
    if own.require_class is not None:
        leaf = f"ops.{operator}.require_class"
        require, require_origin = own.require_class, f"{leaf}, {settings.origin(leaf)}"
    elif policy.require_class is not None:
        require, leaf = policy.require_class, "policy.require_class"
        require_origin = f"{leaf}, {settings.origin(leaf)}"
    else:
        require = RankClass.PORTABLE if device.is_accelerator else None
        require_origin = f"policy.require_class, {default_origin}"
    return OperatorPolicy(
        require=require,
        require_origin=require_origin,
        fallback=policy.fallback or ("fail" if strict else "allow"),
        fallback_origin=settings.origin("policy.fallback") if policy.fallback else default_origin,
        pin=own.pin,
        pin_origin=settings.origin(f"ops.{operator}.pin"),
        own_require=own.require_class is not None,
        small=small,
        evidence=policy.evidence,
        evidence_origin=settings.origin("policy.evidence"),
        graphs=policy.graphs == "on" and device.is_accelerator,
        graphs_origin=settings.origin("policy.graphs"),
    )
