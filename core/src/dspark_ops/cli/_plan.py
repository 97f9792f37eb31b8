"""What the verbs that plan share: making the plan, and turning its findings into an exit code."""

from __future__ import annotations

import warnings
from pathlib import Path

import dspark_ops
from dspark_ops.cli._options import chosen_device, chosen_rows, configured
from dspark_ops.errors import SelectionWarning
from dspark_ops.selection.plan import Plan


def made_plan(
    *,
    device: str | None,
    which: int | None,
    model: str,
    rows: str,
    config: Path | None,
    operators: tuple[str, ...] | None = None,
) -> tuple[Plan, list[str]]:
    """Return the plan that the options ask for, and its findings, which are on stderr already."""
    settings = configured(config).settings
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", SelectionWarning)
        plan = dspark_ops.plan(
            device=chosen_device(device, which, settings),
            model=model,
            rows=chosen_rows(rows),
            config=settings,
            operators=operators,
        )
    for warning in caught:
        warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)
    findings = [str(warning.message) for warning in caught if issubclass(warning.category, SelectionWarning)]
    findings += [str(failure) for failure in plan.failures if failure.stage != "blocked"]
    return plan, findings
