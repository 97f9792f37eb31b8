"""Loading: collect every source of settings, check each, merge them by precedence, and keep the origin of each leaf."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from dspark_ops.api.kernel import Evidence, RankClass
from dspark_ops.config.environment import read_environment
from dspark_ops.config.fault import Fault, raise_faults
from dspark_ops.config.source import Source, source_from_file, source_from_mapping, source_from_pyproject
from dspark_ops.errors import ConfigError
from dspark_ops.selection.settings import Files, OperatorSettings, Policy, Settings

__all__ = ["Config", "Configuration", "load_configuration", "load_settings"]

#: What ``config=`` takes: a file, tables, settings that are already loaded, or nothing.
Config = str | os.PathLike[str] | Mapping[str, Any] | Settings | None

FILE: Final = "dspark-ops.toml"
PYPROJECT: Final = "pyproject.toml"


@dataclass(frozen=True, slots=True)
class Configuration:
    """Everything that is configured.

    Attributes:
        settings: what decides a plan.
        log: the log level that ``DSPARK_OPS_LOG`` names, or None.
        sources: labels of the sources that were read, strongest first.
    """

    settings: Settings
    log: str | None = None
    sources: tuple[str, ...] = ()


def load_settings(
    config: Config = None,
    cli: Mapping[str, Any] | None = None,
    environ: Mapping[str, str] | None = None,
    directory: Path | None = None,
) -> Settings:
    """Return the settings that decide a plan, with the origin of each; see `load_configuration`.

    Raises:
        ConfigError: anything in any source is wrong; the text lists every fault with its place.
    """
    if isinstance(config, Settings) and cli is None:
        return config
    return load_configuration(config, cli, environ, directory).settings


def load_configuration(
    config: Config = None,
    cli: Mapping[str, Any] | None = None,
    environ: Mapping[str, str] | None = None,
    directory: Path | None = None,
) -> Configuration:
    """Return everything that is configured, merged from all sources.

    From strong to weak: tables given as `config`; the command line; the environment; the file given as `config` (or
    else by ``DSPARK_OPS_CONFIG``); ``dspark-ops.toml``; ``[tool.dspark-ops]`` of ``pyproject.toml``; built-in values.
    Tables merge key by key; lists are replaced, never joined.

    Args:
        config: a file, or nested tables as in the file.
        cli: nested tables that the command line sets.
        environ: the environment; by default that of the process.
        directory: where the two default files are looked for; by default the working directory.

    Raises:
        ConfigError: anything in any source is wrong; the text lists every fault with its place.
    """
    if isinstance(config, Settings):
        raise ConfigError("config is a Settings value, which is complete: nothing can be merged into it")
    faults: list[Fault] = []
    environment = read_environment(os.environ if environ is None else environ, faults)
    sources = [
        source_from_mapping("argument", config) if isinstance(config, Mapping) else None,
        source_from_mapping("command line", cli) if cli else None,
        source_from_mapping("environment", environment.tree, environment.origins) if environment.tree else None,
        *_files(config, environment.config, directory or Path(), faults),
    ]
    found = [source for source in sources if source is not None]
    for source in found:
        faults.extend(source.faults())
    raise_faults(faults)
    return Configuration(
        settings=_settings(found),
        log=environment.log,
        sources=tuple(source.label for source in found),
    )


def _files(config: Config, from_environment: str | None, directory: Path, faults: list[Fault]) -> list[Source | None]:
    given: Path | None = None
    if isinstance(config, str | os.PathLike):
        given = Path(config)
    elif config is not None and not isinstance(config, Mapping):
        wanted = "a path, a mapping or None"
        faults.append(Fault("argument", "wrong type of config", wanted, f"{config!r} ({type(config).__name__})"))
    elif from_environment is not None:
        given = Path(from_environment)
    sources: list[Source | None] = []
    default = directory / FILE
    if given is not None:
        sources.append(source_from_file(directory / given, str(given), faults))
    if default.exists() and not (given is not None and (directory / given).resolve() == default.resolve()):
        sources.append(source_from_file(default, FILE, faults))
    if (directory / PYPROJECT).exists():
        sources.append(source_from_pyproject(directory / PYPROJECT, PYPROJECT, faults))
    return sources


def _settings(sources: list[Source]) -> Settings:
    """Merge checked sources, strongest first."""
    values: dict[tuple[str, ...], Any] = {}
    origins: dict[str, str] = {}
    for source in reversed(sources):
        for path, value in source.leaves():
            values[path] = tuple(value) if isinstance(value, list) else value
            origins[".".join(path)] = source.origin(path)

    operators: dict[str, dict[str, Any]] = {}
    for path, value in values.items():
        if path[0] == "ops":
            operators.setdefault(path[1], {})[path[2]] = RankClass(value) if path[2] == "require_class" else value
    policy = {path[1]: value for path, value in values.items() if path[0] == "policy"}
    if "require_class" in policy:
        policy["require_class"] = RankClass(policy["require_class"])
    if "evidence" in policy:
        policy["evidence"] = Evidence(policy["evidence"])
    return Settings(
        policy=Policy(**policy),
        operators={name: OperatorSettings(**entry) for name, entry in sorted(operators.items())},
        allow=values.get(("plugins", "allow")),
        deny=values.get(("plugins", "deny"), ()),
        simulate=values.get(("device", "simulate")),
        files=Files(**{path[1]: value for path, value in values.items() if path[0] == "files"}),
        layouts={path[1]: value for path, value in sorted(values.items()) if path[0] == "layouts"},
        origins=dict(sorted(origins.items())),
    )
