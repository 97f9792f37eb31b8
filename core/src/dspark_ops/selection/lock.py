"""Lock files: the choices of a plan with the environment that they were made in, one selection per line.

``dspark-ops.lock`` is JSON that is made for review: a changed choice changes one line. It holds the digest of its own
contents, so that an edited or torn file is refused instead of believed. What a lock means is in `lock_check`.

The tactic of a kernel is its variant, the last part of its id, or lies in its plugin's tile tables, which are among the
files whose hash the lock holds.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from dspark_ops.errors import LockError
from dspark_ops.selection.codec import decode, encode
from dspark_ops.selection.fingerprint import device_facts, plugin_facts, version_facts
from dspark_ops.selection.rows import rows_of
from dspark_ops.selection.settings import Settings
from dspark_ops.selection.written import write_atomically

if TYPE_CHECKING:
    from dspark_ops.selection.plan import Plan, Selection

__all__ = ["DEFAULT_LOCK", "Lock", "LockedChoice", "lock_of", "read_lock", "write_lock"]

SCHEMA: Final = "dspark-ops lock 1"
DEFAULT_LOCK: Final = "dspark-ops.lock"
_AGAIN: Final = "restore it, or delete it and run  dspark-ops plan --write"


@dataclass(frozen=True, slots=True)
class LockedChoice:
    """One line of a lock: what serves an operator at a place for some row counts.

    Attributes:
        operator, site: the operator and its place.
        rows: row counts, see `dspark_ops.selection.rows`.
        kernel: id of what was chosen.
        rank, evidence: its class and level of evidence at the time of writing.
        record: the record behind the evidence, or empty.
        part_of: the fused operator that this is a part of, or empty.
        contract: version of the operator's contract.
        axes: the sizes that are fixed at the place.
    """

    operator: str
    site: str
    rows: str
    kernel: str
    rank: str
    evidence: str
    record: str
    part_of: str
    contract: int
    axes: Mapping[str, int]

    @property
    def place(self) -> tuple[str, str, tuple[tuple[str, int], ...], str]:
        """What tells this line's place from others."""
        return self.operator, self.site, tuple(sorted(self.axes.items())), self.part_of

    def counts(self) -> tuple[int, ...]:
        """Return the row counts."""
        return rows_of(self.rows)


