"""Plans: which kernel serves each operator, where, why, and what else could have; immutable, with canonical bytes."""

from __future__ import annotations

import hashlib
import importlib
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dspark_ops.api.reason import Reason
from dspark_ops.errors import UnknownOperatorError
from dspark_ops.selection.candidate import Candidate
from dspark_ops.selection.codec import decode, encode, without, without_own
from dspark_ops.selection.device import Device
from dspark_ops.selection.problem import Problem
from dspark_ops.selection.registry import PluginFailure, PluginRecord
from dspark_ops.selection.rows import rows_of
from dspark_ops.selection.settings import Settings
from dspark_ops.suggest import did_you_mean

if TYPE_CHECKING:
    from dspark_ops.binding import BoundOps
    from dspark_ops.binding.torch_library import TorchOps
    from dspark_ops.contracts import Contract

SCHEMA = 3

#: Keys that say where a value came from. Two ranks that read one value from two files have one plan.
_PROVENANCE = ("origin", "origins", "files")

#: Settings whose effect is in the plan already: which device it is for, which plugins were loaded and which were not,
#: how a start treats a lock, a faulty plugin or an untried kernel, and what graphs have ruled out. Two ways to the same
#: choices have one digest.
_EFFECT_IS_ELSEWHERE = {
    "settings": ("simulate", "allow", "deny"),
    "policy": ("plugin_error", "lock", "smoke", "smoke_seconds", "graphs", "rank_mismatch"),
}


@dataclass(frozen=True, slots=True)
class Refusal:
    """A candidate that may not serve, with every reason; `better` if it would have come before the chosen one."""

    candidate: Candidate
    reasons: tuple[Reason, ...]
    better: bool


@dataclass(frozen=True, slots=True)
class Choice:
    """What serves one bucket: row counts for which every candidate has the same verdict.

    Attributes:
        rows: the bucket, see `dspark_ops.selection.rows`.
        kernel: what was chosen.
        standby: what else may serve, in order of preference.
        refused: what may not, in order of preference.
        below: the chosen class is weaker than required, and policy or a pin let it through.
        tie: id of the stand-by that only its name put behind, or empty.
        parts: for a decomposition, the selection of each part, which has one choice each.
        origin: ``lock ...`` or ``measured ...`` if that put it first; empty: the settings and its class did.
    """

    rows: str
    kernel: Candidate
    standby: tuple[Candidate, ...] = ()
    refused: tuple[Refusal, ...] = ()
    below: bool = False
    tie: str = ""
    parts: tuple[Selection, ...] = ()
    origin: str = ""


