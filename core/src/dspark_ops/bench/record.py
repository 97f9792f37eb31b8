"""Records: what a launch and an arm left behind, as JSON with a versioned schema that ``dspark-ops compare`` reads."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from dspark_ops.bench.design import Arm
from dspark_ops.bench.measurement import Measurement
from dspark_ops.errors import ConfigError

__all__ = ["SCHEMA", "ArmRecord", "Launch", "read_arm"]

SCHEMA = 1
_KIND = "dspark-ops arm"


@dataclass(frozen=True, slots=True)
class Launch:
    """One fresh process.

    Attributes:
        number: its place in time within the session, from 0.
        arm: what it ran.
        pair: its pair within the session.
        control: whether the pair belongs to the A/A control.
        started: when, as an ISO text in UTC.
        seconds: how long the process lived.
        measurement: what it measured; None if it failed.
        error: why it failed, or empty.
        fingerprint: what must be equal for launches to be comparable, as nested tables.
        conditions: what is recorded and not compared.
        notes: warnings of the process, and its last lines on stderr.
    """

    number: int
    arm: Arm
    pair: int
    control: bool
    started: str
    seconds: float
    measurement: Measurement | None = None
    error: str = ""
    fingerprint: Mapping[str, Any] = field(default_factory=dict)
    conditions: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return it with plain types only."""
        measured = None if self.measurement is None else self.measurement.to_json()
        return asdict(self) | {"arm": self.arm.value, "measurement": measured}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Launch:
        """Return the launch that `to_json` wrote."""
        values = dict(data) | {"arm": Arm(data["arm"]), "notes": tuple(data["notes"])}
        if values["measurement"] is not None:
            values["measurement"] = Measurement.from_json(values["measurement"])
        return cls(**values)


@dataclass(frozen=True, slots=True)
class ArmRecord:
    """All launches of one arm of a session, those of the control with it where the arm is A.

    Attributes:
        session: name of the session; launches are paired with those of the other arm of the same session.
        arm: A or B.
        treatment: what was done to this arm alone: ``config``, ``environment``, ``command``, ``knock_out``.
        declared: dotted fields of the fingerprint that the user says belong to the treatment.
        expected: globs of kernel ids that must have been called.
        workload: what both arms must share: model, prompts, lengths, runs per launch.
        order: how the launches were ordered.
        selection: the session was used to choose a configuration (R4.3).
        launches: in the order of time.
    """

    session: str
    arm: Arm
    treatment: Mapping[str, Any]
    workload: Mapping[str, Any]
    launches: tuple[Launch, ...]
    declared: tuple[str, ...] = ()
    expected: tuple[str, ...] = ()
    order: str = "abba"
    selection: bool = False

    @property
    def simulated(self) -> bool:
        """Whether the acceptance of any launch was drawn (R3.1)."""
        return any(item.measurement is not None and item.measurement.simulated for item in self.launches)

    def to_json(self) -> dict[str, Any]:
        """Return the record with plain types only."""
        return {
            "kind": _KIND,
            "schema": SCHEMA,
            "session": self.session,
            "arm": self.arm.value,
            "simulated": self.simulated,
            "treatment": dict(self.treatment),
            "declared": list(self.declared),
            "expected": list(self.expected),
            "workload": dict(self.workload),
            "order": self.order,
            "selection": self.selection,
            "launches": [launch.to_json() for launch in self.launches],
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> ArmRecord:
        """Return the record that `to_json` wrote.

        Raises:
            ConfigError: the data is no record of an arm, or one of another schema.
        """
        found = data.get("kind"), data.get("schema")
        if found != (_KIND, SCHEMA):
            raise ConfigError(f"wanted a {_KIND!r} of schema {SCHEMA}, got kind {found[0]!r}, schema {found[1]!r}")
        try:
            return cls(
                session=data["session"],
                arm=Arm(data["arm"]),
                treatment=data["treatment"],
                workload=data["workload"],
                launches=tuple(map(Launch.from_json, data["launches"])),
                declared=tuple(data["declared"]),
                expected=tuple(data["expected"]),
                order=data["order"],
                selection=data["selection"],
            )
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigError(f"a {_KIND!r} that cannot be read: {type(error).__name__}: {error}") from error


def read_arm(path: Path) -> ArmRecord:
    """Return the record that a file holds.

    Raises:
        ConfigError: the file cannot be read, or holds no record of an arm; the text says what it holds.
    """
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise ConfigError(f"{path}: wanted the JSON that  dspark-ops bench ab --out DIR  writes: {error}") from None
    try:
        return ArmRecord.from_json(data if isinstance(data, dict) else {})
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error
