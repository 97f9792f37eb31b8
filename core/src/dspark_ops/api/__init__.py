"""All that a plugin may import from dspark-ops. Nothing here imports torch."""

from __future__ import annotations

from dspark_ops.api.arch import Arch, ArchSet, any_gpu, any_of, exact, family
from dspark_ops.api.hooks import hookimpl, hookspec
from dspark_ops.api.kernel import Evidence, Kernel, Package, RankClass, Traits
from dspark_ops.api.manifest import Manifest
from dspark_ops.api.reason import Eligible, Ineligible, Reason, ReasonCode, Verdict
from dspark_ops.api.recorded import with_recorded_evidence
from dspark_ops.api.region import Constraint, axis, contiguous, dtype, elements, layout, option, unit_last_stride
from dspark_ops.api.version import API_VERSION, ENTRY_POINT_GROUP

__all__ = [
    "API_VERSION",
    "ENTRY_POINT_GROUP",
    "Arch",
    "ArchSet",
    "Constraint",
    "Eligible",
    "Evidence",
    "Ineligible",
    "Kernel",
    "Manifest",
    "Package",
    "RankClass",
    "Reason",
    "ReasonCode",
    "Traits",
    "Verdict",
    "any_gpu",
    "any_of",
    "axis",
    "contiguous",
    "dtype",
    "elements",
    "exact",
    "family",
    "hookimpl",
    "hookspec",
    "layout",
    "option",
    "unit_last_stride",
    "with_recorded_evidence",
]