@dataclass(frozen=True, slots=True)
class Selection:
    """What serves one operator at one place.

    Attributes:
        contract: version of the operator's contract.
        problem: the facts that were decided on.
        choices: one per bucket, by lowest row count.
        small: the contract says that torch operations are good enough.
    """

    contract: int
    problem: Problem
    choices: tuple[Choice, ...]
    small: bool = False

    @property
    def operator(self) -> str:
        """Name of the operator."""
        return self.problem.operator

    @property
    def site(self) -> str:
        """Name of the place."""
        return self.problem.site

    @property
    def by_rows(self) -> dict[int, Choice]:
        """The choice for each row count."""
        return {count: choice for choice in self.choices for count in rows_of(choice.rows)}


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """A frozen plan. Equal inputs give equal plans, equal bytes and equal digests.

    Attributes:
        device: what it is for.
        model: name of the model's shapes.
        rows: the row counts it covers.
        settings: the configuration it follows.
        selections: sorted by operator, then in the order of the contract's sites.
        plugins, failures: what was loaded and what was not.
        layouts: by group of operators that share a layout and whose layout was left to the plan, the one chosen.
    """

    device: Device
    model: str
    rows: str
    settings: Settings
    selections: tuple[Selection, ...]
    plugins: tuple[PluginRecord, ...] = ()
    failures: tuple[PluginFailure, ...] = ()
    layouts: Mapping[str, str] = field(default_factory=dict)
    schema: int = SCHEMA

    @property
    def operators(self) -> tuple[str, ...]:
        """Names of the planned operators."""
        return tuple(dict.fromkeys(selection.operator for selection in self.selections))

    def of(self, operator: str) -> tuple[Selection, ...]:
        """Return the selections of an operator, one per site.

        Raises:
            UnknownOperatorError: the plan has none of this name.
        """
        found = tuple(selection for selection in self.selections if selection.operator == operator)
        if not found:
            known = self.operators
            have = f"it has {', '.join(known)}{did_you_mean(operator, known)}"
            raise UnknownOperatorError(f"no operator {operator!r} in this plan for {self.model}: {have}")
        return found

    @property
    def digest(self) -> str:
        """``sha256:`` and the hash of all that decides what runs.

        Where a setting was written does not enter, nor which of several equal devices this process has.
        """
        data = without(encode(self), _PROVENANCE)
        settings = without_own(data["settings"], _EFFECT_IS_ELSEWHERE["settings"])
        settings["policy"] = without_own(settings["policy"], _EFFECT_IS_ELSEWHERE["policy"])
        device = without_own(data["device"], ("index",))
        text = _canonical({**data, "device": device, "settings": settings})
        return "sha256:" + hashlib.sha256(text.encode()).hexdigest()

    def to_json(self) -> str:
        """Return the canonical JSON text: sorted keys, no spaces, no times. `from_json` reads it back."""
        return _canonical(encode(self))

    @classmethod
    def from_json(cls, text: str) -> Plan:
        """Return the plan that a text holds.

        Raises:
            ValueError: the text is no plan, or one of another schema.
        """
        data = json.loads(text)
        found = data.get("schema") if isinstance(data, dict) else None
        if found != SCHEMA:
            raise ValueError(f"cannot read a plan: wanted schema {SCHEMA}, got {found!r}")
        plan: Plan = decode(cls, data)
        return plan

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the plan as a lock file; a reader sees the old file or the whole new one.

        Named in ``DSPARK_OPS_LOCK`` or ``files.lock``, it holds the next start to the same choices. For all that a plan
        knows, its refused candidates included, see `to_json`.

        Raises:
            OSError: the file cannot be written.
        """
        from dspark_ops.selection.lock import lock_of, write_lock

        write_lock(Path(path), lock_of(self))

    def report(self) -> str:
        """Return a text for people: what serves each operator, and the better candidates that were refused."""
        from dspark_ops.selection.explain import report

        return report(self)

    def explain(self, operator: str) -> str:
        """Return a text for people: an operator's candidates, their verdicts, where each setting came from.

        Raises:
            UnknownOperatorError: the plan has no operator of this name.
        """
        from dspark_ops.selection.explain import explain

        return explain(self, operator)

    def bind(
        self,
        *,
        contracts: Callable[[str], Contract] | None = None,
        check: bool = False,
        replan: Callable[[Plan, Mapping[str, str]], Plan] | None = None,
        agree: Callable[[Mapping[str, str]], Mapping[str, str]] | None = None,
    ) -> BoundOps:
        """Return the chosen callables, imported and prepared; see `dspark_ops.binding.bind`.

        Where ``policy.smoke`` is on, kernels that fail a trial run in another process are quarantined and the plan is
        made again without them: ``ops.plan`` is then the one that is bound.

        Args:
            contracts: returns an operator's contract by name; by default `dspark_ops.contracts.get`.
            check: every operator checks its arguments before it runs, values included, against the contract and against
                the region of the kernel that was chosen for the planned sizes. For tests and debugging: it reads values
                back from the device. Without it a bound operator is the kernel itself.
            replan: returns a plan without the quarantined kernels, by id with what happened; by default it is made from
                the installed plugins for the model of this name.
            agree: gets the kernels that failed in this process and returns those of all ranks; it is called in every
                round, so that ranks plan again together.

        Raises:
            BindingError: a kernel cannot be imported or prepared, its signature is not the contract's, or trial runs
                cannot be held.
            SelectionError: without the quarantined kernels nothing may serve an operator.
            LockError: a quarantined kernel is in a lock that is required.
        """
        # By name, because binding is a layer above: plans are made, read and compared without it.
        binding = importlib.import_module("dspark_ops.binding")
        bound: BoundOps = binding.bind(self, contracts=contracts, check=check, replan=replan, agree=agree)
        return bound

    def register_torch_ops(self, ops: BoundOps | None = None, *, namespace: str = "dspark_ops") -> TorchOps:
        """Return the registration of the bound operators as ``torch.ops.<namespace>.<operator>``.

        For torch.compile and torch.export, to which each is one opaque node; see `dspark_ops.binding.torch_library`.

        Args:
            ops: what `bind` gave; by default the plan is bound.
            namespace: where they are registered. It must not hold the operators of a plan yet.

        Raises:
            BindingError: the namespace is taken, `ops` follow another plan, or the plan cannot be bound.
        """
        library = importlib.import_module("dspark_ops.binding.torch_library")
        registered: TorchOps = library.register_torch_ops(self, ops, namespace=namespace)
        return registered

    def __eq__(self, other: object) -> bool:
        return self.to_json() == other.to_json() if isinstance(other, Plan) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.to_json())


def _canonical(data: Any) -> str:
    return json.dumps(data, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
