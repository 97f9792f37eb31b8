"""Findings: what the doctor says is wrong, with the evidence for it and what to do."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dspark_ops.doctor.facts import Facts


class Severity(str, Enum):
    """How bad a finding is: an error makes the doctor's exit code 1, a warning only with ``--strict``, a note never."""

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that costs speed or will fail.

    Attributes:
        check: name of the check that found it.
        severity: how bad it is.
        finding: one sentence: what is wrong and what follows from it.
        evidence: what was looked at, with its origin.
        fix: what to do, a command where there is one.
    """

    check: str
    severity: Severity
    finding: str
    evidence: str
    fix: str


@dataclass(frozen=True, slots=True)
class Check:
    """One question that the doctor asks; a pure function over what was gathered.

    Attributes:
        name: stable name, by which findings refer to it.
        question: what is asked, for people.
        run: yields ``(severity, finding, evidence, fix)``.
        not_asked: returns why the question has no sense here, or an empty text.
    """

    name: str
    question: str
    run: Callable[[Facts], Iterable[tuple[Severity, str, str, str]]]
    not_asked: Callable[[Facts], str] = lambda facts: ""


@dataclass(frozen=True, slots=True)
class Answer:
    """What one check came to: its findings, or why it was not asked."""

    check: Check
    findings: tuple[Finding, ...] = ()
    not_asked: str = ""


def answer(check: Check, facts: Facts) -> Answer:
    """Return what a check finds in the facts."""
    if reason := check.not_asked(facts):
        return Answer(check, not_asked=reason)
    return Answer(check, tuple(Finding(check.name, *found) for found in check.run(facts)))
