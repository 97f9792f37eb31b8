"""The five environment variables: how each is spelled, what it sets, and how strictly its value is read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from dspark_ops.config.fault import Fault
from dspark_ops.config.names import PLUGIN_NAME
from dspark_ops.suggest import did_you_mean

PREFIX: Final = "DSPARK_OPS_"
#: Every variable, with what it says.
VARIABLES: Final[Mapping[str, str]] = {
    PREFIX + "CONFIG": "A configuration file.",
    PREFIX + "LOCK": "The lock file that a plan is compared with.",
    PREFIX + "PROFILE": "`dev`, `ci` or `prod`: a preset of the policy.",
    PREFIX + "PLUGINS": "Names of the plugins that may load, separated by commas, or `none`.",
    PREFIX + "LOG": "`debug`, `info`, `warning` or `error`: what the command line logs.",
}
LOG_LEVELS: Final = ("debug", "info", "warning", "error")

#: What each profile sets. An explicit leaf from the command line or from an argument still wins over it.
PROFILES: Final[dict[str, dict[str, str]]] = {
    "dev": {"fallback": "warn", "plugin_error": "warn"},
    "ci": {"fallback": "fail", "plugin_error": "fail"},
    "prod": {"fallback": "fail", "plugin_error": "warn"},
}


@dataclass(frozen=True, slots=True)
class Environment:
    """What the five variables say.

    Attributes:
        tree: the settings that they set, as nested tables.
        origins: dotted leaf name to the variable that set it.
        config: configuration file, or None.
        log: log level, or None.
    """

    tree: Mapping[str, Any]
    origins: Mapping[str, str]
    config: str | None = None
    log: str | None = None


def read_environment(environ: Mapping[str, str], faults: list[Fault]) -> Environment:
    """Return what `environ` sets; every unknown variable and every wrong value is added to `faults`.

    An empty value is a fault too: it could mean "nothing" as well as "not set", and the two differ.
    """
    given = {name: value.strip() for name, value in sorted(environ.items()) if name.startswith(PREFIX)}
    for name in [name for name in given if name not in VARIABLES]:
        del given[name]
        wanted = f"one of {', '.join(VARIABLES)}"
        faults.append(Fault(f"environment {name}", "unknown variable", wanted, name, did_you_mean(name, VARIABLES)))
    for name in [name for name, value in given.items() if not value]:
        del given[name]
        faults.append(
            Fault(f"environment {name}", "empty value", "a value", "''", "; unset it if it should have no effect")
        )

    tree: dict[str, dict[str, Any]] = {}
    origins: dict[str, str] = {}
    profile = _one_of(given, "PROFILE", tuple(PROFILES), faults)
    for leaf, value in PROFILES[profile].items() if profile else ():
        tree.setdefault("policy", {})[leaf] = value
        origins[f"policy.{leaf}"] = f"environment {PREFIX}PROFILE={profile}"
    plugins = _plugins(given, faults)
    if plugins is not None:
        tree["plugins"] = {"allow": plugins}
        origins["plugins.allow"] = f"environment {PREFIX}PLUGINS"
    lock = given.get(PREFIX + "LOCK")
    if lock is not None:
        tree["files"] = {"lock": lock}
        origins["files.lock"] = f"environment {PREFIX}LOCK"
    return Environment(
        tree=tree,
        origins=origins,
        config=given.get(PREFIX + "CONFIG"),
        log=_one_of(given, "LOG", LOG_LEVELS, faults),
    )


def _one_of(given: Mapping[str, str], name: str, choices: tuple[str, ...], faults: list[Fault]) -> str | None:
    value = given.get(PREFIX + name)
    if value is None or value in choices:
        return value
    wanted = " or ".join(choices)
    faults.append(
        Fault(f"environment {PREFIX}{name}", "wrong value", wanted, repr(value), did_you_mean(value, choices))
    )
    return None


def _plugins(given: Mapping[str, str], faults: list[Fault]) -> list[str] | None:
    value = given.get(PREFIX + "PLUGINS")
    if value is None:
        return None
    if value == "none":
        return []
    names = [name.strip() for name in value.split(",")]
    wrong = [name for name in names if not PLUGIN_NAME.match(name) or name == "none"]
    if wrong:
        wanted = "names of plugins separated by commas, or 'none' alone"
        faults.append(Fault(f"environment {PREFIX}PLUGINS", "wrong value", wanted, repr(value)))
        return None
    return names


def triton_interprets(environ: Mapping[str, str]) -> bool:
    """Return whether Triton will interpret kernels on the CPU: its own variable, by its own rule for what is true."""
    return environ.get("TRITON_INTERPRET", "").lower() in ("1", "true", "on", "yes", "y")
