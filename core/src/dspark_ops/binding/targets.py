"""Targets: the function behind ``module:attribute``, with a signature that is the contract's to the letter."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from typing import Any

from dspark_ops.contracts.contract import REQUIRED, Contract
from dspark_ops.errors import BindingError


def resolve(target: str, kernel_id: str, operator: str) -> Callable[..., Any]:
    """Return the callable that a target names, importing its module.

    Raises:
        BindingError: the module does not import, or has no such callable.
    """
    module_name, _, attribute = target.partition(":")
    try:
        found = getattr(importlib.import_module(module_name), attribute)
    except Exception as error:  # a plugin's module may raise anything
        raise BindingError(
            f"{kernel_id}: cannot import {target}: {type(error).__name__}: {error}; "
            f"repair its plugin, or {refuse_hint(kernel_id, operator)}"
        ) from error
    if not callable(found):
        raise BindingError(f"{kernel_id}: target {target} is a {type(found).__name__}, wanted a callable")
    function: Callable[..., Any] = found
    return function


def refuse_hint(kernel_id: str, operator: str) -> str:
    """Return the setting that makes a new plan do without a kernel."""
    return f'refuse it with  ops.{operator}.deny = ["{kernel_id}"]  and plan again'


def check_signature(function: Callable[..., Any], contract: Contract, kernel_id: str) -> None:
    """Compare a kernel's signature with its contract's: names, order, kinds and defaults, but not annotations.

    A bound call passes arguments through unseen, so a kernel that named or ordered them otherwise would compute
    something else without an error.

    Raises:
        BindingError: they differ; the text has the first difference and both signatures.
    """
    wanted = contract.signature()
    try:
        got = inspect.signature(function)
    except (TypeError, ValueError) as error:
        raise BindingError(
            f"{kernel_id}: its signature cannot be read ({error}); wanted {contract.name}{wanted}"
        ) from error
    difference = _difference(list(wanted.parameters.values()), list(got.parameters.values()))
    if difference:
        plain = got.replace(
            parameters=[parameter.replace(annotation=REQUIRED) for parameter in got.parameters.values()],
            return_annotation=REQUIRED,
        )
        raise BindingError(
            f"{kernel_id}: {difference}\n  wanted {contract.name}{wanted}\n  got    {contract.name}{plain}"
        )


def _difference(wanted: list[inspect.Parameter], got: list[inspect.Parameter]) -> str:
    for position, want in enumerate(wanted, start=1):
        if position > len(got):
            return f"parameter {position} ({want.name}) is missing"
        have = got[position - 1]
        if have.name != want.name:
            return f"parameter {position} is named {have.name!r}, wanted {want.name!r}"
        if have.kind is not want.kind:
            return f"parameter {want.name} is {have.kind.description}, wanted {want.kind.description}"
        if type(have.default) is not type(want.default) or have.default != want.default:
            return f"parameter {want.name} has the default {_shown(have.default)}, wanted {_shown(want.default)}"
    return f"parameter {got[len(wanted)].name} is none of the contract's" if len(got) > len(wanted) else ""


def _shown(default: Any) -> str:
    return "none at all" if default is REQUIRED else repr(default)
