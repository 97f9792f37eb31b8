"""Candidates: everything that could serve an operator, the plugins' kernels and core's own two."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from dspark_ops.api.kernel import Evidence, RankClass
from dspark_ops.selection.registry import RegisteredKernel

#: First part of the ids of core's own candidates.
CORE: Final = "core"


@dataclass(frozen=True, slots=True)
class Candidate:
    """One candidate as a plan records it.

    Attributes:
        id: ``plugin/operator/variant``; core's own are ``core/<op>/reference`` and ``core/<op>/composed``.
        rank: its class.
        evidence: the highest level it has reached on the plan's architecture.
        target: ``module:attribute`` of the callable; empty for core's own, which the contract holds.
        prepare: ``module:attribute`` of its preparation, or empty.
        origin: the record behind the evidence; empty where it is what the manifest states.
    """

    id: str
    rank: RankClass
    evidence: Evidence
    target: str = ""
    prepare: str = ""
    origin: str = ""


def kernel_candidate(registered: RegisteredKernel, arch: str) -> Candidate:
    """Return the candidate that a registered kernel is on an architecture."""
    kernel = registered.kernel
    return Candidate(registered.id, kernel.rank, kernel.evidence_on(arch), kernel.target, kernel.prepare or "")


def reference_candidate(operator: str, arch: str) -> Candidate:
    """Return the contract's torch reference: the standard by definition, but checked on the CPU only."""
    evidence = Evidence.CONFORMANT if arch == "cpu" else Evidence.DECLARED
    return Candidate(f"{CORE}/{operator}/reference", RankClass.REFERENCE, evidence)


def composed_candidate(operator: str, parts: Sequence[Evidence]) -> Candidate:
    """Return the decomposition of a fused operator; it is as well proven as its weakest part."""
    evidence = min(parts, key=lambda level: level.order, default=Evidence.DECLARED)
    return Candidate(f"{CORE}/{operator}/composed", RankClass.COMPOSED, evidence)
