"""Why a kernel may or may not run: verdicts that carry every reason, with what was wanted and what was got."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class ReasonCode(str, Enum):
    """The kind of a refusal. Codes are stable: tools may switch on them."""

    DEVICE_VENDOR = "DEVICE_VENDOR"
    DEVICE_ARCH = "DEVICE_ARCH"
    FEATURE = "FEATURE"
    PKG_MISSING = "PKG_MISSING"
    PKG_VERSION = "PKG_VERSION"
    PKG_WRONG = "PKG_WRONG"
    CONTRACT = "CONTRACT"
    DTYPE = "DTYPE"
    SHAPE = "SHAPE"
    STRIDE = "STRIDE"
    LAYOUT = "LAYOUT"
    OPTION = "OPTION"
    SEMANTICS = "SEMANTICS"
    TRAIT = "TRAIT"
    CLASS = "CLASS"
    DENIED = "DENIED"
    NOT_LISTED = "NOT_LISTED"
    PART = "PART"
    PREDICATE_RAISED = "PREDICATE_RAISED"
    UNAVAILABLE = "UNAVAILABLE"
    EVIDENCE = "EVIDENCE"
    KNOWN_BAD = "KNOWN_BAD"
    QUARANTINED = "QUARANTINED"
    COSELECT = "COSELECT"


@dataclass(frozen=True, slots=True)
class Reason:
    """One reason for a refusal: which field, what was wanted, what was got, where it came from, what to do."""

    code: ReasonCode
    field: str
    wanted: str
    got: str
    hint: str = ""
    origin: str = ""

    def __str__(self) -> str:
        text = f"{self.code.value} {self.field}: wanted {self.wanted}, got {self.got}"
        if self.origin:
            text += f" ({self.origin})"
        return f"{text}; {self.hint}" if self.hint else text


@dataclass(frozen=True, slots=True)
class Eligible:
    """The kernel may run for this problem on this device."""


@dataclass(frozen=True, slots=True)
class Ineligible:
    """The kernel may not run, for these reasons: all of them, in the order in which they were checked."""

    reasons: tuple[Reason, ...]

    def __post_init__(self) -> None:
        if not self.reasons:
            raise ValueError("Ineligible needs at least one reason")


Verdict = Eligible | Ineligible
