"""One kernel, level by level: what is run, what is left out and why, and every failure with how to repeat it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

from dspark_ops.conformance.builds import check_builds, why_not_built
from dspark_ops.conformance.claimed_points import claimed_points
from dspark_ops.conformance.claims import check_claims
from dspark_ops.conformance.failure import Failure, Finding
from dspark_ops.conformance.numbers import check_case
from dspark_ops.conformance.report import ALL_LEVELS, KernelRecord, LevelRecord
from dspark_ops.conformance.subject import Subject
from dspark_ops.conformance.traits import Harness, check_traits
from dspark_ops.conformance.variations import variations
from dspark_ops.conformance.xfails import ExpectedFailure
from dspark_ops.contracts.contract import Case
from dspark_ops.errors import BindingError

__all__ = ["KernelCheck"]

#: Seed of the inputs that replays change to, beside that of the captured ones.
_OTHER_SEED = 104729


@dataclass(slots=True)
class KernelCheck:
    """The check of one kernel.

    Attributes:
        subject: the kernel on its device.
        scale, seed: of the case generator.
        only: one case by name or glob; empty for all.
        xfails: expected failures; those with ``run = false`` are not called.
        repeat: returns the command that repeats a case at a level.
        harness: captures graphs; None takes the GPU's where there is one.
        looked_at: level and name of every case that was run.
    """

    subject: Subject
    scale: str
    seed: int
    only: str
    xfails: Sequence[ExpectedFailure]
    repeat: Callable[[str, str], str]
    harness: Harness | None = None
    looked_at: list[tuple[str, str]] = field(default_factory=list)
    _bindings: set[str] = field(default_factory=set)

    def run(self, levels: Sequence[str], record: KernelRecord) -> None:
        """Run the levels and write what they find into a record.

        Raises:
            EvidenceError: the accelerator failed; what was found before is in the record.
        """
        cases = list(self.subject.contract.cases(self.scale, self.seed)) if self.subject.place else []
        runs = {"claims": self._claims, "numbers": self._numbers, "traits": self._traits, "builds": self._builds}
        for level in ALL_LEVELS:
            if level not in levels:
                continue
            record.levels[level] = done = LevelRecord()
            if why := self._why_not(level):
                done.reason = why
                continue
            # Should the accelerator fail, what was found until then stays, and the level has not passed.
            done.reason = "not finished"
            found = 0
            for failure in runs[level](cases, done):
                found += 1
                record.failures.append(failure.by(self.subject.id, level, self.repeat(level, failure.case)))
            done.status, done.reason = ("failed" if found else "passed"), ""

    def _claims(self, cases: list[Case], done: LevelRecord) -> Iterator[Failure]:
        claims = check_claims(self.subject, cases, self.seed)
        yield from (failure for failure in claims.failures if self._wants("claims", failure.case))
        done.counts["points"] = claims.points
        done.not_covered += claims.not_covered
        if not self.subject.place:
            what = f"import of {self.subject.registered.kernel.target}, calls inside the region"
            done.not_covered.append(f"{what}: {self.subject.why_not}")
        elif claims.base is not None:
            done.counts["calls"] = 0
            for point in claimed_points(self.subject, cases, claims.base):
                if point.inputs is None:
                    done.not_covered.append(f"call at {point.name}: {point.why_not}")
                elif self._wants("claims", point.name):
                    done.counts["calls"] += 1
                    yield from self._case("claims", Case(point.name, point.inputs))

    def _numbers(self, cases: list[Case], done: LevelRecord) -> Iterator[Failure]:
        counts = done.counts
        counts.update(cases=0, variations=0, outside_region=0)
        for case in cases:
            if not self.subject.accepts(case.inputs):
                counts["outside_region"] += 1
            elif self._wants("numbers", case.name):
                counts["cases"] += 1
                yield from self._case("numbers", case)
        if counts["outside_region"] == len(cases):
            what = "no case of the contract lies in the region, so its numbers cannot be checked"
            yield Failure.of(self.subject.contract.name, "none", self.seed, Finding(what))
        for rule, value in self.subject.rules.items():
            default = next(one.default for one in self.subject.contract.semantics if one.name == rule)
            done.not_covered.append(
                f"the rule {rule} = {value}: the reference follows {default}, so cases that tell the two apart fail"
            )
        if self.scale != "small":
            done.not_covered.append("views, row counts, dtypes of positions and padding are checked at --scale small")
            return
        for variation in variations(self.subject.contract, cases, self.subject.accepts):
            if self._wants("numbers", variation.case.name):
                counts["variations"] += 1
                yield from self._case("numbers", variation.case, variation.rows)

    def _traits(self, cases: list[Case], done: LevelRecord) -> Iterator[Failure]:
        contract = self.subject.contract
        inside = [case for case in cases if self.subject.accepts(case.inputs) and self._wants("traits", case.name)]
        other = list(contract.cases(self.scale, self.seed + _OTHER_SEED))
        harness = self.harness
        if harness is None and self.subject.place != "cpu":
            from dspark_ops.conformance.graphs import CudaHarness

            harness = CudaHarness()
        found = check_traits(self.subject, inside, other, self.seed, harness)
        done.counts["checks"] = found.checks
        done.not_covered += [f"not run: {text}" for text in found.not_run]
        yield from found.failures

    def _builds(self, cases: list[Case], done: LevelRecord) -> Iterator[Failure]:
        done.counts["builds"] = 0
        for name, finding in check_builds(self.subject):
            done.counts["builds"] += 1
            if self._wants("builds", name) and finding is not None:
                yield Failure.of(self.subject.contract.name, name, self.seed, finding)

    def _why_not(self, level: str) -> str:
        """Return why a level cannot be run here, or an empty text."""
        if level == "builds":
            return why_not_built(self.subject)
        return "" if level == "claims" or self.subject.place else self.subject.why_not

    def _case(self, level: str, case: Case, rows: Any = None) -> list[Failure]:
        try:
            function = self.subject.function(case.inputs)
        except BindingError as error:
            if str(error) in self._bindings:
                return []
            self._bindings.add(str(error))
            findings = [Finding(f"cannot be bound: {error}")]
        else:
            findings = check_case(self.subject.contract, function, self.subject.place, case.inputs, case.expected, rows)
        return [Failure.of(self.subject.contract.name, case.name, self.seed, finding) for finding in findings]

    def _wants(self, level: str, name: str) -> bool:
        """Whether a case is asked for and may be called; it then counts as looked at."""
        if self.only and name != self.only and not fnmatchcase(name, self.only):
            return False
        self.looked_at.append((level, name))
        return not any(not entry.run and entry.names(self.subject.id, level, name) for entry in self.xfails)
