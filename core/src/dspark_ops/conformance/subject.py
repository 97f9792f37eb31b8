"""A kernel under test: what it is asked to do here, where its region ends, and the callable that would be bound."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from dspark_ops.api.reason import Reason
from dspark_ops.binding.facts import facts_of, rows_of_inputs
from dspark_ops.binding.targets import check_signature, resolve
from dspark_ops.contracts.contract import Contract
from dspark_ops.errors import BindingError
from dspark_ops.selection.candidate import kernel_candidate
from dspark_ops.selection.device import Device
from dspark_ops.selection.evaluate import Question, evaluation
from dspark_ops.selection.policy import operator_policy
from dspark_ops.selection.problem import Problem
from dspark_ops.selection.registry import RegisteredKernel
from dspark_ops.selection.settings import Policy, Settings

__all__ = ["Subject"]

# Classes are a matter of the user's policy, not of the kernel.
_SETTINGS = Settings(policy=Policy(fallback="allow"))


@dataclass(frozen=True, slots=True)
class Subject:
    """One kernel on one device.

    Attributes:
        registered: the kernel with its id.
        contract: what it claims to be.
        device: what its preparation is told; the CPU's where Triton's interpreter stands in for its device.
        place: torch device on which it runs; empty where it cannot run here.
        interpreted: it runs in Triton's interpreter.
        why_not: why it cannot run here, or empty.
    """

    registered: RegisteredKernel
    contract: Contract
    device: Device
    place: str = ""
    interpreted: bool = False
    why_not: str = ""
    _bound: dict[Any, Callable[..., Any]] = field(default_factory=dict)

    @property
    def id(self) -> str:
        """The kernel's id."""
        return self.registered.id

    @property
    def rules(self) -> dict[str, str]:
        """The semantic rules that it follows where they are not the contract's own choices."""
        traits = self.registered.kernel.traits
        stated = {semantic.name: getattr(traits, semantic.name, "") for semantic in self.contract.semantics}
        defaults = {semantic.name: semantic.default for semantic in self.contract.semantics}
        return {name: rule for name, rule in stated.items() if rule and rule != defaults[name]}

    def facts(self, inputs: Mapping[str, Any]) -> Problem:
        """Return the problem that a call poses to this kernel: it is asked for the rules that it offers."""
        return facts_of(self.contract, inputs, self.rules)

    def refusals(self, problem: Problem) -> tuple[Reason, ...]:
        """Return why the kernel's region excludes a problem whose axes hold the row count; empty where it does not."""
        rows = problem.axes.get(self.contract.rows, 1)
        axes = {name: size for name, size in problem.axes.items() if name != self.contract.rows}
        bare = replace(problem, axes=axes)
        name = self.contract.name
        policy = operator_policy(_SETTINGS, self.device, name, small=self.contract.small)
        question = Question(self.contract, bare, (rows,), _SETTINGS, policy)
        kernel = self.registered.kernel
        candidate = kernel_candidate(self.registered, self.device.arch.name)
        region: Any = kernel.region
        found = evaluation(candidate, question, traits=kernel.traits, region=region)
        return tuple(finding.on(question, question.everywhere) for finding in found.findings)

    def accepts(self, inputs: Mapping[str, Any]) -> bool:
        """Return whether a call lies in the kernel's region."""
        return not self.refusals(self.facts(inputs))

    def function(self, inputs: Mapping[str, Any]) -> Callable[..., Any]:
        """Return the callable that a plan for this call's facts would bind: what `prepare` returns, else the target.

        Raises:
            BindingError: the target or the preparation cannot be imported, has another signature, or raised.
        """
        kernel = self.registered.kernel
        target = self.target()
        if kernel.prepare is None:
            return target
        problem = self.facts(inputs)
        rows = max(rows_of_inputs(self.contract, inputs), 1)
        static = {name: size for name, size in problem.axes.items() if name != self.contract.rows}
        problem = replace(problem, axes=static)
        key = (rows, repr(problem))
        if key not in self._bound:
            prepare = resolve(kernel.prepare, self.id, self.contract.name)
            try:
                prepared = prepare(self.device, problem, (rows,))
            except Exception as error:  # a plugin's preparation may raise anything
                raise BindingError(f"{kernel.prepare} raised {type(error).__name__}: {error}") from error
            if prepared is not None:
                check_signature(prepared, self.contract, self.id)
            self._bound[key] = target if prepared is None else prepared
        return self._bound[key]

    def target(self) -> Callable[..., Any]:
        """Return the kernel's target, with its signature compared to the contract's.

        Raises:
            BindingError: it cannot be imported, or has another signature.
        """
        if "target" not in self._bound:
            found = resolve(self.registered.kernel.target, self.id, self.contract.name)
            check_signature(found, self.contract, self.id)
            self._bound["target"] = found
        return self._bound["target"]
