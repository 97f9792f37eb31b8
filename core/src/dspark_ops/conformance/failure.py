"""Failures: one thing that a kernel got wrong, with what is needed to see it again."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dspark_ops.conformance.compare import Mismatch


@dataclass(frozen=True, slots=True)
class Finding:
    """How one call was wrong.

    Attributes:
        what: output or argument, and how it is wrong.
        output: name of the output, where it is one.
        index: position of the first wrong element.
        wanted, got: that element, in decimal and in the hexadecimal of its bits.
    """

    what: str
    output: str = ""
    index: tuple[int, ...] = ()
    wanted: str = ""
    got: str = ""

    @classmethod
    def of_output(cls, output: str, mismatch: Mismatch, note: str = "") -> Finding:
        """Return the finding that an output differs."""
        return cls(f"output {output}{note}: {mismatch}", output, mismatch.index, mismatch.wanted, mismatch.got)


@dataclass(frozen=True, slots=True)
class Failure:
    """One thing that a function got wrong, with what is needed to see it again.

    Attributes:
        op: operator name.
        case: name of the case.
        seed: seed of the case generator.
        what: output or argument, and how it is wrong.
        kernel: kernel id; empty where a bare function was checked.
        level: ``claims``, ``numbers`` or ``traits``.
        output, index, wanted, got: the first wrong element, where there is one; see `Finding`.
        repeat: the command that shows it again.
    """

    op: str
    case: str
    seed: int
    what: str
    kernel: str = ""
    level: str = "numbers"
    output: str = ""
    index: tuple[int, ...] = ()
    wanted: str = ""
    got: str = ""
    repeat: str = ""

    @classmethod
    def of(cls, op: str, case: str, seed: int, finding: Finding) -> Failure:
        """Return the failure that a finding is in one case of an operator."""
        return cls(
            op, case, seed, finding.what,
            output=finding.output, index=finding.index, wanted=finding.wanted, got=finding.got,
        )  # fmt: skip

    def by(self, kernel: str, level: str, repeat: str) -> Failure:
        """Return the same failure of a named kernel."""
        return replace(self, kernel=kernel, level=level, repeat=repeat)

    def to_json(self) -> dict[str, Any]:
        """Return the failure with plain types only."""
        return {**asdict(self), "index": list(self.index)}

    def __str__(self) -> str:
        kernel = f" ({self.kernel})" if self.kernel else ""
        text = f"{self.op}{kernel}, case {self.case!r}, seed {self.seed}: {self.what}"
        return f"{text}\n    repeat: {self.repeat}" if self.repeat else text
