"""The configuration tree as pydantic models: which tables and keys exist, what each does, and which type it has.

``docs/configuration.md`` is written from here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from dspark_ops.suggest import did_you_mean

__all__ = ["Tree", "schema_faults"]

RankName = Literal["fused", "portable", "composed", "reference"]
EvidenceName = Literal["declared", "compiled", "interpreted", "conformant", "measured"]
Path = tuple[str, ...]


def _key(does: str, *, unset: str = "", admits: str = "") -> Any:
    """Return a key that may be absent.

    Args:
        does: what it does; the first words name what the value is.
        unset: what holds without it, where `dspark_ops.selection.settings` has no value for it.
        admits: which values it takes, where the type does not say so.
    """
    return Field(None, description=does, json_schema_extra={"unset": unset, "admits": admits})


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class PolicyTable(_Table):
    """How strict planning is."""

    fallback: Literal["fail", "warn", "allow"] | None = _key(
        "What happens where an operator gets a weaker class than required: the start fails, warns, or goes on.",
        unset="`fail` on an accelerator of this machine, `allow` on the CPU and for a simulated device",
    )
    require_class: RankName | None = _key(
        "The weakest class that may serve an operator. A small operator's reference counts as good enough.",
        unset="`portable` on an accelerator, real or simulated; any class on the CPU",
    )
    plugin_error: Literal["fail", "warn"] | None = _key(
        "Whether a plugin that does not load ends the start, or is named and left out."
    )
    lock: Literal["off", "prefer", "require"] | None = _key(
        "What the lock file means: nothing; its choices are kept where they may serve, with a warning of every "
        "difference; or a difference that may change what runs ends the start.",
        unset="`prefer` where `files.lock` names one, else `off`",
    )
    evidence: EvidenceName | None = _key(
        "The weakest recorded evidence on which a plugin's kernel may serve; what a manifest says without a record "
        "does not count. A kernel below it is refused where the fallback is `fail`, and else comes behind the others.",
        unset="no evidence is asked for",
    )
    smoke: Literal["off", "on"] | None = _key(
        "Whether every chosen kernel runs once in another process when a plan is bound; one that fails there is "
        "quarantined, and the plan is made again without it."
    )
    smoke_seconds: Annotated[int, Field(ge=1)] | None = _key(
        "Seconds that one kernel may take in that run, its compilation included.", admits="seconds, at least 1"
    )
    graphs: Literal["off", "on"] | None = _key(
        "Whether calls are captured in graphs: on a GPU, a kernel that does not promise that it may be, and a torch "
        "reference, are then refused. `plan(graph=True)` asks for the same."
    )
    rank_mismatch: Literal["fail", "leader"] | None = _key(
        "What happens where tensor-parallel ranks have made different plans: all of them stop, or run rank 0's plan if "
        "it may serve on each."
    )


class PluginsTable(_Table):
    """Which plugins may load, by name."""

    allow: list[str] | None = _key(
        "The only plugins that may load; one that is not installed counts as failed. With an empty list none loads.",
        unset="every installed plugin",
        admits="names of plugins",
    )
    deny: list[str] | None = _key("Plugins that may not load.", unset="none", admits="names of plugins")


class DeviceTable(_Table):
    """What is planned for when no device is named."""

    simulate: str | None = _key(
        "The simulated device that is planned for where no device is named, in code or by `--device` and `--which`.",
        unset="this machine's device",
        admits="a product or an architecture of `dspark-ops devices`",
    )


class FilesTable(_Table):
    """What is read beside the configuration; paths are relative to the working directory."""

    lock: str | None = _key(
        "The lock file that a plan is compared with, and that `plan --write` writes.",
        unset="`dspark-ops.lock`, where `policy.lock` asks for one",
        admits="a path",
    )
    evidence: list[str] | None = _key(
        "Records of what kernels were put through, beside those that plugins ship: reports of `check --write`, and "
        "what `tune` wrote.",
        unset="none",
        admits="paths",
    )
    known_bad: list[str] | None = _key(
        "Faults of kernels in certain versions, beside those that core knows of; such a kernel is refused.",
        unset="none",
        admits="paths",
    )
    measured: str | None = _key(
        "The table of times that `tune` wrote. It is read where a lock is written, never at a start.",
        unset="none; `tune` writes `measured.json`",
        admits="a path",
    )


class OperatorTable(_Table):
    """What serves one operator; a table each, such as ``[ops.argmax_rows]``."""

    pin: str | None = _key(
        "The kernel that must serve the operator; that it may not serve is an error.",
        unset="none",
        admits="a kernel's id, `plugin/operator/variant`",
    )
    deny: list[str] | None = _key("Kernels that may not serve it.", unset="none", admits="globs over kernel ids")
    order: list[str] | None = _key(
        "Kernels in order of preference; one that matches none of them is not used.",
        unset="no order: class, then evidence, then name",
        admits="globs over kernel ids",
    )
    require_class: RankName | None = _key(
        "The weakest class that may serve this operator, a small one too.", unset="`policy.require_class`"
    )


class Tree(_Table):
    """The whole file. Every leaf may be absent: each source is checked by itself, before they are merged."""

    policy: PolicyTable = PolicyTable()
    plugins: PluginsTable = PluginsTable()
    device: DeviceTable = DeviceTable()
    files: FilesTable = FilesTable()
    layouts: dict[str, list[str]] = Field(
        {},
        description="Where operators share a layout: those that the caller can make. The plan picks one for all.",
        json_schema_extra={"unset": "what the model's places say"},
    )
    ops: dict[str, OperatorTable] = {}


_TABLES: dict[str, type[BaseModel]] = {
    "policy": PolicyTable,
    "plugins": PluginsTable,
    "device": DeviceTable,
    "files": FilesTable,
    "ops": OperatorTable,
}
_TYPES = {str: "text", bool: "a boolean", int: "a whole number", float: "a number", list: "a list", dict: "a table"}


def schema_faults(tree: Mapping[str, Any]) -> Iterator[tuple[Path, str, str, str, str]]:
    """Yield each fault of one source's `tree`: the path of the value, what is wrong, wanted, got, and a hint."""
    try:
        Tree.model_validate(dict(tree))
    except ValidationError as error:
        seen: set[Path] = set()
        for entry in error.errors(include_url=False):
            path = tuple(str(part) for part in entry["loc"])
            if path not in seen:
                seen.add(path)
                yield _fault(path, entry)


