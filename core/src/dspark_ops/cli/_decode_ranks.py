"""``dspark-ops decode --tp N``: the verb itself, once in each of N processes; the first one shows and reports."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from dspark_ops.decode.ranks.group import RankGroup

__all__ = ["decode_on_ranks", "ranks_of"]


def decode_on_ranks(ranks: int, device: str, given: Mapping[str, Any]) -> None:
    """Run the verb on so many ranks, with what the command line gave; ends with the exit code of rank 0.

    Raises:
        DsparkOpsError: what the first rank that failed raised.
    """
    from dspark_ops.decode.ranks.launch import run_processes

    code = run_processes(_decode, (dict(given),), ranks, device=device)
    if code:
        raise typer.Exit(code)


def ranks_of(ctx: typer.Context) -> RankGroup:
    """Return the ranks that this call of the verb is one of: a single one, unless `decode_on_ranks` made it."""
    from dspark_ops.decode.ranks.group import SOLO

    group: RankGroup = ctx.obj or SOLO
    return group


def _decode(group: RankGroup, given: dict[str, Any]) -> int:
    from dspark_ops.cli.decode import decode

    context: Any = SimpleNamespace(obj=group)
    try:
        decode(context, **given)
    except typer.Exit as ending:
        return int(ending.exit_code)
    return 0
