"""Checks of the plan: operators that a weaker kernel serves than one that this device could run, and why."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from dspark_ops.api.reason import Reason, ReasonCode
from dspark_ops.doctor.facts import Facts
from dspark_ops.doctor.finding import Check, Severity
from dspark_ops.selection.plan import Choice, Refusal, Selection

Found = Iterator[tuple[Severity, str, str, str]]

#: Reasons that somebody chose, or that an installation leaves open.
_CHOSEN: Final = (ReasonCode.PKG_MISSING, ReasonCode.DENIED, ReasonCode.NOT_LISTED, ReasonCode.EVIDENCE)
#: Reasons that are faults of this machine or installation.
_FAULTS: Final = (
    ReasonCode.PKG_VERSION,
    ReasonCode.PKG_WRONG,
    ReasonCode.UNAVAILABLE,
    ReasonCode.KNOWN_BAD,
    ReasonCode.QUARANTINED,
)
#: Lines of a refusal that are shown: it has every candidate's reasons.
_LINES: Final = 8


def _weaker(facts: Facts) -> Found:
    if facts.plan_problem:
        yield Severity.ERROR, "no plan can be made", facts.plan_problem, "see  dspark-ops plan"
    if facts.start_problem:
        what = "with this configuration a server does not start"
        fix = 'repair what the reasons name, or set policy.fallback = "warn"'
        yield Severity.ERROR, what, _shortened(facts.start_problem), fix
    if facts.plan is None:
        return
    choices = [(selection, choice) for selection in facts.plan.selections for choice in selection.choices]
    yield from _degraded(choices)
    for selection, choice in choices:
        yield from _overtaken(facts, selection, choice)
    bare = [_place(selection, choice) for selection, choice in choices if choice.below and not _blamed(choice)]
    if bare:
        arch = facts.plan.device.arch
        what = f"no kernel for {arch} is of the required class, so a weaker one serves: {_operators(bare)}"
        fix = 'install a plugin that serves them; "dspark-ops explain OPERATOR" shows what there is'
        yield Severity.WARNING, what, "\n".join(bare), fix


def _degraded(choices: list[tuple[Selection, Choice]]) -> Found:
    """Yield one finding for all places that the same reasons degrade."""
    places: dict[tuple[Severity, tuple[str, ...]], list[str]] = {}
    hints: dict[tuple[Severity, tuple[str, ...]], dict[str, None]] = {}
    for selection, choice in choices:
        if blamed := _blamed(choice):
            reasons = [reason for item in blamed for reason in item.reasons]
            fault = any(reason.code in _FAULTS for reason in reasons)
            key = (Severity.ERROR if fault else Severity.WARNING, tuple(dict.fromkeys(map(_text, reasons))))
            better = ", ".join(f"{item.candidate.id} ({item.candidate.rank.value})" for item in blamed)
            places.setdefault(key, []).append(f"{_place(selection, choice)} instead of {better}")
            hints.setdefault(key, {}).update(dict.fromkeys(reason.hint for reason in reasons if reason.hint))
    for key, served in places.items():
        severity, reasons_text = key
        what = (
            f"a weaker class serves than this device could run, since {'; '.join(reasons_text)}: {_operators(served)}"
        )
        yield severity, what, "\n".join(served), "; ".join(hints[key]) or "see  dspark-ops explain OPERATOR"


def _overtaken(facts: Facts, selection: Selection, choice: Choice) -> Found:
    """Yield where the configuration prefers a weaker class than one that may serve."""
    own = facts.plan.settings.of(selection.operator) if facts.plan else None
    better = [item for item in choice.standby if item.rank.order < choice.kernel.rank.order]
    if own is not None and (own.pin or own.order) and better:
        what = f"{_place(selection, choice)} by the configuration, though a better class may serve"
        eligible = ", ".join(f"{item.id} ({item.rank.value})" for item in better)
        fix = f"remove the pin or order list of ops.{selection.operator}"
        yield Severity.WARNING, what, f"eligible: {eligible}", fix


def _blamed(choice: Choice) -> list[Refusal]:
    """Return the refused candidates of a better class that something on this machine could make eligible."""
    order = choice.kernel.rank.order
    changeable = (*_CHOSEN, *_FAULTS)
    return [
        item
        for item in choice.refused
        if item.candidate.rank.order < order and all(reason.code in changeable for reason in item.reasons)
    ]


def _place(selection: Selection, choice: Choice) -> str:
    kernel = choice.kernel
    return f"{selection.operator} at {selection.site}, rows {choice.rows}: served by {kernel.id} ({kernel.rank.value})"


def _operators(places: list[str]) -> str:
    names = list(dict.fromkeys(place.split(" ")[0] for place in places))
    return ", ".join(names) if len(names) < 5 else f"{len(names)} operators"


def _text(reason: Reason) -> str:
    return f"{reason.field}: wanted {reason.wanted}, got {reason.got}"


def _shortened(text: str) -> str:
    lines = [line for line in text.splitlines() if not line.startswith(" ")]
    more = f"\n... and {len(lines) - _LINES} lines more" if len(lines) > _LINES else ""
    return "\n".join(lines[:_LINES]) + more


PLAN = Check("plan", "Does the best class that this device can run serve each operator?", _weaker)
CHECKS = (PLAN,)
