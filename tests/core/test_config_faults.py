"""Faults of a configuration: all of them in one report, each with its place and the nearest valid name. Case O25."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dspark_ops.config import load_settings
from dspark_ops.errors import ConfigError
from dspark_ops.selection.settings import Settings

TYPOS = """\
[ops.argmx]                      # unknown operator
pin = "triton/argmx/one_launch"

[ops.argmax_rows]
pin = "tritn"                    # no kernel id
requre_class = "fused"           # unknown key

[ops.moe_gate_topk]
require_class = 10               # wrong type
"""


def load(directory: Path, config: Any = None, cli: Any = None, **environ: str) -> Settings:
    return load_settings(config, cli, {f"DSPARK_OPS_{key}": value for key, value in environ.items()}, directory)


def faults(directory: Path, config: Any = None, cli: Any = None, **environ: str) -> list[str]:
    with pytest.raises(ConfigError) as error:
        load(directory, config, cli, **environ)
    first, *lines = str(error.value).splitlines()
    assert first.endswith("so none of it is applied:")
    return [line.strip() for line in lines]


@pytest.mark.parametrize("value", ["triton,", "none,triton", "Triton", "a b", "triton/argmax_rows"])
def test_o25_a_plugins_variable_that_is_no_list_of_names_is_an_error(tmp_path: Path, value: str) -> None:
    (line,) = faults(tmp_path, PLUGINS=value)
    assert line == (
        "environment DSPARK_OPS_PLUGINS: wrong value: "
        f"wanted names of plugins separated by commas, or 'none' alone, got {value!r}"
    )


@pytest.mark.parametrize("name", ["CONFIG", "LOCK", "PROFILE", "PLUGINS", "LOG"])
@pytest.mark.parametrize("value", ["", "  "])
def test_o25_an_empty_variable_is_an_error_and_not_a_guess(tmp_path: Path, name: str, value: str) -> None:
    (line,) = faults(tmp_path, **{name: value})
    expected = (
        f"environment DSPARK_OPS_{name}: empty value: wanted a value, got ''; unset it if it should have no effect"
    )
    assert line == expected


@pytest.mark.parametrize(
    ("name", "value", "wanted", "guess"),
    [
        ("PROFILE", "prd", "dev or ci or prod", "prod"),
        ("PROFILE", "CI", "dev or ci or prod", None),
        ("PROFILE", "1", "dev or ci or prod", None),
        ("LOG", "debg", "debug or info or warning or error", "debug"),
        ("LOG", "true", "debug or info or warning or error", None),
    ],
)
def test_o25_a_variable_with_a_wrong_value_names_itself_the_value_and_what_is_allowed(
    tmp_path: Path, name: str, value: str, wanted: str, guess: str | None
) -> None:
    (line,) = faults(tmp_path, **{name: value})
    hint = f"; did you mean {guess!r}?" if guess else ""
    assert line == f"environment DSPARK_OPS_{name}: wrong value: wanted {wanted}, got {value!r}{hint}"


def test_o25_an_unknown_variable_is_an_error_with_a_suggestion(tmp_path: Path) -> None:
    (line,) = faults(tmp_path, PLUGIN="triton")
    assert line.startswith("environment DSPARK_OPS_PLUGIN: unknown variable: wanted one of DSPARK_OPS_CONFIG, ")
    assert line.endswith("did you mean 'DSPARK_OPS_PLUGINS'?")


def test_o25_typing_errors_are_reported_together_with_lines_and_nearest_names(tmp_path: Path) -> None:
    (tmp_path / "dspark-ops.toml").write_text(TYPOS)
    lines = faults(tmp_path)
    assert [line.split(": ")[0] for line in lines] == [f"dspark-ops.toml:{number}" for number in (1, 5, 6, 9)]
    assert lines[0].endswith(
        "unknown operator: wanted the name of an operator, got 'argmx'; did you mean 'argmax_rows'?"
    )
    assert (
        "not a kernel id: wanted plugin/operator/variant, got 'tritn'; did you mean 'tritn/argmax_rows/...'?"
        in lines[1]
    )
    assert "unknown key ops.argmax_rows.requre_class: wanted one of deny, order, pin, require_class" in lines[2]
    assert lines[2].endswith("did you mean 'require_class'?")
    assert (
        "wrong value of ops.moe_gate_topk.require_class: wanted fused or portable or composed or reference" in lines[3]
    )
    assert lines[3].endswith("got 10 (a whole number)")


def test_faults_of_all_sources_stand_in_one_report(tmp_path: Path) -> None:
    (tmp_path / "dspark-ops.toml").write_text('[policy]\nfallback = "fial"\n')
    (tmp_path / "pyproject.toml").write_text("[project]\nname = 'x'\n[tool.dspark-ops.device]\nsimulat = 'H100'\n")
    lines = faults(tmp_path, "missing.toml", {"plugins": {"deny": "triton"}}, LOG="loud")
    assert [line.split(":")[0] for line in lines] == [
        "environment DSPARK_OPS_LOG",
        "missing.toml",
        "command line",
        "dspark-ops.toml",
        "pyproject.toml",
    ]
    assert "wrong type of plugins.deny: wanted a list of texts, got 'triton' (text)" in lines[2]
    assert lines[4].startswith("pyproject.toml:4: unknown key device.simulat:")


def test_a_wrong_leaf_is_refused_even_where_a_stronger_source_would_hide_it(tmp_path: Path) -> None:
    (tmp_path / "dspark-ops.toml").write_text('[policy]\nfallback = "fial"\n')
    (line,) = faults(tmp_path, {"policy": {"fallback": "warn"}})
    assert line.startswith("dspark-ops.toml:2:")


@pytest.mark.parametrize(
    ("table", "fault"),
    [
        (
            {"dispatch": {}},
            "unknown table dispatch: wanted one of device, files, layouts, ops, plugins, policy, got dispatch",
        ),
        ({"policy": "strict"}, "wrong type of policy: wanted a table, got 'strict' (text)"),
        ({"ops": {"argmax_rows": "triton"}}, "wrong type of ops.argmax_rows: wanted a table, got 'triton' (text)"),
        ({"plugins": {"deny": ["a", 1]}}, "wrong type of plugins.deny.1: wanted text, got 1 (a whole number)"),
        ({"policy": {"fallback": True}}, "wanted fail or warn or allow, got True (a boolean)"),
        ({"device": {"simulate": "sm_120"}}, "unknown device: wanted a device of the catalogue, got 'sm_120'"),
        ({"plugins": {"allow": ["Triton"]}}, "wrong plugin name: wanted ^[a-z][a-z0-9_]*$, got 'Triton'"),
        (
            {"ops": {"argmax_rows": {"pin": "triton/accept_greedy/one"}}},
            "kernel of another operator: wanted plugin/argmax_rows/variant, got 'triton/accept_greedy/one'",
        ),
        (
            {"ops": {"argmax_rows": {"deny": ["triton"]}}},
            "matches no kernel id: wanted a kernel id plugin/operator/variant, or a glob such as 'triton/*', "
            "got 'triton'; did you mean 'triton/*'?",
        ),
        ({"ops": {"argmax_rows": {"order": ["Triton/*"]}}}, "matches no kernel id"),
        ({"ops": {"argmax_rows": {"order": ["a/b/c/*"]}}}, "matches no kernel id"),
    ],
)
def test_each_kind_of_fault_says_what_was_wanted_and_what_was_got(tmp_path: Path, table: Any, fault: str) -> None:
    (line,) = faults(tmp_path, table)
    assert line.startswith("argument: ")
    assert fault in line


def test_a_file_that_is_not_toml_gives_its_line(tmp_path: Path) -> None:
    (tmp_path / "dspark-ops.toml").write_text("[policy]\nfallback = fail\n")
    (line,) = faults(tmp_path)
    assert line.startswith("dspark-ops.toml:2: not valid TOML: ")


def test_a_file_that_is_not_text_or_not_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "bad.toml").write_bytes(b"[policy]\n\xff\xfe")
    (line,) = faults(tmp_path, tmp_path / "bad.toml")
    assert line.endswith("not a text file: wanted UTF-8, got byte 0xff at 9")
    (line,) = faults(tmp_path, CONFIG=str(tmp_path))
    assert "cannot be read" in line
    (line,) = faults(tmp_path, 3)
    assert line == "argument: wrong type of config: wanted a path, a mapping or None, got 3 (int)"


def test_a_broken_pyproject_that_does_not_speak_of_this_library_is_not_our_matter(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("[project\n")
    assert load(tmp_path) == Settings()
    (tmp_path / "pyproject.toml").write_text("[tool.dspark-ops\n")
    (line,) = faults(tmp_path)
    assert line.startswith("pyproject.toml:1: not valid TOML")
