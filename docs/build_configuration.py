"""Writes docs/configuration.md from the schema: every key, its values, its default, and what sets it.

Run ``python docs/build_configuration.py`` after adding or changing a key; ``--check`` says if the page is up to date.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent

import dspark_ops.config
from dspark_ops.config.environment import PROFILES, VARIABLES
from dspark_ops.config.keys import Key, key_tables, keys_of_variables

PAGE = Path(__file__).resolve().parent / "configuration.md"

_HEAD = """<!-- written by docs/build_configuration.py: do not edit -->
# Configuration

What may serve an operator, which plugins load and which files are read is set in `dspark-ops.toml`, in
`[tool.dspark-ops]` of `pyproject.toml` (`[tool.dspark-ops.policy]` and so on), by environment variables, or in code.
Every key may be absent. An unknown key, variable or name is an error with a suggestion; all faults of all sources are
listed at once, each with its place, and nothing is applied while there is one.

`dspark-ops explain OPERATOR` and `print(plan.explain())` show the settings in force, each with its origin, and
`dspark-ops doctor` looks for faults.

## Which source wins

From strong to weak:

1. tables given in code, such as `config={"policy": {"fallback": "fail"}}` of `dspark_ops.plan`;
2. tables that a program makes of its own command line (`load_configuration(cli=...)`; the verbs here set none);
3. environment variables;
4. the file that is named: `--config FILE` or `config="FILE"`, or else `DSPARK_OPS_CONFIG`;
5. `dspark-ops.toml` in the working directory;
6. `[tool.dspark-ops]` of the `pyproject.toml` in the working directory;
7. the defaults below.

Tables merge key by key. Lists are replaced, never joined.
"""


def page() -> Iterator[str]:
    """Yield the lines of the page."""
    yield _HEAD
    yield "## An example"
    yield ""
    yield "```toml"
    yield example()
    yield "```"
    for table in key_tables():
        yield ""
        yield f"## `[{table.name}]`"
        yield ""
        yield table.about.replace("``", "`")
        yield ""
        yield "| key | type | values | default | variable | what it does |"
        yield "| --- " * 6 + "|"
        yield from map(_row, table.keys)
    yield from _variables()


def example() -> str:
    """Return the file that the package's docstring shows."""
    _, _, block = (dspark_ops.config.__doc__ or "").partition(":\n\n")
    return dedent(block).strip()


def _row(key: Key) -> str:
    variables = ", ".join(f"`{name}`" for name in key.variables)
    return f"| `{key.name}` | {key.type} | {key.admits} | {key.default} | {variables} | {key.does} |"


def _variables() -> Iterator[str]:
    sets: dict[str, list[str]] = {}
    for key, names in keys_of_variables().items():
        for name in names:
            sets.setdefault(name, []).append(f"`{key}`")
    yield ""
    yield "## Environment variables"
    yield ""
    yield "These five and no others; an unknown one that begins with `DSPARK_OPS_`, or an empty one, is an error."
    yield ""
    yield "| variable | sets | what it says |"
    yield "| --- | --- | --- |"
    for name, says in VARIABLES.items():
        yield f"| `{name}` | {', '.join(sets.get(name, []))} | {says} |"
    yield ""
    yield "What `DSPARK_OPS_PROFILE` sets:"
    yield ""
    leaves = list(dict.fromkeys(leaf for preset in PROFILES.values() for leaf in preset))
    yield f"| profile | {' | '.join(f'`policy.{leaf}`' for leaf in leaves)} |"
    yield "| --- " * (len(leaves) + 1) + "|"
    for name, preset in PROFILES.items():
        yield f"| `{name}` | {' | '.join(f'`{preset[leaf]}`' if leaf in preset else '' for leaf in leaves)} |"


def main() -> int:
    """Write the page, or compare it with what is there."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 if the page is out of date")
    check = parser.parse_args().check
    text = "\n".join(page()) + "\n"
    if check:
        return int(not PAGE.exists() or PAGE.read_text(encoding="utf-8") != text)
    PAGE.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
