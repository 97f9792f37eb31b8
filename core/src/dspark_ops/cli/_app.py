"""The command group: it finds verbs by the names of their modules and imports only the one that is called."""

from __future__ import annotations

import importlib
import pkgutil
from types import ModuleType
from typing import Any

import typer
from typer.core import TyperGroup

import dspark_ops
from dspark_ops import cli
from dspark_ops.errors import DsparkOpsError, MissingDependencyError
from dspark_ops.suggest import did_you_mean

_PERMISSIVE = {"ignore_unknown_options": True, "allow_extra_args": True}


def verbs(package: ModuleType = cli) -> list[str]:
    """Return the names of all verbs of the command line, or of one group of it, sorted."""
    return sorted(module.name for module in pkgutil.iter_modules(package.__path__) if not module.name.startswith("_"))


def command() -> Any:
    """Return the callable that parses words and runs a verb."""
    # Tracebacks with the values of all variables are for developers, who can switch them on in Python itself.
    app = typer.Typer(
        cls=_Verbs, no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None
    )
    app.callback(invoke_without_command=True)(_options)
    return typer.main.get_command(app)


def _options(
    ctx: typer.Context,
    version: bool = typer.Option(False, "--version", help="Print the version and stop.", is_eager=True),
) -> None:
    """Which kernel serves each DSpark decode operator, and why. Exit codes: 0 fine, 1 a finding, 2 misuse."""
    if version:
        typer.echo(f"dspark-ops {dspark_ops.__version__}")
        raise typer.Exit()


class _Verbs(TyperGroup):
    package: ModuleType = cli

    def list_commands(self, ctx: Any) -> list[str]:
        return verbs(self.package)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        known = verbs(self.package)
        if cmd_name not in known:
            raise DsparkOpsError(f"no verb {cmd_name!r}: wanted {', '.join(known)}{did_you_mean(cmd_name, known)}")
        single = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
        try:
            module = importlib.import_module(f"{self.package.__name__}.{cmd_name}")
        except ImportError as error:
            single.command(name=cmd_name, context_settings=_PERMISSIVE)(_unavailable(cmd_name, error))
        else:
            if hasattr(module, "__path__"):
                return _group(cmd_name, module)
            single.command(name=cmd_name)(getattr(module, cmd_name))
        return typer.main.get_command(single)


def _group(name: str, package: ModuleType) -> Any:
    """Return the group of verbs that a package holds; its help is the first line of the package's docstring."""
    summary = (package.__doc__ or "").partition("\n")[0]
    group = typer.Typer(
        name=name, cls=type("_Group", (_Verbs,), {"package": package}), help=summary, no_args_is_help=True,
        add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None,
    )  # fmt: skip
    group.callback()(lambda: None)
    return typer.main.get_command(group)


def _unavailable(verb: str, error: ImportError) -> Any:
    def refuse() -> None:
        raise MissingDependencyError(f"the verb {verb} cannot run here: {error}") from error

    refuse.__doc__ = f"Cannot run here: {error}"
    return refuse