@dataclass(frozen=True, slots=True)
class Lock:
    """A lock file's contents.

    Attributes:
        model, rows: what was planned.
        device: facts of the device, see `device_facts`.
        versions: of this library and of Triton.
        settings: what the configuration set, by leaf.
        layouts: the layouts that were chosen for several operators together.
        plugins: distribution, version and file hash of each, core included.
        selections: the choices.
    """

    model: str
    rows: str
    device: Mapping[str, Any]
    versions: Mapping[str, str]
    settings: Mapping[str, str]
    layouts: Mapping[str, str]
    plugins: tuple[Mapping[str, str], ...]
    selections: tuple[LockedChoice, ...]
    schema: str = field(default=SCHEMA)

    @property
    def digest(self) -> str:
        """``sha256:`` and the hash of everything in the file but this."""
        text = json.dumps(encode(self), sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        return "sha256:" + hashlib.sha256(text.encode()).hexdigest()

    def text(self) -> str:
        """Return the canonical text of the file."""
        data = encode(self)
        lines = [f'"{name}": {_line(data[name])}' for name in ("schema", "model", "rows", "device", "versions")]
        lines += [f'"{name}": {_line(data[name])}' for name in ("settings", "layouts")]
        for name in ("plugins", "selections"):
            items = ",\n".join(_line(item) for item in data[name])
            lines.append(f'"{name}": [\n{items}\n]' if items else f'"{name}": []')
        return "{" + ",\n".join([*lines, f'"digest": "{self.digest}"']) + "}\n"


def lock_of(plan: Plan) -> Lock:
    """Return the lock of a plan, with the hashes of the files that are installed now."""
    return Lock(
        model=plan.model,
        rows=plan.rows,
        device=device_facts(plan.device),
        versions=version_facts(),
        settings=dict(_leaves(plan.settings)),
        layouts=dict(plan.layouts),
        plugins=plugin_facts(plan.plugins),
        selections=tuple(_unique(line for selection in plan.selections for line in _lines(selection, ""))),
    )


def write_lock(path: str | Path, lock: Lock) -> None:
    """Write a lock file; a reader sees the old file or the whole new one.

    Raises:
        OSError: it cannot be written.
    """
    write_atomically(path, lock.text())


def read_lock(path: str | Path) -> Lock:
    """Return what a lock file says.

    Raises:
        LockError: it is torn, edited, of another schema, or cannot be read.
        FileNotFoundError: there is none.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except FileNotFoundError:
        raise
    except (OSError, UnicodeDecodeError) as error:
        raise LockError(f"{path} cannot be read as a lock file: {error}") from None
    try:
        data = json.loads(text)
    except ValueError as error:
        why = f"it is not JSON ({error}), so it is torn or edited"
        raise LockError(f"{path} is no whole lock file: {why}: {_AGAIN}") from None
    schema = data.get("schema") if isinstance(data, dict) else None
    if schema != SCHEMA:
        who = "another version of dspark-ops wrote it, or it is no lock file"
        raise LockError(f"{path}: schema: wanted {SCHEMA!r}, got {schema!r}: {who}; {_AGAIN}")
    stated = data.pop("digest", None)
    try:
        lock: Lock = decode(Lock, data)
    except (ValueError, TypeError) as error:
        raise LockError(f"{path} was edited and cannot be understood: {error}: {_AGAIN}") from None
    if lock.digest != stated:
        raise LockError(
            f"{path}: digest: wanted {lock.digest}, which its contents give, got {stated}: it was edited or merged by "
            f"hand; {_AGAIN}"
        )
    return lock


def _line(data: Any) -> str:
    return json.dumps(data, ensure_ascii=False)


def _lines(selection: Selection, part_of: str) -> Iterator[LockedChoice]:
    for choice in selection.choices:
        kernel = choice.kernel
        yield LockedChoice(
            operator=selection.operator,
            site=selection.site,
            rows=choice.rows,
            kernel=kernel.id,
            rank=kernel.rank.value,
            evidence=kernel.evidence.value,
            record=kernel.origin,
            part_of=part_of,
            contract=selection.contract,
            axes=dict(sorted(selection.problem.axes.items())),
        )
        for part in choice.parts:
            yield from _lines(part, selection.operator)


def _unique(lines: Iterator[LockedChoice]) -> Iterator[LockedChoice]:
    """Yield each line once: a fused operator has its parts beside several of its own lines."""
    seen: set[tuple[Any, ...]] = set()
    for line in lines:
        key = (*line.place, line.rows, line.kernel)
        if key not in seen:
            seen.add(key)
            yield line


def _leaves(settings: Settings) -> Iterator[tuple[str, str]]:
    """Yield what a configuration sets that bears on choices, by leaf."""
    policy = settings.policy
    for name, value in (
        ("policy.fallback", policy.fallback),
        ("policy.require_class", policy.require_class and policy.require_class.value),
        ("policy.evidence", policy.evidence and policy.evidence.value),
        ("policy.graphs", "on" if policy.graphs == "on" else ""),
        ("plugins.allow", None if settings.allow is None else ", ".join(settings.allow) or "none"),
        ("plugins.deny", ", ".join(settings.deny)),
    ):
        if value:
            yield name, value
    for group, tokens in sorted(settings.layouts.items()):
        yield f"layouts.{group}", ", ".join(tokens)
    for operator, own in sorted(settings.operators.items()):
        leaves = {
            "pin": own.pin or "",
            "deny": ", ".join(own.deny),
            "order": ", ".join(own.order),
            "require_class": own.require_class.value if own.require_class else "",
        }
        yield from ((f"ops.{operator}.{leaf}", value) for leaf, value in leaves.items() if value)