def _fault(path: Path, entry: Mapping[str, Any]) -> tuple[Path, str, str, str, str]:
    name = ".".join(path)
    value = entry["input"]
    if entry["type"] == "extra_forbidden":
        known = _keys_beside(path)
        what = "unknown table" if isinstance(value, Mapping) else "unknown key"
        return path, f"{what} {name}", f"one of {', '.join(known)}", path[-1], did_you_mean(path[-1], known)
    if entry["type"] == "literal_error":
        choices = _choices(path)
        hint = did_you_mean(value, choices) if isinstance(value, str) else ""
        return path, f"wrong value of {name}", " or ".join(choices), _shown(value), hint
    if entry["type"] == "greater_than_equal":
        return path, f"wrong value of {name}", f"at least {entry['ctx']['ge']}", _shown(value), ""
    kinds = {"string_type": "text", "list_type": "a list of texts", "int_type": "a whole number"}
    wanted = kinds.get(entry["type"], "a table")
    return path, f"wrong type of {name}", wanted, _shown(value), ""


def _keys_beside(path: Path) -> list[str]:
    table = Tree if len(path) == 1 else _TABLES[path[0]]
    return sorted(table.model_fields)


def _choices(path: Path) -> tuple[str, ...]:
    annotation = _TABLES[path[0]].model_fields[path[-1]].annotation
    for member in (annotation, *get_args(annotation)):
        if choices := tuple(choice for choice in get_args(member) if isinstance(choice, str)):
            return choices
    return ()


def _shown(value: Any) -> str:
    return f"{value!r} ({_TYPES.get(type(value), type(value).__name__)})"
