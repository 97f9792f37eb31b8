"""From words of the command line to the options of a decode run."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from dspark_ops.errors import ConfigError
from dspark_ops.suggest import did_you_mean

if TYPE_CHECKING:
    from dspark_ops.cli._decode_prompts import Prompt
    from dspark_ops.decode import Model, Request, VerifyPolicy
    from dspark_ops.decode.forced import ForcedAcceptance
    from dspark_ops.decode.options import Execution, RuntimeOptions

SCHEDULES = ("static", "threshold", "prefix", "prefix-global", "uniform")
_E = TypeVar("_E", bound=Enum)


def request_of(model: Model, prompt: Prompt, defaults: dict[str, Any], stops: tuple[str, ...]) -> Request:
    """Return the request of a prompt: what it sets by itself, else what the command line says."""
    from dspark_ops.decode import Request, SamplingParams

    values = {**defaults, **prompt.own}
    most = values.pop("max_tokens")
    return Request(model.text().encode(prompt.text), most, SamplingParams(**values), prompt.stop or stops)


def policy_of(
    schedule: str, threshold: float, step_rates: Path | None, rows: int, widths: tuple[int, ...]
) -> VerifyPolicy:
    """Return the policy that ``--schedule`` names.

    Raises:
        ConfigError: there is no such schedule, or its option is wrong or given to another one.
    """
    from dspark_ops.decode import PrefixPolicy, StaticPolicy, ThresholdPolicy
    from dspark_ops.decode.sps import default_rates, read_rates
    from dspark_ops.decode.uniform_policy import UniformPolicy

    _known("--schedule", schedule, SCHEDULES)
    rated = schedule.startswith("prefix") or schedule == "uniform"
    if step_rates is not None and not rated:
        raise ConfigError(
            f"--step-rates {step_rates}: only --schedule prefix, prefix-global and uniform use it, got {schedule}"
        )
    if rows and schedule != "static":
        raise ConfigError(f"--verify-rows {rows}: only --schedule static uses it, got {schedule}")
    if schedule == "static":
        return StaticPolicy(rows)
    if schedule == "threshold":
        return ThresholdPolicy(threshold)
    rates = default_rates() if step_rates is None else read_rates(step_rates)
    if schedule == "uniform":
        return UniformPolicy(rates, widths)
    return PrefixPolicy(rates, "global" if schedule == "prefix-global" else "early_stop")


def widths_of(text: str) -> tuple[int, ...]:
    """Return the widths that ``--verify-widths`` lists.

    Raises:
        ConfigError: it is no list of whole numbers from 2.
    """
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not all(part.isdecimal() and int(part) >= 2 for part in parts):
        raise ConfigError(f"--verify-widths {text}: wanted rows per request from 2, such as 2,3")
    return tuple(sorted({int(part) for part in parts}))


def execution_of(name: str, solo_gamma: int, widths: tuple[int, ...]) -> tuple[Execution, RuntimeOptions]:
    """Return how the steps are run, and the runtimes for it.

    Raises:
        ConfigError: there is no such execution, or an option is given that it does not use.
    """
    from dspark_ops.decode.options import Execution, RuntimeOptions

    way = chosen("--execution", name, Execution)
    if solo_gamma and way is Execution.PACKED:
        raise ConfigError(f"--solo-gamma {solo_gamma}: wanted with --execution static, graph or folded, got packed")
    return way, RuntimeOptions(solo_gamma=solo_gamma, extra_widths=widths)


def forced_of(text: str | None, seed: int) -> ForcedAcceptance | None:
    """Return the simulated acceptance that ``--simulate-accept`` describes: ``[LAW:]MEAN[:SCOPE]``; None for none.

    Raises:
        ConfigError: no such law or scope, or the mean is not a number.
    """
    if text is None:
        return None
    from dspark_ops.decode.forced import ForcedAcceptance

    parts = [part.strip().replace("-", "_") for part in text.split(":")]
    law = parts.pop(0) if not _is_number(parts[0]) else "two_point"
    if not 1 <= len(parts) <= 2 or not _is_number(parts[0]):
        raise ConfigError(
            f"--simulate-accept {text}: wanted [LAW:]MEAN[:SCOPE], such as 3.51, per-position:3.51 or "
            "normal-clamped:3.5:per-step"
        )
    return ForcedAcceptance(float(parts[0]), law, *parts[1:], seed=seed)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def chosen(option: str, name: str, kind: type[_E]) -> _E:
    """Return the member of an enumeration that an option names.

    Raises:
        ConfigError: it has no such member.
    """
    _known(option, name, [str(member.value) for member in kind])
    return kind(name)


def _known(option: str, name: str, names: tuple[str, ...] | list[str]) -> None:
    if name not in names:
        raise ConfigError(f"{option} {name}: wanted one of {', '.join(names)}{did_you_mean(name, names)}")
