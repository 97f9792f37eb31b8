"""Kernels: one way to compute one operator, with everything that decides where it may run."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from dspark_ops.api.arch import ArchSet
from dspark_ops.api.region import Constraint

_TARGET: Final = re.compile(r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$")
_NAME: Final = re.compile(r"^[a-z][a-z0-9_]*$")


class RankClass(str, Enum):
    """What kind of implementation a kernel is; the first of two eligible kernels in this order wins.

    A kernel that an adapter calls in another package has the class that it would have if it were the plugin's own; that
    nobody has run it is said by its evidence, which decides within a class.
    """

    FUSED = "fused"
    PORTABLE = "portable"
    COMPOSED = "composed"
    REFERENCE = "reference"

    @property
    def order(self) -> int:
        """Position in the order of preference, 0 first."""
        return _RANKS[self]


class Evidence(str, Enum):
    """The highest level that a kernel has reached on an architecture, weakest first."""

    DECLARED = "declared"
    COMPILED = "compiled"
    INTERPRETED = "interpreted"
    CONFORMANT = "conformant"
    MEASURED = "measured"

    @property
    def order(self) -> int:
        """Position from the weakest, 0, to the strongest."""
        return _LEVELS[self]


# Planning asks for these positions by the thousand.
_RANKS: Final = {rank: position for position, rank in enumerate(RankClass)}
_LEVELS: Final = {level: position for position, level in enumerate(Evidence)}


@dataclass(frozen=True, slots=True)
class Traits:
    """What a kernel promises beyond its numbers.

    Attributes:
        graph_safe: may be captured in a CUDA or HIP graph after `prepare`: no host sync, no allocation but outputs.
        deterministic: equal inputs give equal bits from run to run.
        batch_invariant: a row's result does not depend on the other rows.
        pdl: uses programmatic dependent launch where the device has the feature ``pdl``.
        nan, ties, padding: the rule it follows for NaN, for equal keys and for padded rows, where the contract names
            such a rule. Empty means the contract's own default. A caller that asks for another rule refuses the kernel.
    """

    graph_safe: bool = False
    deterministic: bool = True
    batch_invariant: bool = False
    pdl: bool = False
    nan: str = ""
    ties: str = ""
    padding: str = ""


@dataclass(frozen=True, slots=True)
class Package:
    """A Python package that a kernel needs.

    Attributes:
        module: the module that is imported.
        distribution: the distribution that must provide it; several distributions may ship a module of one name. Where
            any of several will do, their names joined by ``|``, such as ``triton|pytorch-triton-rocm``.
        versions: a version specifier such as ``>=0.6.18,<0.8``; empty accepts all.
        attributes: attributes of the module that prove it is the right one, such as ``("get_mla_metadata",)``.
        install: the line that installs it, shown as the hint.
    """

    module: str
    distribution: str
    versions: str = ""
    attributes: tuple[str, ...] = ()
    install: str = ""


@dataclass(frozen=True, slots=True)
class Kernel:
    """One implementation of one operator.

    The id is ``plugin/operator/variant``; the plugin name is filled in by the registry from the manifest.

    Attributes:
        op: name of the operator's contract.
        variant: a name for this implementation, unique within plugin and operator.
        target: ``module:attribute`` of the callable, imported only when the kernel is chosen. Its signature is the
            contract's.
        arch: the architectures it accepts; None means any device, the CPU included.
        region: constraints that must all hold. Groups made by helpers such as `contiguous` may be listed as they are.
        rank: what kind of implementation it is.
        traits: what it promises beyond numbers.
        evidence: the highest level reached, per architecture name; architectures not listed are ``declared``.
        features: device features it needs, such as ``pdl``.
        packages: Python packages it needs.
        prepare: ``module:attribute`` of a callable ``prepare(device, problem, rows)`` that compiles and allocates ahead
            of the first call, or None. It is called once per place of the model, with the row counts planned there, and
            returns the callable to bind there (with the contract's signature), or None to bind `target`. What a kernel
            must own between calls, such as counters, lives in that callable, never in a module.
        contract_versions: versions of the contract it implements.
        note: one sentence for people: launches, bytes, known limits.
    """

    op: str
    variant: str
    target: str
    arch: ArchSet | None = None
    region: Sequence[Constraint | tuple[Constraint, ...]] = ()
    rank: RankClass = RankClass.PORTABLE
    traits: Traits = field(default_factory=Traits)
    evidence: tuple[tuple[str, Evidence], ...] = ()
    features: tuple[str, ...] = ()
    packages: tuple[Package, ...] = ()
    prepare: str | None = None
    contract_versions: tuple[int, ...] = (1,)
    note: str = ""

    def __post_init__(self) -> None:
        for what, name in (("operator", self.op), ("variant", self.variant)):
            if not _NAME.match(name):
                raise ValueError(f"kernel {self.op}/{self.variant}: {what} name {name!r} must match {_NAME.pattern}")
        for target in filter(None, (self.target, self.prepare)):
            if not _TARGET.match(target):
                raise ValueError(
                    f"kernel {self.op}/{self.variant}: target {target!r} is not of the form 'module:attribute'"
                )
        object.__setattr__(self, "region", tuple(_flatten(self.region)))

    def evidence_on(self, arch_name: str) -> Evidence:
        """Return the highest level of evidence that this kernel has on an architecture."""
        return dict(self.evidence).get(arch_name, Evidence.DECLARED)


def _flatten(region: Iterable[Constraint | tuple[Constraint, ...]]) -> Iterable[Constraint]:
    for item in region:
        if isinstance(item, Constraint):
            yield item
        elif isinstance(item, tuple):
            yield from _flatten(item)
        else:
            raise TypeError(f"a region lists constraints, got {type(item).__name__}: {item!r}")
