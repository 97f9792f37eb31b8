"""docs/configuration.md is what the schema says, which says of every key what it does and what holds without it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from dspark_ops.config import load_settings
from dspark_ops.config.environment import VARIABLES
from dspark_ops.config.keys import key_tables, keys_of_variables
from dspark_ops.config.schema import Tree

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8")
KEYS = {f"{table.name}.{key.name}": key for table in key_tables() for key in table.keys}


def test_the_page_of_the_configuration_is_up_to_date() -> None:
    command = [sys.executable, ROOT / "docs" / "build_configuration.py", "--check"]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0, f"run  python docs/build_configuration.py\n{result.stderr}"


@pytest.mark.parametrize("name", KEYS)
def test_a_key_says_what_it_does_which_values_it_takes_and_what_holds_without_it(name: str) -> None:
    key = KEYS[name]
    assert key.does.endswith(".") and key.does[0].isupper()
    assert key.admits
    assert key.default
    assert "|" not in "".join((key.does, key.admits, key.default))


def test_every_table_of_the_schema_is_on_the_page() -> None:
    assert {table.name.partition(".")[0] for table in key_tables()} == set(Tree.model_fields)
    assert re.findall(r"^## `\[(.+)\]`$", PAGE, flags=re.MULTILINE) == [table.name for table in key_tables()]
    assert all(table.about.endswith(".") for table in key_tables())
    assert all(f"| `{name}` |" in PAGE for name in VARIABLES)


def test_defaults_are_those_of_the_settings_and_types_those_of_the_schema() -> None:
    assert KEYS["policy.smoke_seconds"].default == "`120`"
    assert KEYS["policy.plugin_error"].default == "`warn`"
    assert KEYS["policy.fallback"].admits == "`fail`, `warn`, `allow`"
    types = {name: key.type for name, key in KEYS.items()}
    assert types["policy.smoke_seconds"] == "whole number"
    assert types["files.evidence"] == types["layouts.kv_page"] == types["ops.<operator>.order"] == "list of texts"
    assert types["files.lock"] == types["policy.lock"] == "text"


def test_a_key_names_the_variables_that_set_it() -> None:
    assert keys_of_variables() == {
        "policy.fallback": ("DSPARK_OPS_PROFILE",),
        "policy.plugin_error": ("DSPARK_OPS_PROFILE",),
        "plugins.allow": ("DSPARK_OPS_PLUGINS",),
        "files.lock": ("DSPARK_OPS_LOCK",),
    }
    assert {name for name, key in KEYS.items() if key.variables} == set(keys_of_variables())


def test_the_example_is_read_as_it_stands_and_sets_every_kind_of_key(tmp_path: Path) -> None:
    (text,) = re.findall(r"^```toml\n(.*?)^```", PAGE, flags=re.MULTILINE | re.DOTALL)
    (tmp_path / "dspark-ops.toml").write_text(text, encoding="utf-8")
    settings = load_settings(environ={}, directory=tmp_path)
    named = {re.sub(r"^ops\.\w+\.", "ops.<operator>.", leaf) for leaf in settings.origins}
    assert set(KEYS) - named == {"layouts.index_k_page", "layouts.mxfp8_scales"}


def test_what_the_page_says_of_precedence_is_the_order_in_which_sources_are_read(tmp_path: Path) -> None:
    from dspark_ops.config.load import load_configuration

    (tmp_path / "dspark-ops.toml").write_text("[policy]\n")
    (tmp_path / "named.toml").write_text("[policy]\n")
    (tmp_path / "pyproject.toml").write_text("[tool.dspark-ops.policy]\n")
    environ = {"DSPARK_OPS_CONFIG": "named.toml", "DSPARK_OPS_PROFILE": "ci"}
    tables = {"policy": {"fallback": "fail"}}
    found = load_configuration(tables, cli=tables, environ=environ, directory=tmp_path).sources
    assert found == ("argument", "command line", "environment", "named.toml", "dspark-ops.toml", "pyproject.toml")
    listed = re.findall(r"^\d\. (.*)$", PAGE, flags=re.MULTILINE)
    words = ("in code", "command line", "environment", "named", "`dspark-ops.toml`", "`pyproject.toml`", "defaults")
    assert len(listed) == len(words)
    assert all(word in line for word, line in zip(words, listed, strict=True))
