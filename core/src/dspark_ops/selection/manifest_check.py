"""Checks of a manifest: everything that can be wrong in what a plugin registers, found before any of it is used."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, Final

from packaging.specifiers import InvalidSpecifier, SpecifierSet

from dspark_ops import contracts
from dspark_ops.api.arch import FAMILIES, ArchSet
from dspark_ops.api.kernel import Evidence, Kernel, Package, RankClass, Traits
from dspark_ops.api.manifest import Manifest
from dspark_ops.api.region import Constraint
from dspark_ops.api.version import API_VERSION
from dspark_ops.contracts.contract import Contract
from dspark_ops.suggest import did_you_mean

__all__ = ["api_fault", "kernel_faults"]

_ARCHES: Final = tuple(name for members in FAMILIES.values() for name in members)


def api_fault(api: object) -> str | None:
    """Return why a plugin's range of interface versions excludes this core, or None if it does not."""
    here = f"this core offers API {API_VERSION}"
    example = "write api='>=1,<2'"
    if not isinstance(api, str) or not api.strip():
        return f"it declares no range of API versions (api={api!r}), and {here}: {example}"
    try:
        accepted = SpecifierSet(api)
    except InvalidSpecifier:
        return f"api={api!r} is no range of versions, and {here}: {example}"
    return None if accepted.contains(API_VERSION) else f"it needs API {api}, and {here}"


def kernel_faults(manifest: Manifest) -> list[str]:
    """Return everything that is wrong with a manifest's kernels, one line each, named by kernel id."""
    faults: list[str] = []
    sound: list[Kernel] = []
    given: tuple[object, ...] = tuple(manifest.kernels)  # a plugin is not bound by the types that it should follow
    for index, kernel in enumerate(given):
        if isinstance(kernel, Kernel):
            sound.append(kernel)
        else:
            faults.append(f"kernels[{index}]: wanted a Kernel, got {type(kernel).__name__} {kernel!r}")
    for kernel in sound:
        where = f"{manifest.name}/{kernel.op}/{kernel.variant}"
        faults.extend(f"{where}: {text}" for text in (*_type_faults(kernel), *_contract_faults(kernel)))
    for (op, variant), count in Counter((kernel.op, kernel.variant) for kernel in sound).items():
        if count > 1:
            faults.append(f"{manifest.name}/{op}/{variant}: {count} kernels have this id; give each its own variant")
    return faults


def _type_faults(kernel: Any) -> Iterator[str]:
    if kernel.arch is not None and not isinstance(kernel.arch, ArchSet):
        yield f"arch: wanted family(...), exact(...) or None, got {kernel.arch!r}"
    if not isinstance(kernel.rank, RankClass):
        yield f"rank: wanted a RankClass, got {kernel.rank!r}"
    if not isinstance(kernel.traits, Traits):
        yield f"traits: wanted Traits(...), got {kernel.traits!r}"
    yield from _elements("features", kernel.features, str)
    yield from _elements("contract_versions", kernel.contract_versions, int)
    yield from _elements("packages", kernel.packages, Package)
    for package in kernel.packages if isinstance(kernel.packages, tuple) else ():
        if isinstance(package, Package):
            try:
                SpecifierSet(package.versions)
            except InvalidSpecifier:
                yield f"package {package.module}: versions {package.versions!r} is no range such as '>=0.6,<0.8'"
    yield from _evidence_faults(kernel.evidence)


def _elements(name: str, values: object, wanted: type) -> Iterator[str]:
    # A text in place of a tuple of texts is the common slip: ("pdl") is not ("pdl",).
    if not isinstance(values, tuple):
        yield f"{name}: wanted a tuple of {wanted.__name__}, got {values!r}"
        return
    for value in values:
        if not isinstance(value, wanted):
            yield f"{name}: wanted a tuple of {wanted.__name__}, got {value!r} in it"


def _evidence_faults(evidence: object) -> Iterator[str]:
    for entry in evidence if isinstance(evidence, tuple) else (evidence,):
        if not (isinstance(entry, tuple) and len(entry) == 2 and isinstance(entry[1], Evidence)):
            yield f"evidence: wanted pairs such as ('sm_103', Evidence.COMPILED), got {entry!r}"
        elif entry[0] not in _ARCHES:
            yield f"evidence: unknown architecture {entry[0]!r}: known are {', '.join(_ARCHES)}"


def _contract_faults(kernel: Kernel) -> Iterator[str]:
    known = contracts.names()
    if kernel.op not in known:
        yield f"unknown operator {kernel.op!r}{did_you_mean(kernel.op, known)}"
        return
    contract = contracts.get(kernel.op)
    for constraint in kernel.region:
        if isinstance(constraint, Constraint):
            yield from _constraint_faults(constraint, contract)
    if isinstance(kernel.traits, Traits):
        yield from _trait_faults(kernel.traits, contract)


def _constraint_faults(constraint: Constraint, contract: Contract) -> Iterator[str]:
    arguments = {argument.name: argument for argument in contract.arguments}
    if constraint.kind in ("axis", "elements"):
        for name in constraint.subjects():
            if name not in contract.axes:
                yield _unknown("axis", name, contract.axes, constraint)
        return
    if constraint.kind == "option":
        choices = _option_choices(contract)
        if constraint.subject not in choices:
            yield _unknown("option", constraint.subject, tuple(choices), constraint)
        elif choices[constraint.subject]:
            yield from _value_faults("value", constraint, choices[constraint.subject])
        return
    if constraint.subject not in arguments:
        yield _unknown("argument", constraint.subject, tuple(arguments), constraint)
    elif constraint.kind == "dtype":
        yield from _value_faults("dtype", constraint, arguments[constraint.subject].dtypes)
    elif constraint.kind == "layout":
        yield from _value_faults("layout", constraint, arguments[constraint.subject].layouts)


def _option_choices(contract: Contract) -> dict[str, tuple[Any, ...]]:
    """Admitted values of each option and each semantic rule; empty where any value of the type will do."""
    choices: dict[str, tuple[Any, ...]] = {option.name: option.choices for option in contract.options}
    choices.update({semantic.name: semantic.choices for semantic in contract.semantics})
    return choices


def _value_faults(what: str, constraint: Constraint, admitted: Sequence[Any]) -> Iterator[str]:
    for value in constraint.values if constraint.test == "one_of" else ():
        if value not in admitted:
            hint = did_you_mean(value, map(str, admitted)) if isinstance(value, str) else ""
            yield (
                f"constraint {constraint.text!r}: the contract admits no {what} {value!r} for {constraint.subject} "
                f"(it has {', '.join(map(str, admitted)) or 'none'}){hint}"
            )


def _trait_faults(traits: Traits, contract: Contract) -> Iterator[str]:
    rules = {semantic.name: semantic.choices for semantic in contract.semantics}
    for name in ("nan", "ties", "padding"):
        value = getattr(traits, name)
        if not value:
            continue
        if name not in rules:
            listed = ", ".join(rules) or "none"
            yield f"traits: {name}={value!r}, but the contract has no rule {name!r} (it has {listed})"
        elif value not in rules[name]:
            yield f"traits: {name}={value!r}: wanted {' or '.join(rules[name])}{did_you_mean(value, rules[name])}"


def _unknown(what: str, name: str, known: Sequence[str], constraint: Constraint) -> str:
    text = f"constraint {constraint.text!r}: the contract has no {what} {name!r} (it has {', '.join(known) or 'none'})"
    return text + did_you_mean(name, known)
